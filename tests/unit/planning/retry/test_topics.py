"""A group's topics: creation, correction, growth and deletion, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract.managed_topics import MANAGED_SETTINGS
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.observation import ClusterObservation, ManagedTopic, RetryObservation, TopicObservation
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent
from fleet_operator.planning.retry.topics import TopicsPlan, plan_topics, wanted_topics
from tests.unit.planning.builders import NOW, consumer_group, observation, observed_group

MISSING = TopicObservation(partitions=0, error="TopicNotFound")
COUNTS = {"orders": 4}
FAILED, REDRIVE = "_fleet.orders.failed", "_fleet.orders.redrive"
FIVE, THIRTY, HOUR = (f"_fleet.orders.retry.{delay}" for delay in ("5s", "30s", "1h"))
SOURCE_BYTES = 1_048_588
SOURCES = RetryObservation(observed_at=NOW, source_max_message_bytes=SOURCE_BYTES)


def intent(*sequence: str, drained_delays: tuple[str, ...] = ()) -> RetryIntent:
    revision = PolicyRevision(hash="a" * 10, content={"sequence": list(sequence)})
    distinct = tuple(dict.fromkeys(sequence))
    return RetryIntent(policy="standard", wanted=revision, delays=distinct, drained_delays=drained_delays)


def group(*, deletion: str = "Keep", **topics: Any) -> ConsumerGroup:
    retry = {"policyRef": {"name": "standard"}}
    return consumer_group(retry=retry, managedTopics=topics, deletion={"retryTopics": deletion})


def seen(topics: dict[str, TopicObservation], retry: RetryObservation | None = None) -> ClusterObservation:
    known = {"orders": TopicObservation(partitions=4)} | topics
    return observation(observed_group(retry=retry or SOURCES), topics=known)


def as_wanted(owner: ConsumerGroup, intended: RetryIntent) -> tuple[dict[str, TopicObservation], RetryObservation]:
    """Everything there, as it should be."""
    wanted = list(wanted_topics(owner, intended, COUNTS, SOURCES))
    managed = {t.name: ManagedTopic(partitions=t.partitions, configs=t.configs, waiting=0) for t in wanted}
    topics = {topic.name: TopicObservation(partitions=topic.partitions) for topic in wanted}
    return topics, replace(SOURCES, topics=managed)


def test_distinct_delays_have_a_topic_each_next_to_redrive_and_failed() -> None:
    """5s, 5s, 30s, 30s, 30s, 1h are three retry topics, however many attempts they are."""
    intended = intent("5s", "5s", "30s", "30s", "30s", "1h")
    topics = dict.fromkeys((FIVE, THIRTY, HOUR, REDRIVE, FAILED), MISSING)
    plan = plan_topics(group(), intended, COUNTS, seen(topics))
    assert [topic.name for topic in plan.create] == [FIVE, THIRTY, HOUR, REDRIVE, FAILED]
    assert {topic.partitions for topic in plan.create} == {4}
    assert plan.ready is False


def test_group_without_retries_has_only_the_failed_topic() -> None:
    plan = plan_topics(consumer_group(), None, COUNTS, seen({FAILED: MISSING}))
    assert [topic.name for topic in plan.create] == [FAILED]
    grown = plan_topics(consumer_group(), None, {"orders": 9}, seen({FAILED: TopicObservation(partitions=4)}))
    assert (grown.idle, grown.ready) == (True, True)


def test_topic_settings_use_append_time_and_admit_every_record() -> None:
    topics = {topic.name: topic for topic in wanted_topics(group(), intent("5s", "1h"), COUNTS, SOURCES)}
    for topic in topics.values():
        assert {*topic.configs, "retention.bytes"} == set(MANAGED_SETTINGS)
        assert topic.configs["cleanup.policy"] == "delete"
        assert topic.configs["message.timestamp.type"] == "LogAppendTime"
    limits = {name: int(topic.configs["max.message.bytes"]) - SOURCE_BYTES for name, topic in topics.items()}
    assert limits == {FIVE: 65_536, HOUR: 65_536, REDRIVE: 65_536, FAILED: 131_072}
    days = {name: int(topic.configs["retention.ms"]) / 86_400_000 for name, topic in topics.items()}
    assert days == {FIVE: 30, HOUR: 30, REDRIVE: 30 + 7 + 1, FAILED: 30}


def test_retention_exceeds_the_sequence_of_every_live_revision() -> None:
    old = PolicyRevision(hash="b" * 10, content={"sequence": ["7d", "7d"]}, superseded_at=NOW)
    intended = replace(intent("5s"), known=(old,), delays=("5s", "7d"))
    (first, *_) = wanted_topics(group(), intended, COUNTS, SOURCES)
    assert int(first.configs["retention.ms"]) == 3 * 14 * 86_400_000


def test_the_ledger_outlives_failed_records_that_a_long_segment_keeps() -> None:
    """A record goes with its segment, which may go on for `segment.ms` after the record."""
    owner, intended = group(), intent("5s")
    topics, retry = as_wanted(owner, intended)
    for days, kept in ((60, 30 + 60 + 1), (1, 30 + 7 + 1)):
        configs = {**(retry.topics[FAILED].configs or {}), "segment.ms": str(days * 86_400_000)}
        managed = {**retry.topics, FAILED: replace(retry.topics[FAILED], configs=configs)}
        plan = plan_topics(owner, intended, COUNTS, seen(topics, replace(retry, topics=managed)))
        ledger = plan.alter.get(REDRIVE) or retry.topics[REDRIVE].configs or {}
        assert int(ledger["retention.ms"]) == kept * 86_400_000


def test_retention_of_the_spec_counts_unless_records_would_go_before_they_are_due() -> None:
    shaped = group(retentionSeconds=60, failedRetentionSeconds=120, partitions=2, replicationFactor=3)
    topics = {topic.name: topic for topic in wanted_topics(shaped, intent("5s", "1h"), COUNTS, SOURCES)}
    seconds = {name: int(topic.configs["retention.ms"]) // 1000 for name, topic in topics.items()}
    assert seconds == {FIVE: 60, HOUR: 3 * 3600, REDRIVE: 120 + 8 * 86_400, FAILED: 120}
    assert {(topic.partitions, topic.replication_factor) for topic in topics.values()} == {(2, 3)}


def test_waiting_records_are_not_limited_by_size() -> None:
    """A cluster's own `log.retention.bytes` would delete records before they are due; failed ones are the user's."""
    topics = {topic.name: topic for topic in wanted_topics(group(), intent("5s"), COUNTS, SOURCES)}
    assert {name: topic.configs.get("retention.bytes") for name, topic in topics.items()} == {
        FIVE: "-1",
        REDRIVE: "-1",
        FAILED: None,
    }


def test_topics_of_retries_that_have_ended_are_left_to_the_user() -> None:
    ended = replace(intent("5s", "1h"), ending=True, ended=True)
    assert [topic.name for topic in wanted_topics(group(), ended, COUNTS, SOURCES)] == [FAILED]


@pytest.mark.parametrize("ended", [False, True])
def test_end_of_retries_changes_no_shape(ended: bool) -> None:
    """Failed records that were to be kept for a year are still there to be put back."""
    shape: dict[str, Any] = {"failedRetentionSeconds": 31_536_000, "partitions": 2, "retentionSeconds": 864_000}
    topics, retry = as_wanted(group(**shape), intent("5s"))
    without, ending = consumer_group(managedTopics=shape), replace(intent("5s"), ending=True, ended=ended)
    for intended in (ending, None):
        assert plan_topics(without, intended, {"orders": 100}, seen(topics, retry)).idle


def test_everything_as_wanted_needs_nothing() -> None:
    intended = intent("5s", "30s")
    topics, retry = as_wanted(group(), intended)
    assert plan_topics(group(), intended, COUNTS, seen(topics, retry)) == TopicsPlan(ready=True)


def test_drift_is_corrected_setting_by_setting() -> None:
    intended = intent("5s")
    topics, retry = as_wanted(group(), intended)
    configs = dict(retry.topics[FIVE].configs or {}) | {"message.timestamp.type": "CreateTime", "segment.ms": "1"}
    drifted = replace(retry, topics={**retry.topics, FIVE: replace(retry.topics[FIVE], configs=configs)})
    plan = plan_topics(group(), intended, COUNTS, seen(topics, drifted))
    assert (plan.alter, plan.ready) == ({FIVE: {"message.timestamp.type": "LogAppendTime"}}, False)


def test_size_limit_is_raised_with_the_source_and_never_lowered() -> None:
    intended = intent("5s")
    topics, retry = as_wanted(group(), intended)
    raised = plan_topics(group(), intended, COUNTS, seen(topics, replace(retry, source_max_message_bytes=5_000_000)))
    published = {name: {"max.message.bytes": "5065536"} for name in (FIVE, REDRIVE)}
    assert raised.alter == published | {FAILED: {"max.message.bytes": "5131072"}}
    lowered = plan_topics(group(), intended, COUNTS, seen(topics, replace(retry, source_max_message_bytes=1_000)))
    assert lowered.idle


def test_unreadable_settings_are_left_alone() -> None:
    intended = intent("5s")
    topics, retry = as_wanted(group(), intended)
    unread = {name: replace(topic, configs=None) for name, topic in retry.topics.items()}
    hidden = replace(retry, topics=unread, source_max_message_bytes=None)
    assert plan_topics(group(), intended, COUNTS, seen(topics, hidden)) == TopicsPlan(ready=True)
    (first, *_) = wanted_topics(group(), intended, COUNTS, None)
    assert "max.message.bytes" not in first.configs


def test_topics_grow_with_their_source_and_never_shrink() -> None:
    intended = intent("5s")
    topics, retry = as_wanted(group(), intended)
    grown = plan_topics(group(), intended, {"orders": 6}, seen(topics, retry))
    assert {topic.name: topic.partitions for topic in grown.grow} == dict.fromkeys((FIVE, REDRIVE, FAILED), 6)
    assert plan_topics(group(), intended, {"orders": 2}, seen(topics, retry)).idle


def test_missing_source_makes_nothing() -> None:
    plan = plan_topics(group(), intent("5s"), None, seen({FIVE: MISSING, REDRIVE: MISSING, FAILED: MISSING}))
    assert (plan.idle, plan.ready) == (True, None)


def test_topics_not_yet_looked_up_are_unknown() -> None:
    plan = plan_topics(group(), intent("5s"), COUNTS, seen({FAILED: TopicObservation(partitions=4)}))
    assert (plan.idle, plan.ready) == (True, None)
    assert plan_topics(group(), intent("5s"), COUNTS, None) == TopicsPlan()


def test_topic_that_we_may_not_use_is_a_problem() -> None:
    intended = intent("5s")
    topics, retry = as_wanted(group(), intended)
    forbidden = TopicObservation(partitions=0, error="AuthorizationFailed")
    plan = plan_topics(group(), intended, COUNTS, seen(topics | {FIVE: forbidden}, retry))
    assert plan.problem
    assert (plan.problem.reason, plan.ready, plan.idle) == ("AuthorizationFailed", False, True)


def test_retired_topic_is_deleted_only_when_drained_and_requested() -> None:
    intended = intent("5s", drained_delays=("30s",))
    topics, retry = as_wanted(group(), intended)
    topics |= {THIRTY: TopicObservation(partitions=4)}

    def deleted(deletion: str, waiting: int | None) -> tuple[str, ...]:
        managed = {**retry.topics, THIRTY: ManagedTopic(partitions=4, waiting=waiting)}
        return plan_topics(
            group(deletion=deletion), intended, COUNTS, seen(topics, replace(retry, topics=managed))
        ).delete

    assert deleted("Drain", 0) == deleted("Delete", 0) == (THIRTY,)
    assert deleted("Keep", 0) == ()
    assert deleted("Drain", 1) == ()
    assert deleted("Drain", None) == ()


def test_deleted_topic_of_a_drained_delay_is_not_made_again() -> None:
    """With `Keep`, deleting it is the user's way to end the reading of it; a delay in use needs its topic."""
    intended = replace(intent("5s"), delays=("5s", "30s"))
    topics, retry = as_wanted(group(), intended)
    assert plan_topics(group(), intended, COUNTS, seen(topics, retry)) == TopicsPlan(ready=True)
    assert plan_topics(group(), intended, COUNTS, seen(topics | {THIRTY: MISSING}, retry)) == TopicsPlan(ready=True)
    ending = replace(intended, known=intended.revisions, wanted=None, ending=True)
    assert plan_topics(group(), ending, COUNTS, seen(topics | {THIRTY: MISSING}, retry)).create == ()
    made = plan_topics(group(), intended, COUNTS, seen(topics | {FIVE: MISSING}, retry)).create
    assert [topic.name for topic in made] == [FIVE]


def test_what_waits_after_the_end_of_retries_is_kept_without_a_limit() -> None:
    """Somebody deleted the retry workers: until they are back, brokers must not delete what waits for them."""
    ended = replace(intent("5s", "30s"), ending=True, ended=True)
    topics, retry = as_wanted(group(), intent("5s", "30s"))

    def lifted(waiting: int | None, oldest_at: float | None) -> Mapping[str, Mapping[str, str]]:
        found = replace(retry.topics[THIRTY], waiting=waiting, oldest_at=oldest_at)
        flow = replace(retry, topics={**retry.topics, THIRTY: found})
        return plan_topics(consumer_group(), ended, COUNTS, seen(topics, flow)).alter

    assert lifted(5, NOW - 86_400) == {THIRTY: {"retention.ms": "-1"}}
    assert lifted(0, None) == {}
    assert lifted(None, None) == {}, "nothing is lowered either"


def test_delay_that_is_wanted_again_is_not_deleted() -> None:
    intended = intent("5s", "30s", drained_delays=("30s",))
    topics, retry = as_wanted(group(deletion="Delete"), intended)
    assert plan_topics(group(deletion="Delete"), intended, COUNTS, seen(topics, retry)).idle
