"""The pod security level of users' additions, for clusters whose CRD does not refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.fleet.restricted import find_template_problem, restricted
from tests.unit.api.crd_objects import ACCEPTED_PATHS, REFUSED_PATHS, full_container, full_template
from tests.unit.planning.builders import consumer_group, with_containers, with_worker


def problem_of(template: dict[str, Any]) -> str:
    problem = find_template_problem(consumer_group(template=template).spec.template)
    assert problem is None or problem.reason == "TemplateRefused"
    return problem.message if problem is not None else ""


def with_volume(**kinds: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", **kinds}]}}


def with_side(fields: dict[str, Any]) -> dict[str, Any]:
    return with_containers({"name": "side", **fields})


def with_first(fields: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"initContainers": [{"name": "first", **fields}]}}


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
            "'handler' is the name of a container and of an init container",
        ),
        (with_worker(image="i", args=["x"]), "remove args, image"),
        (with_containers({"name": "side", "livenessProbe": {"httpGet": {"host": "h"}}}), "name a host"),
        (with_containers({"name": "side", "lifecycle": {"preStop": {"tcpSocket": {"host": "h"}}}}), "name a host"),
        (with_worker(env=[{"name": "POD_NAME", "value": "x"}]), "must not set POD_NAME in env"),
        (with_worker(env=[{"name": "POD_NAMESPACE", "value": "x"}]), "must not set POD_NAMESPACE in env"),
        (
            {"metadata": {"labels": {"consumerfleet.io/group": "x"}}},
            "metadata.labels must not set consumerfleet.io/group",
        ),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}, "must not set app.kubernetes.io/name"),
        (
            {"metadata": {"annotations": {"consumerfleet.io/revision": "x"}}},
            "annotations must not set consumerfleet.io/",
        ),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.template.spec.securityContext.runAsNonRoot"),
        *(
            (make({"securityContext": context}), f"forbidden values in its securityContext: correct or remove {named}")
            for make in (with_side, with_first)
            for context, named in (
                ({"privileged": True}, "privileged"),
                ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
                ({"runAsNonRoot": False}, "runAsNonRoot"),
                ({"runAsUser": 0}, "runAsUser"),
                ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
                ({"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}}, "capabilities"),
            )
        ),
        (with_side({"ports": [{"containerPort": 80, "hostPort": 80}]}), "must not use a host port"),
        *(
            (with_worker(volumeMounts=[{"name": "v", "mountPath": path}]), f"must not mount anything at {path!r}")
            for path in REFUSED_PATHS
        ),
    ],
)
def test_refused_part_is_named(template: dict[str, Any], named: str) -> None:
    assert named in problem_of(template)


@pytest.mark.parametrize(
    "template",
    [
        *(with_worker(volumeMounts=[{"name": "v", "mountPath": path}]) for path in ACCEPTED_PATHS),
        with_containers({"name": "side", "volumeMounts": [{"name": "v", "mountPath": "/etc/fleet"}]}),
        with_containers({"name": "side", "env": [{"name": "POD_NAME", "value": "x"}]}),
        with_containers({"name": "side", "ports": [{"containerPort": 80, "hostPort": 0}]}),
        with_containers({"name": "side", "securityContext": {"privileged": False, "runAsNonRoot": True}}),
    ],
)
def test_harmless_part_passes(template: dict[str, Any]) -> None:
    assert problem_of(template) == ""


def test_container_keeps_everything_that_the_level_allows() -> None:
    given = full_container()
    kept = restricted(given)
    assert kept.keys() == given.keys()
    assert kept["securityContext"] == {
        key: value for key, value in given["securityContext"].items() if key not in ("privileged", "runAsNonRoot")
    }
