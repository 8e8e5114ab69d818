"""Retries in the status of a ConsumerGroup: what is shown, and that it is calm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning import times
from fleet_operator.planning.observation import (
    Gap,
    ManagedTopic,
    RetryObservation,
    TopicObservation,
    WorkerObservation,
)
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.status.problems import find_problem
from fleet_operator.planning.status.retry import retry_status
from fleet_operator.reconcilers.transitions import find_transitions
from tests.unit.planning.builders import NOW, consumer_group, facts, kafka_cluster, observation, observed_group
from tests.unit.planning.status.projecting import condition, message, project

FAILED = "_fleet.orders.failed"
INTENT = RetryIntent(policy="standard", current="a1b2c3d4e5")


def flow(**changes: Any) -> RetryObservation:
    values: dict[str, Any] = {"observed_at": NOW, "waiting": 0, "due_lag": 0}
    return RetryObservation(**(values | changes))


def shown(flow: RetryObservation | None, previous: dict[str, Any] | None = None) -> dict[str, Any]:
    return retry_status(observed_group(retry=flow, failed_records=3), INTENT, previous or {})


def test_waiting_and_due_records_are_shown_with_their_times() -> None:
    status = shown(flow(waiting=5, due_lag=2, oldest_due_at=NOW - 90, next_due_at=NOW + 30))
    assert status == {
        "waiting": 4,
        "dueLag": 2,
        "oldestDueAt": times.to_text(NOW - 90),
        "nextDueAt": times.to_text(NOW + 30),
        "failed": 3,
        "policyRevision": "standard@a1b2c3d4e5",
    }


def test_nothing_waiting_is_zero_and_has_no_times() -> None:
    before = shown(flow(waiting=5, due_lag=2, oldest_due_at=NOW - 90, next_due_at=NOW + 30))
    assert shown(flow(), before) == {"waiting": 0, "dueLag": 0, "failed": 3, "policyRevision": "standard@a1b2c3d4e5"}


def test_unobservable_values_keep_the_last_one_and_are_never_zero() -> None:
    before = shown(flow(waiting=5, due_lag=2, oldest_due_at=NOW - 90))
    assert shown(flow(waiting=None, due_lag=None, error="NotObserved"), before) == before
    assert shown(flow(waiting=7, due_lag=None), before) == before
    assert shown(None, before) == before
    assert "waiting" not in shown(flow(waiting=None))


RETRY = "_fleet.orders.retry.5s"


def with_gaps(*gaps: Gap, **changes: Any) -> RetryObservation:
    return flow(topics={RETRY: ManagedTopic(partitions=4, waiting=0)}, expired=gaps, **changes)


def ends(offsets: dict[int, int]) -> list[dict[str, Any]]:
    return [{"topic": RETRY, "partition": number, "offset": offset} for number, offset in offsets.items()]


def test_expired_records_are_counted_once_whoever_sees_them() -> None:
    first = shown(with_gaps(Gap(RETRY, 0, 10, 15), Gap(RETRY, 1, 0, 3)))
    assert (first["expired"], first["expiredTo"]) == (8, ends({0: 15, 1: 3}))
    assert shown(with_gaps(Gap(RETRY, 0, 10, 15), Gap(RETRY, 1, 0, 3)), first) == first
    grown = shown(with_gaps(Gap(RETRY, 0, 10, 20)), first)
    assert (grown["expired"], grown["expiredTo"]) == (13, ends({0: 20, 1: 3}))
    met = WorkerObservation(pod="orders-fleet-retry-0", expired=(Gap(RETRY, 0, 10, 22), Gap(RETRY, 2, 1, 2)))
    after = retry_status(observed_group(retry=with_gaps()), INTENT, grown, [met, met])
    assert (after["expired"], after["expiredTo"]) == (16, ends({0: 22, 1: 3, 2: 2}))
    assert shown(with_gaps(), after)["expired"] == 16


def test_expired_records_of_a_topic_created_again_are_counted_from_its_beginning() -> None:
    before = shown(with_gaps(Gap(RETRY, 0, 10, 15)))
    gone = flow(topics={RETRY: ManagedTopic(waiting=0, error="TopicNotFound")})
    between = shown(gone, before)
    assert (between["expired"], between["expiredTo"]) == (5, [])
    assert shown(with_gaps(Gap(RETRY, 0, 0, 4)), between)["expired"] == 9


def test_gaps_in_other_topics_than_the_groups_own_count_for_nothing() -> None:
    met = WorkerObservation(pod="orders-fleet-0", expired=(Gap("_fleet.other.retry.5s", 0, 0, 9), Gap(RETRY, 4, 0, 9)))
    assert "expired" not in retry_status(observed_group(retry=with_gaps()), INTENT, {}, [met])
    assert "expired" not in shown(with_gaps())
    lies = WorkerObservation(
        pod="orders-fleet-0", expired=tuple(Gap(RETRY, number, -9, 2**63 - 1) for number in (-1, 0, 1))
    )
    found = retry_status(observed_group(retry=with_gaps()), INTENT, {}, [lies])
    assert (found["expired"], [end["partition"] for end in found["expiredTo"]]) == (2**63 - 1, [0, 1])


def test_loss_makes_one_event() -> None:
    before = {"retry": shown(with_gaps(Gap(RETRY, 0, 10, 15)))}
    after = {"retry": shown(with_gaps(Gap(RETRY, 0, 10, 17)), before["retry"])}
    (transition,) = find_transitions(before, after)
    assert (transition.type, transition.reason) == ("Warning", "RetriesExpired")
    assert RETRY in transition.note
    assert transition.note.endswith("lost: 2, 7 in all")
    assert find_transitions(after, after) == []


def test_record_that_has_just_become_due_is_not_late() -> None:
    status = shown(flow(waiting=1, due_lag=1, oldest_due_at=NOW - 1))
    assert (status["waiting"], status["dueLag"], status.get("oldestDueAt")) == (1, 0, None)


def test_group_with_retries_removed_shows_only_failed_records() -> None:
    before = shown(flow(waiting=5))
    assert retry_status(observed_group(failed_records=3), None, before) == {"failed": 3}
    assert retry_status(observed_group(), None, {}) == {}


def test_long_name_of_a_policy_leaves_the_hash() -> None:
    long = replace(INTENT, policy="p" * 60)
    assert retry_status(observed_group(retry=flow()), long, {})["policyRevision"] == "a1b2c3d4e5"


def test_busy_flow_with_a_record_due_each_second_is_written_once_a_minute() -> None:
    status: dict[str, Any] = {}
    writes = 0
    for second in range(600):
        now = NOW + second
        before, status = (
            status,
            shown(
                flow(
                    observed_at=now,
                    waiting=100 + second % 7,
                    due_lag=second % 2,
                    oldest_due_at=now,
                    next_due_at=now + 1,
                ),
                status,
            ),
        )
        writes += before != status
    assert writes <= 11


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=20))
def test_shown_time_is_never_far_from_the_truth(steps: list[float]) -> None:
    status: dict[str, Any] = {}
    for step in steps:
        status = shown(flow(waiting=1, next_due_at=NOW + 1000 + step), status)
        before = times.from_text(status["nextDueAt"])
        assert before is not None
        assert -6 <= NOW + 1000 + step - before <= 61


def test_open_breaker_degrades_the_group_and_names_the_workers() -> None:
    opened = "Open"
    workers = (WorkerObservation(pod="orders-fleet-0", breaker=opened), WorkerObservation(pod="orders-fleet-1"))
    given_ = facts(workers=workers)
    status = project(given_)
    assert condition(status, "Degraded") == ("True", "BreakerOpen")
    assert "orders-fleet-0" in message(status, "Degraded")
    assert given_.open_breakers == ("orders-fleet-0",)
    trying = replace(workers[0], breaker="HalfOpen")
    assert condition(project(facts(workers=(trying,))), "Degraded") == ("True", "BreakerOpen")
    closed = replace(workers[0], breaker="Closed")
    assert condition(project(facts(workers=(closed,))), "Degraded")[0] == "False"


def test_topics_of_the_flow_are_part_of_topics_ready() -> None:
    owner = consumer_group(retry={"policyRef": {"name": "standard"}})
    status = project(facts(group=owner, observation=observation(), retry=replace(INTENT, delays=("5s",))))
    assert condition(status, "TopicsReady") == ("Unknown", "NotYetObserved")


def test_waiting_records_are_reported_after_retries_end() -> None:
    """Nobody reads them, and nothing else would say so."""

    def told(waiting: int) -> str | None:
        seen = observed_group(retry=RetryObservation(observed_at=NOW, waiting=waiting, due_lag=waiting))
        ended = RetryIntent(policy="standard", current="a1b2c3d4e5", ending=True, ended=True)
        problem = find_problem(facts(observation=observation(seen), retry=ended))
        return problem.reason if problem is not None else None

    assert told(3) == "RetryNotConfigured"
    assert told(0) is None


def test_topics_on_another_cluster_are_not_reported_as_created() -> None:
    missing = {"orders": TopicObservation(partitions=4), FAILED: TopicObservation(partitions=0, error="TopicNotFound")}
    ours = facts(observation=observation(topics=missing))
    assert condition(project(ours), "TopicsReady") == ("False", "TopicNotCreated")
    other = facts(observation=observation(topics=missing), cluster=kafka_cluster(status={"clusterId": "another"}))
    assert other.view.topics.idle
    assert condition(project(other), "TopicsReady")[0] == "Unknown"
