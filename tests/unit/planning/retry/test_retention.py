"""Records that wait in retry topics outlive a fleet that cannot run, and the status tells where it would not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract.managed_topics import RETENTION, UNLIMITED
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.observation import ManagedTopic, RetryObservation, TopicObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent
from fleet_operator.planning.retry.retention import NOTHING_WAITS, judge
from fleet_operator.planning.retry.topics import TopicsPlan, plan_topics, wanted_topics
from fleet_operator.planning.times import to_text
from tests.unit.planning.builders import NOW, consumer_group, facts, observation, observed_group
from tests.unit.planning.status.projecting import condition, message, project

FIVE, HOUR, REDRIVE = "_fleet.orders.retry.5s", "_fleet.orders.retry.1h", "_fleet.orders.redrive"
SEEN_AT = NOW - 1
DAY = 86_400.0
NORMAL = str(30 * 86_400_000)
INTENT = RetryIntent(
    policy="standard",
    current="a" * 10,
    known=(PolicyRevision(hash="a" * 10, content={"sequence": ["5s", "1h"]}),),
    delays=("5s", "1h"),
)
ANNOTATION = {"consumerfleet.io/paused": "true"}
REFUSED = Problem("AuthorizationFailed", "the brokers refuse to change topic _fleet.orders.retry.1h")


def group(*, suspend: bool = False, paused: bool = False, **topics: Any) -> ConsumerGroup:
    retry, annotations = {"policyRef": {"name": "standard"}}, ANNOTATION if paused else {}
    return consumer_group(suspend=suspend, retry=retry, managedTopics=topics, annotations=annotations)


def flow(owner: ConsumerGroup, **hour: Any) -> RetryObservation:
    """All topics as wanted and empty, with changes of the one whose delay is an hour."""
    blank = RetryObservation(observed_at=SEEN_AT, source_max_message_bytes=1_048_588)
    topics = {
        topic.name: ManagedTopic(partitions=topic.partitions, configs=topic.configs, waiting=0)
        for topic in wanted_topics(owner, INTENT, {"orders": 4}, blank)
    }
    limit = hour.pop("retention", None)
    topics[HOUR] = replace(topics[HOUR], **hour)
    if limit is not None:
        topics[HOUR] = replace(topics[HOUR], configs={**(topics[HOUR].configs or {}), RETENTION: limit})
    waiting = [topic.waiting for name, topic in topics.items() if not name.endswith(".failed")]
    known = None if None in waiting else sum(count or 0 for count in waiting)
    return replace(blank, topics=topics, waiting=known, due_lag=known)


def plan(owner: ConsumerGroup, seen: RetryObservation, intended: RetryIntent = INTENT, **sources: int) -> TopicsPlan:
    topics = {name: TopicObservation(partitions=topic.partitions) for name, topic in seen.topics.items()}
    observed = observation(observed_group(retry=seen), topics={"orders": TopicObservation(partitions=4), **topics})
    return plan_topics(owner, intended, sources or {"orders": 4}, observed)


def age(seconds: float) -> dict[str, Any]:
    """Three records wait, the oldest for so long."""
    return {"waiting": 3, "oldest_at": SEEN_AT - seconds}


def test_suspended_fleet_keeps_what_waits_without_a_limit_and_its_workers_are_not_held_up_by_that() -> None:
    owner = group(suspend=True)
    found = plan(owner, flow(owner, **age(10)))
    assert (found.alter, found.ready) == ({HOUR: {RETENTION: UNLIMITED}}, True), "nothing waits in the others"
    lifted = flow(owner, **age(20 * DAY), retention=UNLIMITED)
    assert plan(owner, lifted) == TopicsPlan(ready=True)


@pytest.mark.parametrize(("overdue_s", "lifted"), [(3590, False), (3610, True), (29 * DAY, True)])
def test_topic_whose_due_records_are_not_handled_keeps_them_whatever_the_cause(overdue_s: float, lifted: bool) -> None:
    """A broken revision, an open breaker, a record that never ends, no replicas: what is due stays."""
    owner = group()
    found = plan(owner, flow(owner, **age(3600 + overdue_s)))
    assert found.alter == ({HOUR: {RETENTION: UNLIMITED}} if lifted else {})


def test_what_a_redrive_put_back_is_kept_as_well() -> None:
    owner = group(suspend=True)
    seen = flow(owner)
    redriven = replace(seen.topics[REDRIVE], waiting=1, oldest_at=SEEN_AT - 5)
    found = plan(owner, replace(seen, topics={**seen.topics, REDRIVE: redriven}))
    assert found.alter == {REDRIVE: {RETENTION: UNLIMITED}}


def test_missing_source_topic_does_not_keep_what_waits_from_being_kept() -> None:
    owner = group(suspend=True)
    seen = flow(owner, **age(10))
    observed = observation(observed_group(retry=seen))
    assert plan_topics(owner, INTENT, None, observed).alter == {HOUR: {RETENTION: UNLIMITED}}


def test_limit_returns_only_when_what_waits_is_known_to_be_young() -> None:
    resumed = group()
    for hour in (age(3600 + 1900), {"waiting": None}, {"waiting": 3, "oldest_at": None}):
        assert plan(resumed, flow(resumed, **hour, retention=UNLIMITED)).idle, hour
    for hour in (age(3600 + 1700), {"waiting": 0}):
        found = plan(resumed, flow(resumed, **hour, retention=UNLIMITED))
        assert (found.alter, found.ready) == ({HOUR: {RETENTION: NORMAL}}, True)
    suspended = group(suspend=True)
    assert plan(suspended, flow(suspended, waiting=None, retention=UNLIMITED)).idle


def test_plan_comes_back_when_the_oldest_record_will_have_been_due_for_too_long() -> None:
    owner = group()
    assert plan(owner, flow(owner, **age(3600 + 600))).requeue_after == pytest.approx(3000)
    assert plan(owner, flow(owner)).requeue_after is None
    shorter = group(retentionSeconds=10_800)
    assert plan(shorter, flow(shorter, **age(3600 + 600))).requeue_after == pytest.approx(1200), "half of its time"


def test_retention_of_the_spec_is_not_lifted_and_not_lowered_below_what_waits() -> None:
    owner = group(suspend=True, retentionSeconds=int(10 * DAY))
    assert plan(owner, flow(owner, **age(9 * DAY))).idle
    assert plan(owner, flow(owner, **age(20 * DAY), retention=UNLIMITED)).idle
    raised = plan(owner, flow(owner, **age(9 * DAY), retention=str(int(9.5 * 86_400_000))))
    assert raised.alter == {HOUR: {RETENTION: str(10 * 86_400_000)}}


def test_topics_of_ended_retries_are_not_changed_unless_something_waits() -> None:
    owner, ended = group(suspend=True), replace(INTENT, ending=True, ended=True)
    assert plan(owner, flow(owner), ended).idle
    assert plan(owner, flow(owner, **age(10)), ended).alter == {HOUR: {RETENTION: UNLIMITED}}


def test_nothing_waiting_is_safe() -> None:
    owner = group(suspend=True)
    assert judge(owner, flow(owner), None) == NOTHING_WAITS


def test_deadline_is_that_of_the_oldest_record_and_of_the_retention_that_brokers_have() -> None:
    owner = group()
    kept = judge(owner, flow(owner, **age(DAY)), None)
    assert (kept.status, kept.reason) == ("True", "WithinRetention")
    assert kept.safe_until is not None
    assert 0 <= SEEN_AT + 29 * DAY - kept.safe_until < 3600
    by_hand = judge(owner, flow(owner, **age(DAY), retention=str(86_400_000 + 7_200_000)), None)
    assert (by_hand.status, by_hand.reason) == ("False", "RetentionEnds"), "an admin has shortened it"
    assert by_hand.safe_until is not None
    assert to_text(by_hand.safe_until) in by_hand.message
    lifted = judge(owner, flow(owner, **age(100 * DAY), retention=UNLIMITED), None)
    assert (lifted.status, lifted.reason, lifted.safe_until) == ("True", "KeptWithoutLimit", None)


@pytest.mark.parametrize(
    ("owner", "refusal", "reason"),
    [
        (group(suspend=True, paused=True), None, "PausedByAnnotation"),
        (group(suspend=True), REFUSED, "AuthorizationFailed"),
        (group(suspend=True, retentionSeconds=int(30 * DAY)), None, "RetentionSet"),
    ],
)
def test_where_nobody_keeps_what_waits_the_condition_warns_half_of_the_time_ahead(
    owner: ConsumerGroup, refusal: Problem | None, reason: str
) -> None:
    late = judge(owner, flow(owner, **age(15.1 * DAY)), refusal)
    assert (late.status, late.reason) == ("False", reason)
    early = judge(owner, flow(owner, **age(1 * DAY)), refusal)
    assert early.status == ("False" if refusal else "True"), "a refusal is told at once"


def test_unknown_age_or_retention_is_unknown() -> None:
    owner = group()
    for hour in ({"waiting": None}, {"waiting": 3}, {**age(5), "configs": None}):
        found = judge(owner, flow(owner, **hour), None)
        assert (found.status, found.safe_until) == ("Unknown", None), hour


def test_status_has_the_deadline_and_degraded_says_what_is_at_stake() -> None:
    owner = group(retentionSeconds=int(10 * DAY))
    given = facts(group=owner, retry=INTENT, observation=observation(observed_group(retry=flow(owner, **age(6 * DAY)))))
    status = project(given)
    until = status["retry"]["safeUntil"]
    assert condition(status, "RetriesKept") == ("False", "RetentionSet")
    assert condition(status, "Degraded") == ("True", "RetentionSet")
    assert until in message(status, "RetriesKept")
    young = replace(given, view=facts(group=owner, observation=observation(observed_group(retry=flow(owner)))).view)
    after = project(young, status)
    assert "safeUntil" not in after["retry"]
    assert condition(after, "RetriesKept") == ("True", "NothingWaits")


def test_busy_flow_moves_its_deadline_once_an_hour() -> None:
    owner = group()
    shown = {judge(owner, flow(owner, **age(seconds)), None) for seconds in range(600, 1200, 7)}
    assert len(shown) <= 2
