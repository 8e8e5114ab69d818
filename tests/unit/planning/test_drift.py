"""An addition of other hands to a child is found, and nothing else is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fleet_operator.planning.drift import others_fields, undoing
from fleet_operator.planning.trimming import trim_config_map, trim_stateful_set

MEANT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "orders", "namespace": "shop", "labels": {"a": "b"}},
    "spec": {
        "replicas": 2,
        "template": {
            "metadata": {"annotations": {"mine": "1"}},
            "spec": {"containers": [{"name": "worker", "image": "w:1", "env": [{"name": "A", "value": "1"}]}]},
        },
    },
}
WORKER, TEMPLATE = 'k:{"name":"worker"}', "f:template"


def live(**fields: Any) -> dict[str, Any]:
    """The child as the API server has it, with these fields set by somebody else."""
    body = copy.deepcopy(MEANT)
    pods = body["spec"]["template"]["spec"]
    pods |= {"dnsPolicy": "ClusterFirst"}
    pods["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    body["metadata"]["managedFields"] = [
        {"manager": "consumer-fleet", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "labeller", "fieldsV1": {"f:metadata": {"f:labels": {"f:theirs": {}}}}},
        {"manager": "theirs", "fieldsV1": {"f:spec": {TEMPLATE: fields}}},
    ]
    return body


def template(body: dict[str, Any]) -> Any:
    return body["spec"]["template"]


CONTAINERS = {"containers": MEANT["spec"]["template"]["spec"]["containers"]}


def test_added_container_has_the_whole_list_set_again() -> None:
    body = live(**{"f:spec": {"f:containers": {'k:{"name":"miner"}': {".": {}, "f:image": {}}}}})
    template(body)["spec"]["containers"].append({"name": "miner", "image": "m"})
    assert undoing(body, MEANT) == ({"spec": {"template": {"spec": CONTAINERS}}}, ("theirs",))


def test_added_variable_and_added_field_of_a_container_are_found() -> None:
    env: dict[str, Any] = {"f:env": {".": {}, 'k:{"name":"B"}': {".": {}, "f:value": {}}}}
    body = live(**{"f:spec": {"f:containers": {WORKER: env}}})
    template(body)["spec"]["containers"][0]["env"].append({"name": "B", "value": "2"})
    assert undoing(body, MEANT)[0] == {"spec": {"template": {"spec": CONTAINERS}}}
    body = live(**{"f:spec": {"f:containers": {WORKER: {"f:command": {}}}}})
    template(body)["spec"]["containers"][0]["command"] = ["sh"]
    assert undoing(body, MEANT)[0] == {"spec": {"template": {"spec": CONTAINERS}}}


def test_added_volumes_annotations_and_fields_are_taken_out() -> None:
    body = live(
        **{
            "f:metadata": {"f:annotations": {"f:agent": {}, "f:mine": {}}},
            "f:spec": {
                "f:volumes": {'k:{"name":"v"}': {".": {}, "f:emptyDir": {}}},
                "f:hostNetwork": {},
                "f:nodeSelector": {},
            },
        }
    )
    template(body)["metadata"]["annotations"]["agent"] = "true"
    added = {"volumes": [{"name": "v", "emptyDir": {}}], "hostNetwork": True, "nodeSelector": {"a": "b"}}
    template(body)["spec"] |= added
    assert undoing(body, MEANT)[0] == {
        "spec": {"template": {"metadata": {"annotations": {"agent": None}}, "spec": dict.fromkeys(added)}}
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"f:spec": {"f:containers": {WORKER: {"f:image": {}, "f:env": {'k:{"name":"A"}': {"f:value": {}}}}}}},
        {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}},
        {"f:spec": {"f:gone": {}}},
    ],
    ids=["nothing", "the same values", "kubectl rollout restart", "no more there"],
)
def test_what_changes_no_pod_is_left(fields: dict[str, Any]) -> None:
    body = live(**fields)
    template(body)["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "2026"
    assert undoing(body, MEANT) == ({}, ())


def test_additions_of_several_hands_are_taken_out_at_once() -> None:
    body = live(**{"f:spec": {"f:hostPID": {}}})
    body["metadata"]["managedFields"].append(
        {"manager": "also", "fieldsV1": {"f:spec": {TEMPLATE: {"f:spec": {"f:hostIPC": {}}}}, "f:data": {"f:x": {}}}}
    )
    template(body)["spec"] |= {"hostPID": True, "hostIPC": True}
    body["data"] = {"x": "y"}
    patch, names = undoing(body, MEANT)
    assert patch == {"spec": {"template": {"spec": {"hostIPC": None, "hostPID": None}}}, "data": None}
    assert names == ("also", "theirs")


def test_trimmed_object_is_marked_where_others_have_set_fields_and_stays_marked() -> None:
    body = live(**{"f:spec": {"f:hostPID": {}}})
    assert list(others_fields(body["metadata"])) == ["theirs"]
    once = trim_stateful_set(body)
    assert once["metadata"]["edited"] is True
    assert trim_stateful_set(once) == once
    del body["metadata"]["managedFields"][-1]
    assert "edited" not in trim_stateful_set(body)["metadata"]
    assert "edited" not in trim_config_map({**body, "kind": "ConfigMap"})["metadata"]
