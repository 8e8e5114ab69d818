"""Every failure is a condition with its reason within thirty seconds, without a hot loop of writes."""

from __future__ import annotations

import copy
import subprocess
import time
from collections import Counter
from typing import Any

import pytest

from e2e.cluster import PATIENCE_S, Cluster, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet
from e2e.install import Installation

WITHIN_SECONDS = 30
AT_REST_SECONDS = 8
QUIET_SECONDS = 65
WRITES_IN_QUIET_MAX = 1


def wait_condition(
    cluster: Cluster,
    fleet: FlightFleet,
    kind: str,
    status: str,
    reason: str,
    *,
    name: str = "",
    within_s: float = WITHIN_SECONDS,
) -> str:
    """Wait for a condition of a group; return its message."""

    def probe() -> str | None:
        found = cluster.get("consumergroups.consumerfleet.io", name or fleet.name, namespace=fleet.namespace)
        seen = conditions(found).get(kind, {})
        assert (seen.get("status"), seen.get("reason")) == (status, reason), seen
        return str(seen["message"])

    return eventually(probe, timeout_s=within_s, what=f"{kind}={status} {reason}")


def pod_identities(fleet: FlightFleet) -> dict[str, tuple[str, int]]:
    """Uid and restarts of each worker pod: equal before and after means that nothing touched them."""
    pods = fleet.cluster.list("pods", namespace=fleet.namespace, selector=f"consumerfleet.io/group={fleet.name}")
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in pods
        if "-check-" not in pod["metadata"]["name"]
    }


def test_bad_handler_in_a_new_revision_leaves_the_old_fleet_running(fleets: Fleets, cluster: Cluster) -> None:
    """With one replica no other pod hides the failure: the new revision must be refused before the pod is touched."""
    with fleets.named("mistaken") as fleet:
        handler, kafka, group = fleet.manifests()
        group["spec"]["replicas"] = 1
        cluster.apply([handler, kafka, group], namespace=fleet.namespace)
        fleet.wait_stable(members=1)
        before = pod_identities(fleet)

        wrong = copy.deepcopy(group)
        wrong["spec"]["handler"]["python"]["callable"] = "handler:no_such_function"
        cluster.apply([wrong], namespace=fleet.namespace)
        message = wait_condition(cluster, fleet, "Degraded", "True", "RevisionRefused", within_s=PATIENCE_S)
        assert "no_such_function" in message
        assert pod_identities(fleet) == before
        wait_condition(cluster, fleet, "Ready", "False", "HandlerNotCallable")
        wait_condition(cluster, fleet, "Serving", "True", "LastGoodRevision")

        fleet.produce()
        fleet.wait_drained()
        assert pod_identities(fleet) == before
        assert fleet.count().adds_up()

        cluster.apply([group], namespace=fleet.namespace)
        wait_condition(cluster, fleet, "Degraded", "False", "AsWanted", within_s=PATIENCE_S)
        wait_condition(cluster, fleet, "Ready", "True", "FleetReady")
        assert pod_identities(fleet) == before


def failing_objects(fleet: FlightFleet) -> list[dict[str, Any]]:
    """Five groups, each with one failure, and the KafkaClusters and the Secret that they need."""
    handler, kafka, group = fleet.manifests()

    def kafka_named(name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {**kafka, "metadata": {"name": name}, "spec": spec}

    def group_named(name: str, **changes: Any) -> dict[str, Any]:
        changed: dict[str, Any] = copy.deepcopy(group)
        changed["metadata"]["name"] = name
        changed["spec"].update(changes)
        return changed

    bad_callable = copy.deepcopy(group["spec"]["handler"])
    bad_callable["python"]["callable"] = "handler:no_such_function"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "alice", "labels": {"consumerfleet.io/credentials": "true"}},
        "stringData": {"username": "alice", "password": "not-her-secret"},
    }
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "alice"}, "allowWithoutTls": True}
    return [
        handler,
        secret,
        kafka,
        kafka_named("locked", {"bootstrapServers": ["kafka.kafka.svc.cluster.local:9094"], "sasl": sasl}),
        kafka_named("away", {"bootstrapServers": ["kafka.kafka.svc.cluster.local:9"]}),
        group_named("bad-handler", handler=bad_callable),
        group_named("no-topic", topics=["no-such-topic"]),
        group_named("no-cluster", clusterRef={"name": "nowhere"}),
        group_named("wrong-password", clusterRef={"name": "locked"}),
        group_named("broker-away", clusterRef={"name": "away"}),
    ]


@pytest.mark.together
def test_each_failure_is_a_condition_with_its_reason_and_then_quiet(fleets: Fleets, cluster: Cluster) -> None:
    with fleets.named("failing") as fleet:
        cluster.apply(failing_objects(fleet), namespace=fleet.namespace)
        expected = {
            "bad-handler": ("Ready", "HandlerNotCallable", "no_such_function"),
            "no-topic": ("TopicsReady", "TopicNotFound", "no-such-topic"),
            "no-cluster": ("ClusterReachable", "ClusterNotFound", "nowhere"),
            "wrong-password": ("ClusterReachable", "AuthenticationFailed", "alice"),
            "broker-away": ("ClusterReachable", "BrokerUnreachable", "kafka.kafka.svc.cluster.local:9"),
        }
        for name, (kind, reason, named) in expected.items():
            # The kubelet takes its time to run the pod that tries the handler.
            within_s = PATIENCE_S if kind == "Ready" else WITHIN_SECONDS
            message = wait_condition(cluster, fleet, kind, "False", reason, name=name, within_s=within_s)
            assert named in message, message
            if kind != "Ready":
                wait_condition(cluster, fleet, "Ready", "False", reason, name=name)
        wait_at_rest(fleet)
        writes = count_writes(fleet, seconds=QUIET_SECONDS)
        assert {name: writes[name] for name in expected if writes[name] > WRITES_IN_QUIET_MAX} == {}
        assert "not-her-secret" not in fleet.kubectl("get", "consumergroups,kafkaclusters,events", "--output", "yaml")


def wait_at_rest(fleet: FlightFleet) -> None:
    """Wait until the statuses stay as they are: routine writes come five seconds apart."""
    seen, since = "", time.monotonic()

    def at_rest() -> bool:
        nonlocal seen, since
        versions = fleet.kubectl("get", "consumergroups", "--output", "jsonpath={.items[*].metadata.resourceVersion}")
        if versions != seen:
            seen, since = versions, time.monotonic()
        return time.monotonic() - since > AT_REST_SECONDS

    eventually(at_rest, timeout_s=PATIENCE_S, what="nothing more to be written")


def count_writes(fleet: FlightFleet, *, seconds: int) -> Counter[str]:
    """Count the changes of each ConsumerGroup of the fleet's namespace for a while, by a watch of the API server."""
    command = fleet.cluster.kubectl_command(
        *("get", "consumergroups", "--namespace", fleet.namespace, "--watch-only", "--no-headers"),
        *("--output", "custom-columns=NAME:.metadata.name", f"--request-timeout={seconds}s"),
    )
    watched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
    return Counter(watched.stdout.split())


def test_silent_broker_is_reported_and_the_fleet_continues_when_it_answers(
    fleets: Fleets, installation: Installation, cluster: Cluster
) -> None:
    """A silent broker costs no pod: status reports it and keeps the last values, and all recovers by itself."""
    with fleets.named("patient") as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        before = pod_identities(fleet)
        with installation.paused_container(namespace="kafka", pod="kafka-0"):
            wait_condition(cluster, fleet, "ClusterReachable", "False", "BrokerUnreachable")
            status = fleet.group()["status"]
            assert status["memberCount"] == 2
            assert status["partitions"] == 12
        fleet.wait_stable(members=2)
        fleet.produce()
        fleet.wait_drained()
        assert pod_identities(fleet) == before
        assert fleet.count().lost == 0
