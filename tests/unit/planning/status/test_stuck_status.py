"""A stuck group: pod, cause and record in Stuck and Degraded; what is unknown is not said to move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract.skips import Place
from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import PodFacts
from fleet_operator.planning.observation import OpenTransaction, StuckPartition, WorkerObservation
from fleet_operator.planning.status.problems import needs_reports, needs_revisit
from tests.unit.planning.builders import NOW, facts, observation, observed_group, pods, ready_fleet, unreachable
from tests.unit.planning.status.projecting import cause, condition, message, project

KILLED = ContainerEnd(
    container="worker",
    exit_code=137,
    reason="OOMKilled",
    at=NOW - 3,
    said="ProcessDied",
    records=(Place("orders", 2, 7),),
)


def dying(end: ContainerEnd | None = KILLED, **changes: Any) -> tuple[PodFacts, ...]:
    first, second = pods()
    return first, replace(second, ready=False, ended=end, **changes)


@pytest.mark.parametrize("waits", [{}, {"reason": "CrashLoopBackOff", "message": str(KILLED)}])
def test_death_of_a_worker_names_pod_cause_and_record(waits: dict[str, Any]) -> None:
    status = project(facts(pods=dying(**waits)))
    assert condition(status, "Degraded") == ("True", "WorkersFailing")
    for text in (message(status, "Degraded"), message(status, "Stuck")):
        for part in ("orders-fleet-1", "OOMKilled", "exit code 137", "SIGKILL", "orders-2:7"):
            assert part in text, text
    assert condition(status, "Stuck") == ("True", "PartitionStuck")
    (entry,) = status["stuckPartitions"]
    assert (entry["pod"], entry["reason"], entry["since"]) == ("orders-fleet-1", "OOMKilled", "2027-01-15T07:59:57Z")


def test_since_is_that_of_the_first_death_at_a_record() -> None:
    before = project(facts(pods=dying()))
    later = project(facts(pods=dying(replace(KILLED, at=NOW + 60))), before, NOW + 63)
    assert later["stuckPartitions"] == before["stuckPartitions"]


def test_death_without_a_record_leaves_stuck_unknown() -> None:
    healthy = project(facts(workers=(WorkerObservation(pod="orders-fleet-0"), WorkerObservation(pod="orders-fleet-1"))))
    assert condition(healthy, "Stuck") == ("False", "AllPartitionsMove")
    status = project(facts(pods=dying(replace(KILLED, records=()))), healthy)
    assert condition(status, "Stuck") == ("Unknown", "WorkersFailing")
    assert "exit code 137" in message(status, "Stuck")


@pytest.mark.parametrize(
    ("reason", "stuck", "shown"),
    [
        ("CommitsRefused", (), ("False", "AllPartitionsMove")),
        (
            "DataUnreadable",
            (StuckPartition(topic="orders", partition=2, offset=7, since=NOW, reason="DataUnreadable", message="CRC"),),
            ("True", "PartitionStuck"),
        ),
    ],
)
def test_errors_of_partitions_are_named_though_all_workers_run(
    reason: str, stuck: tuple[StuckPartition, ...], shown: tuple[str, str]
) -> None:
    worker = WorkerObservation(pod="orders-fleet-0", error_reason=reason, error_message="words", stuck=stuck)
    status = project(facts(workers=(worker,)))
    assert condition(status, "Degraded") == ("True", reason)
    assert f"worker orders-fleet-0 reports {reason}: words" in message(status, "Degraded")
    assert condition(status, "Stuck") == shown
    assert [entry["reason"] for entry in status["stuckPartitions"]] == [each.reason for each in stuck]


def test_sessions_ended_by_a_bug_are_reported_though_the_next_one_has_begun() -> None:
    bug = WorkerObservation(
        pod="orders-fleet-0", ended_reason="TypeError", ended_message="m (loop.py:7)", ended_since=NOW
    )
    status = project(facts(workers=(bug,)))
    assert condition(status, "Degraded") == ("True", "WorkerReportsError")
    for part in ("orders-fleet-0", "TypeError: m (loop.py:7)", "since 2027-01-15T08:00:00Z"):
        assert part in message(status, "Degraded")
    assert condition(status, "Stuck") == ("Unknown", "WorkerReportsError")
    named = replace(
        bug, stuck=(StuckPartition(topic="orders", partition=2, offset=7, since=NOW, reason="SessionEnded"),)
    )
    assert condition(project(facts(workers=(named,))), "Stuck") == ("True", "PartitionStuck")


def test_silent_workers_leave_stuck_unknown() -> None:
    answered = project(facts(workers=(WorkerObservation(pod="orders-fleet-0"),)))
    silent = project(facts(), answered, NOW + 30)
    assert condition(silent, "Stuck") == ("Unknown", "WorkersSilent")
    empty = project(facts(pods=()), answered, NOW + 30)
    assert condition(empty, "Stuck") == ("Unknown", "WorkersSilent")
    suspended = project(facts(wanted_replicas=0, pods=()), answered, NOW + 30)
    assert condition(suspended, "Stuck") == ("False", "AllPartitionsMove")


def test_dying_pod_is_the_cause_of_a_revision_that_does_not_become_ready() -> None:
    late = cause(RolloutPhase.WAITING, "ProgressDeadlineExceeded", target="aaaaaaaaaa")
    status = project(facts(rollout=late, fleet=ready_fleet(ready=1), pods=dying()))
    assert condition(status, "Ready") == ("False", "WorkersFailing")
    assert condition(status, "Degraded") == ("True", "WorkersFailing")
    unexplained = project(facts(rollout=late, fleet=ready_fleet(ready=1)))
    assert condition(unexplained, "Ready") == ("False", "ProgressDeadlineExceeded")


def test_retry_worker_that_dies_names_its_record_too() -> None:
    end = replace(KILLED, records=(Place("_fleet.orders.retry.5s", 0, 9),))
    dead = PodFacts(name="orders-fleet-retry-0", revision="a", ordinal=0, ready=False, ended=end)
    status = project(facts(retry_pods=(dead,), workers=(WorkerObservation(pod="orders-fleet-0"),)))
    assert condition(status, "Degraded") == ("True", "RetryWorkersFailing")
    assert "_fleet.orders.retry.5s-0:9" in message(status, "Stuck")


BEHIND = observed_group(end_offsets={("orders", number): 101 for number in range(4)})


@pytest.mark.parametrize(
    ("why", "changes", "watched"),
    [
        ("nothing waits", {}, False),
        ("records wait", {"observation": observation(BEHIND)}, True),
        ("nobody is to handle them", {"observation": observation(BEHIND), "wanted_replicas": 0}, False),
        ("Kafka is away", {"observation": unreachable()}, False),
        ("a pod dies", {"pods": dying()}, True),
        ("a worker complains", {"workers": (WorkerObservation(pod="orders-fleet-0", ended_reason="TypeError"),)}, True),
    ],
)
def test_workers_are_polled_while_records_wait_or_errors_last(why: str, changes: dict[str, Any], watched: bool) -> None:
    """A hung handler of a quiet topic changes nothing that anybody else would notice."""
    assert needs_reports(facts(**changes)) is watched, why


STUCK = StuckPartition(topic="orders", partition=0, offset=7, since=NOW - 60)


@pytest.mark.parametrize(
    ("why", "changes", "visited"),
    [
        ("nothing waits", {}, False),
        ("records wait: their worker's report reconciles the group", {"observation": observation(BEHIND)}, False),
        ("Kafka is away", {"observation": unreachable()}, False),
        (
            "the group rebalances, which may last",
            {"observation": observation(replace(BEHIND, state="PreparingRebalance"))},
            True,
        ),
        ("a pod dies", {"pods": dying()}, True),
        ("a worker complains", {"workers": (WorkerObservation(pod="orders-fleet-0", ended_reason="TypeError"),)}, True),
        ("a record is stuck", {"workers": (WorkerObservation(pod="orders-fleet-0", stuck=(STUCK,)),)}, True),
        (
            "the same, of a fleet at rest",
            {"workers": (WorkerObservation(pod="orders-fleet-0", stuck=(STUCK,)),), "wanted_replicas": 0},
            False,
        ),
    ],
)
def test_group_is_visited_soon_where_a_problem_may_last_or_pass_with_time(
    why: str, changes: dict[str, Any], visited: bool
) -> None:
    """And its workers are asked often then."""
    found = facts(**changes)
    assert needs_revisit(found) is visited, why
    assert needs_reports(found) or not visited, why


def test_transaction_that_hangs_is_named_with_its_place_and_what_to_do() -> None:
    """Lag is 0, as readers of committed records cannot see what waits."""

    def held(stood_s: float, end: int = 164, **others: int) -> dict[str, Any]:
        found = {
            (topic, number): OpenTransaction(offset=100, since=NOW - 300, stood_s=stood_s, end_offset=end)
            for topic, number in {"orders": 3, **others}.items()
        }
        return project(facts(observation=observation(observed_group(open_transactions=found))))

    assert condition(held(119.0), "Degraded") == ("False", "AsWanted")
    status = held(120.0)
    assert condition(status, "Degraded") == ("True", "TransactionHangs")
    assert (condition(status, "Ready")[0], condition(status, "LagKnown")[0]) == ("True", "True")
    text = message(status, "Degraded")
    for part in (
        "orders-3 has been blocked at offset 100 since 2027-01-15T07:55:00Z",
        "~64 records",
        "transaction.timeout.ms",
    ):
        assert part in text
    assert "abort --topic orders --partition 3 --start-offset 100" in text
    assert message(held(600.0, end=190), "Degraded") == text, "a status does not change with every record"
    assert message(held(120.0, payments=0, returns=2), "Degraded").endswith("the same in payments-0, returns-2")
