"""Failures in a running fleet: it keeps running, and a condition has the reason within thirty seconds."""

from __future__ import annotations

import copy

import pytest

from e2e.cluster import PATIENCE_S, Cluster, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet

WITHIN_SECONDS = 30


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


@pytest.mark.together("load")
def test_bad_handler_in_a_new_revision_leaves_the_old_fleet_running(fleets: Fleets, cluster: Cluster) -> None:
    """With one replica no other pod hides the failure: the new revision must be refused before the pod changes."""
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
