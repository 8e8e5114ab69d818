"""The API server accepts the planners' children: strictly validated, at the restricted level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster, RetryPolicy
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.parts import RETRY
from fleet_operator.planning.fleet.revision import plan_revision
from fleet_operator.planning.retry.fleet import retry_stateful_set
from fleet_operator.planning.retry.intent import DelayState, expand
from fleet_operator.planning.retry.records import Published, group_config_map, policy_config_map
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.support.waiting import eventually
from tests.unit.api.crd_objects import (
    JsonObject,
    changed,
    consumer_group,
    full_consumer_group,
    full_kafka_cluster,
    full_retry_policy,
    kafka_cluster,
)

UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
FILES = {"shop.py": "def handle(record): ..."}


@pytest.fixture(scope="module")
def strict(quiet_site: Callable[..., Site]) -> Site:
    """A namespace that takes only pods of the restricted level, once every part of the server enforces it."""
    made = quiet_site("crd-children")
    level = objects.namespace(made.name)
    level["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1}
    made.apply(level, priority)
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandbox"}}
    made.apply({**runtime, "handler": "sandbox"})
    for account in ("default", "shop"):
        metadata = {"name": account, "namespace": made.name}
        made.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    container = {"name": "c", "image": "i"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "early"}}

    def known() -> bool:
        refused = made.refusal(pod | {"spec": {"containers": [container], "priorityClassName": "high"}})
        assert "violates PodSecurity" in refused, refused
        return True

    eventually(known, timeout_s=PATIENCE_S, what="the priority class and the level to be known")
    return made


def children(group_body: JsonObject, cluster_body: JsonObject, namespace: str) -> list[dict[str, Any]]:
    group = ConsumerGroup.model_validate(changed(group_body, {"metadata.uid": UID, "metadata.namespace": namespace}))
    cluster = KafkaCluster.model_validate(cluster_body)
    revision = plan_revision(group, cluster, handler_files=FILES, image="worker:1")
    template = revision.pod_template
    handler = manifests.handler_config_map(group, revision)
    assert handler is not None
    return [
        handler,
        manifests.revision_config_map(group, revision),
        manifests.headless_service(group),
        manifests.disruption_budget(group),
        manifests.stateful_set(group, revision=revision.hash, pod_template=template, replicas=2),
        manifests.preflight_pod(group, revision=revision.hash, pod_template=template),
        *retry_children(group, template),
        # The pod that the StatefulSet's controller would make of the template: pod security judges pods, not templates.
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker-0", "namespace": namespace}}
        | {"spec": dict(template["spec"])},
    ]


def retry_children(group: ConsumerGroup, template: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The children of a fleet with retries, and one of its pods."""
    policy = {"name": "standard", "namespace": group.metadata.namespace, "uid": UID}
    revision = expand(RetryPolicy.model_validate({**full_retry_policy(), "metadata": policy}))
    told = Published(
        policy="standard",
        current=revision.hash,
        known=(revision,),
        partitions=4,
        max_message_bytes=1,
        retiring={"9s": DelayState.LEAVING},
    )
    fleet = retry_stateful_set(group, revision="0123456789", pod_template=template, replicas=1)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "r-0", "namespace": group.metadata.namespace}}
    return [
        manifests.headless_service(group, RETRY),
        manifests.disruption_budget(group, RETRY),
        group_config_map(group, told),
        policy_config_map(policy, revision),
        fleet,
        {**pod, "spec": fleet["spec"]["template"]["spec"]},
    ]


@pytest.mark.parametrize(
    ("group", "cluster"),
    [(consumer_group(), kafka_cluster()), (full_consumer_group(), full_kafka_cluster())],
    ids=["small", "every-field"],
)
def test_children_are_accepted(strict: Site, group: JsonObject, cluster: JsonObject) -> None:
    """No field that Kubernetes does not know, no value that it would refuse, no pod beyond the restricted level."""
    for body in children(group, cluster, strict.name):
        assert strict.accepted(body)["kind"] == body["kind"]


def test_privileged_sidecar_is_tamed(strict: Site) -> None:
    """Settings beyond the restricted level are dropped; otherwise the creation of pods would fail."""
    side = {"name": "side", "image": "i", "securityContext": {"privileged": True, "runAsUser": 1000}}
    group = consumer_group({"spec.template.spec": {"containers": [side], "initContainers": [side | {"name": "first"}]}})
    worker = children(group, kafka_cluster(), strict.name)[-1]
    spec = strict.accepted(worker)["spec"]
    contexts = [container["securityContext"] for container in (*spec["containers"], *spec["initContainers"])]
    assert all("privileged" not in context for context in contexts)
    assert contexts[1]["runAsUser"] == 1000
