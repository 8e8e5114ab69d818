"""Kills while records flow; the totals must add up, and every repeated record must be explained."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet
from e2e.demo.flights import first_flights
from e2e.install import Installation

FLIGHTS = 60_000
SLOWLY = 0.7
"""Pause per thousand records, in seconds: the flights take about forty seconds, enough for three faults."""

ON_THE_WAY = 500
"""Records of one poll of a worker, whose outputs may be in flight together."""


@contextmanager
def records_flowing(fleet: FlightFleet, flights: bytes) -> Iterator[None]:
    """These flights are written in the background while the block runs; leaving it waits for the last one."""
    failure: list[BaseException] = []

    def feed() -> None:
        try:
            fleet.produce(flights, pause_seconds_per_thousand=SLOWLY)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        eventually(lambda: fleet.lag()["end"] > 5_000, timeout_s=PATIENCE_S, what="records flow")
        yield
    finally:
        thread.join()
    assert not failure, failure


def resumed_positions(fleet: FlightFleet, logs: Sequence[str]) -> set[tuple[int, int]]:
    """Partition and offset of every position at which a worker started to read, from the workers' logs."""
    positions = set()
    for text in logs:
        for line in text.splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("message") == "partition started" and entry.get("topic") == fleet.source:
                positions.add((int(entry["partition"]), int(entry["offset"])))
    return positions


def assert_every_duplicate_is_explained(repeated: Sequence[tuple[int, int]], resumed: set[tuple[int, int]]) -> None:
    """A record may appear twice only where a worker resumed, at an offset committed before that record.

    So each run of repeated offsets must begin at such an offset. Of a killed worker's last records, some outputs were
    written and others, for other partitions, were not; these appear only once. So a run may have gaps, and may begin
    later by at most the records that a worker has in flight.
    """
    known = sorted(repeated)
    runs = [known[i] for i in range(len(known)) if i == 0 or not _is_near(known[i - 1], known[i])]
    unexplained = [first for first in runs if not any(_is_near(start, first) for start in resumed)]
    assert unexplained == [], f"{unexplained[:10]}, resumed at {sorted(resumed)[:20]}"


def _is_near(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """True if `other` is at or shortly behind `one`, in the same partition."""
    return one[0] == other[0] and 0 <= other[1] - one[1] <= ON_THE_WAY


@pytest.mark.together("load")
def test_scaling_deleting_and_killing_while_records_flow_loses_nothing(
    fleets: Fleets, installation: Installation
) -> None:
    """Scale to three, delete a pod, kill -9 a worker: nothing lost, one owner each, duplicates explained."""
    flights, cancelled = first_flights(FLIGHTS)
    with fleets.named("shaken") as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        logs: list[str] = []
        with records_flowing(fleet, flights):
            fleet.kubectl("scale", "kcg/shaken", "--replicas=3")
            fleet.wait_stable(members=3)
            logs.append(fleet.kubectl("logs", "shaken-fleet-0"))
            fleet.kubectl("delete", "pod", "shaken-fleet-0")
            eventually(lambda: is_ready(fleet, "shaken-fleet-0"), timeout_s=PATIENCE_S, what="another worker")
            fleet.wait_stable(members=3)

            before = restarts(fleet, "shaken-fleet-1")
            installation.kill_container(namespace="shaken", pod="shaken-fleet-1")
            eventually(
                lambda: restarts(fleet, "shaken-fleet-1") > before, timeout_s=PATIENCE_S, what="the worker restarted"
            )
            fleet.wait_stable(members=3)
        fleet.wait_drained()
        count = fleet.count()
        print(count.line())
        assert (count.given, count.done, count.failed, count.lost) == (FLIGHTS, FLIGHTS - cancelled, cancelled, 0)
        logs += [fleet.kubectl("logs", f"shaken-fleet-{ordinal}") for ordinal in range(3)]
        logs.append(fleet.kubectl("logs", "shaken-fleet-1", "--previous"))
        assert_every_duplicate_is_explained(count.repeated, resumed_positions(fleet, logs))


def is_ready(fleet: FlightFleet, pod: str) -> bool:
    """True if the pod exists and is ready; `kubectl delete` has waited for its predecessor's end."""
    found = fleet.cluster.get("pod", pod, namespace=fleet.namespace)
    return conditions(found).get("Ready", {}).get("status") == "True"


def restarts(fleet: FlightFleet, pod: str) -> int:
    found = fleet.cluster.get("pod", pod, namespace=fleet.namespace) or {}
    statuses = found.get("status", {}).get("containerStatuses", [])
    return sum(entry["restartCount"] for entry in statuses)


@pytest.mark.together
def test_deleted_group_takes_every_child_with_it(fleets: Fleets) -> None:
    """Owner references clean up; no finalizer keeps anything Terminating."""
    with fleets.named("leaving") as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        fleet.kubectl("delete", "kcg/leaving", "--timeout=290s")

        def children() -> str:
            kinds = "statefulsets,services,configmaps,poddisruptionbudgets,pods,controllerrevisions"
            selector = "app.kubernetes.io/managed-by=consumer-fleet"
            return fleet.kubectl("get", kinds, "--selector", selector, "--no-headers", "--ignore-not-found")

        eventually(lambda: children() == "", timeout_s=PATIENCE_S, what="no child is left")
        fleet.cluster.kubectl("delete", "namespace", "leaving", "--timeout=290s")
