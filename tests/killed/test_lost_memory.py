"""Statuses that are wiped at each write, and statuses and states that are lost while no operator runs.

A status is for people: losing it changes no action. A state that is lost is taken from what runs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER
from tests.apiserver import objects
from tests.apiserver.client import Client
from tests.apiserver.conftest import Operator
from tests.killed.killed_operator import Moment
from tests.killed.test_operator_killed import Mortal, Snapshot, apply, client, differences, first_act, forks
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

__all__ = ["client", "forks"]

ALONE = "never-wiped"
STATES = "operatorstates"


@pytest.mark.timeout(900)
def test_status_wiped_at_any_write_changes_no_action(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, forks: Any
) -> None:
    mortal = Mortal(forks, str(quiet_api.kubeconfig), writes_only=True)

    def settled(namespace: str) -> Any:
        return Snapshot.take(client).settled(namespace, 2)

    apply(client, [objects.namespace(ALONE), *first_act(ALONE, broker)])
    writes, expected = mortal.count_calls(ALONE, partial(settled, ALONE))
    wiped: dict[str, tuple[int, Moment]] = {f"wiped-{k}": (k, "wipe") for k in range(1, writes + 1)}
    apply(client, [objects.namespace(name) for name in wiped])
    apply(client, [body for name in wiped for body in first_act(name, broker)])
    assert mortal.die_all(wiped) == set()
    print(f"wiped at each of {writes} writes")
    with Operator(quiet_api):
        for name in wiped:
            seen = eventually(partial(settled, name), timeout_s=120, what=f"{name} to settle")
            assert list(differences(seen, expected)) == [], name
            steps = [
                client.get("statefulsets", each, "flights-fleet")["metadata"]["generation"] for each in (name, ALONE)
            ]
            assert steps[0] == steps[1], f"{name}: another number of steps"


def footprint(client: Client, namespace: str) -> dict[str, Any]:
    """The part that must not change: objects by uid, steps of the StatefulSet, revisions, and pods."""
    snapshot = Snapshot.take(client)
    return {
        f"{child['kind']}/{child['metadata']['name']}": (
            child["metadata"]["uid"],
            child["metadata"].get("generation") if child["kind"] == "StatefulSet" else None,
            child["metadata"].get("annotations", {}).get("consumerfleet.io/revision"),
        )
        for child in snapshot.children[namespace]
    }


def wipe(client: Client, namespace: str, *, states: bool) -> None:
    """Leave the objects as a restore without statuses does, and one without the operator's states as well."""
    for kind, name in ((KAFKA_CLUSTER, "main"), (CONSUMER_GROUP, "flights")):
        client.ask(
            "PATCH",
            kind.path(namespace, name, "status"),
            {"status": None},
            kind="application/merge-patch+json",
        )
    if states:
        client.delete_all(STATES, namespace)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("states", [False, True], ids=["statuses", "statuses and states"])
def test_running_fleet_that_is_restored_without_memory_stays_as_it_is(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, states: bool
) -> None:
    """The number of workers, their revision and their image are those that run, also under another default image."""
    name = f"restored-{'bare' if states else 'blank'}"
    apply(client, [objects.namespace(name), *first_act(name, broker)])
    with Operator(quiet_api, "--namespace", name, "--consumer-image", "worker:1"):
        eventually(lambda: Snapshot.take(client).settled(name, 2), timeout_s=180, what="the fleet to settle")
    before = footprint(client, name)
    wipe(client, name, states=states)
    with Operator(quiet_api, "--namespace", name, "--consumer-image", "worker:2"):
        eventually(lambda: Snapshot.take(client).settled(name, 2), timeout_s=180, what="the status to be written")
        status = client.get("consumergroups", name, "flights")["status"]
        assert (status["image"], status["targetReplicas"]) == ("worker:1", 2)
        assert footprint(client, name) == before
        (verdict,) = client.get(STATES, name, "flights.consumergroup")["data"]["fleet"]["verdicts"].values()
        assert verdict["state"] == "Good"
