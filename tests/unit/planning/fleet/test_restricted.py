"""The pod security level of users' additions, for clusters whose CRD does not refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.fleet.restricted import find_template_problem, restricted
from tests.unit.api.crd_objects import full_container, full_template
from tests.unit.planning.builders import consumer_group, with_containers, with_worker


def problem_of(template: dict[str, Any]) -> str:
    problem = find_template_problem(consumer_group(template=template).spec.template)
    assert problem is None or problem.reason == "TemplateRefused"
    return problem.message if problem is not None else ""


def with_volume(**kinds: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", **kinds}]}}


STOLEN = [{"name": "consumer-fleet-settings", "mountPath": "/x"}]


def test_every_allowed_part_passes() -> None:
    assert problem_of(full_template()) == ""


@pytest.mark.parametrize(
    ("template", "named"),
    [
        (with_volume(hostPath={"path": "/"}), "not hostPath"),
        (with_volume(invented={}), "not invented"),
        (with_volume(), "not none"),
        (with_volume(emptyDir={}, nfs={}), "not emptyDir, nfs"),
        (with_volume(projected={"sources": [{"serviceAccountToken": {}}]}), "not serviceAccountToken"),
        (with_volume(projected={"sources": [{"configMap": {}}, {"podCertificate": {}}]}), "not podCertificate"),
        (with_volume(projected={"sources": [{"invented": {}}]}), "not invented"),
        ({"spec": {"volumes": [{"name": "consumer-fleet-x", "emptyDir": {}}]}}, "consumer-fleet-x"),
        (with_worker(volumeMounts=STOLEN), "must not mount"),
        (with_containers({"name": "side", "volumeMounts": STOLEN}), "must not mount"),
        ({"spec": {"initContainers": [{"name": "first", "volumeMounts": STOLEN}]}}, "must not mount"),
        ({"spec": {"initContainers": [{"name": "worker"}]}}, "initContainers must not contain"),
        (
            {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}}},
            "AppArmor profiles",
        ),
        (
            {"spec": {"containers": [{"name": "handler"}], "initContainers": [{"name": "handler"}]}},
            "'handler' names a container and an init container",
        ),
        (with_worker(image="i", args=["x"]), "remove args, image"),
        (with_containers({"name": "side", "livenessProbe": {"httpGet": {"host": "h"}}}), "name a host"),
        (with_containers({"name": "side", "lifecycle": {"preStop": {"tcpSocket": {"host": "h"}}}}), "name a host"),
    ],
)
def test_refused_part_is_named(template: dict[str, Any], named: str) -> None:
    assert named in problem_of(template)


def test_container_keeps_everything_that_the_level_allows() -> None:
    given = full_container()
    kept = restricted(given)
    assert kept.keys() == given.keys()
    assert kept["securityContext"] == {
        key: value for key, value in given["securityContext"].items() if key not in ("privileged", "runAsNonRoot")
    }
