"""The topics of a group's retry flow: how they should be, and what must be done to the ones that are there. Pure.

Each distinct delay has a topic, as records of one delay become due in the order in which they were written; beside
them stand the redrive topic, whose records are due at once, and the failed topic, the end of the way. A group without
retries has only the last.

Topics are made, mended and grown. None is ever shrunk, none is deleted while a record waits in it, and the size limit
is never lowered, because what was let in must be able to hop on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, RetryTopics
from fleet_operator.planning.observation import ClusterObservation, ManagedTopic, RetryObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import RetryIntent

DAY_SECONDS: Final = 24 * 3600
RETENTION_SECONDS_MIN: Final = 7 * DAY_SECONDS
"""How long retry topics keep records at least, where the spec does not say: an outage of a long weekend, twice."""
RETENTION_FACTOR: Final = 3
"""Retention is so many times the whole sequence: a record must outlive its waiting and an outage of the same length."""
HEADERS_BYTES_MAX: Final = 64 * 1024
"""What a hop may add to a record: the headers that tell its story."""
SEGMENT_MS_DEFAULT: Final = 7 * DAY_SECONDS * 1000
"""Kafka's own `segment.ms`. A record goes only with its segment, whose last record may be younger by so much."""
BROKER_DEFAULT: Final = -1

CLEANUP: Final = "cleanup.policy"
TIMESTAMPS: Final = "message.timestamp.type"
RETENTION: Final = "retention.ms"
BYTES: Final = "retention.bytes"
UNLIMITED: Final = "-1"
SIZE: Final = "max.message.bytes"
MANAGED_SETTINGS: Final = (CLEANUP, SIZE, TIMESTAMPS, RETENTION, BYTES)
"""The settings that are ours to keep; others may be set by anybody."""
SEGMENT: Final = "segment.ms"
ASKED_SETTINGS: Final = (*MANAGED_SETTINGS, SEGMENT)
"""The settings that a plan looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """A topic as it should be; a replication factor of -1 is the cluster's default (KIP-464)."""

    name: str
    partitions: int
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsPlan:
    """What is to be done to a group's topics.

    `create` and `grow` name topics as they should be, `alter` the settings to set, `delete` topics of drained delays in
    which nothing waits. `ready` is True once all wanted topics are there as wanted, False while something is to be done
    or in the way, None while that cannot be told. `problem` is what the operator cannot mend.
    """

    create: tuple[WantedTopic, ...] = ()
    grow: tuple[WantedTopic, ...] = ()
    alter: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    ready: bool | None = None
    problem: Problem | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.create or self.grow or self.alter or self.delete)

    @property
    def touched(self) -> tuple[str, ...]:
        """The topics that carrying out the plan changes."""
        return (*(topic.name for topic in (*self.create, *self.grow)), *self.alter, *self.delete)


def plan_topics(
    group: ConsumerGroup,
    intent: RetryIntent | None,
    counts: Mapping[str, int] | None,
    observation: ClusterObservation | None,
) -> TopicsPlan:
    """The plan for what was seen. `intent` is None for a group without retries.

    `counts` are the partitions of each source topic; None, and then nothing is made or grown, while one of them is
    missing or has not been asked for.
    """
    if observation is None or not observation.reachable:
        return TopicsPlan()
    observed = observation.groups.get(group.group_id)
    retry = observed.retry if observed is not None else None
    source_bytes = retry.source_max_message_bytes if retry is not None else None
    segment_ms = _segment_ms(_managed(retry, naming.failed_topic(group.group_id)))
    wanted = tuple(wanted_topics(group, intent, counts, source_bytes, segment_ms)) if counts else ()
    known = {topic.name: observation.topics.get(topic.name) for topic in wanted}
    asked = [(topic, seen) for topic in wanted if (seen := known[topic.name]) is not None]
    create = tuple(topic for topic, seen in asked if seen.error == conditions.TOPIC_NOT_FOUND)
    there = [(topic, seen) for topic, seen in asked if seen.error is None]
    grow = tuple(topic for topic, seen in there if seen.partitions < topic.partitions) if intent is not None else ()
    alter = {topic.name: drift for topic, _ in there if (drift := _drift(topic, _managed(retry, topic.name)))}
    problem = _unusable(wanted, observation)
    ready: bool | None = None
    if wanted and len(asked) == len(wanted):
        ready = not (create or grow or alter or problem)
    delete = tuple(_deletable(group, intent, observation, retry))
    return TopicsPlan(create=create, grow=grow, alter=alter, delete=delete, ready=ready, problem=problem)


def wanted_topics(
    group: ConsumerGroup,
    intent: RetryIntent | None,
    counts: Mapping[str, int],
    source_max_message_bytes: int | None,
    failed_segment_ms: int = SEGMENT_MS_DEFAULT,
) -> Iterator[WantedTopic]:
    """All topics that the group should have, shortest delay first, then redrive, then failed.

    While the sources' size limit is unknown none is set: the topics then have the cluster's, until it is known.
    `failed_segment_ms` is the failed topic's `segment.ms`.
    """
    shape = group.spec.retry.topics if group.spec.retry is not None else RetryTopics()
    common = {CLEANUP: "delete", TIMESTAMPS: "LogAppendTime"}

    def topic(name: str, retention_seconds: int, *, hops: int = 1) -> WantedTopic:
        # What waits must not be deleted before its time because much waits, as brokers' own default may have it.
        size = {BYTES: UNLIMITED} if hops == 1 else {}
        if source_max_message_bytes is not None:
            size[SIZE] = str(source_max_message_bytes + hops * HEADERS_BYTES_MAX)
        return WantedTopic(
            name=name,
            partitions=shape.partitions or max(counts.values()),
            replication_factor=shape.replication_factor or BROKER_DEFAULT,
            configs={**common, **size, RETENTION: str(retention_seconds * 1000)},
        )

    if intent is not None and not intent.ended:
        for delay in intent.delays:
            seconds = _retention_seconds(shape, naming.parse_delay(delay), intent.total_seconds)
            yield topic(naming.retry_topic(group.group_id, delay), seconds)
        # It holds what waits for retry workers, and the ledger of what was moved: never shorter than either needs. A
        # failed record whose entry has gone before it would be moved again, so the ledger outlives the segment that
        # the record lies in, and the brokers' next look at their segments.
        outlived = shape.failed_retention_seconds + failed_segment_ms // 1000 + DAY_SECONDS
        redrive_seconds = max(RETENTION_SECONDS_MIN, outlived)
        yield topic(naming.redrive_topic(group.group_id), redrive_seconds)
    # Whatever got into a retry topic, be it as large as that allows, must be able to end here.
    yield topic(naming.failed_topic(group.group_id), shape.failed_retention_seconds, hops=2)


def _segment_ms(failed: ManagedTopic) -> int:
    """The failed topic's `segment.ms`, and never less than the default: older segments may be of an older setting."""
    told = (failed.configs or {}).get(SEGMENT, "")
    return max(SEGMENT_MS_DEFAULT, int(told) if told.isdigit() else 0)


def _retention_seconds(shape: RetryTopics, delay_seconds: int, total_seconds: int) -> int:
    """The spec's word, or derived from the sequence; never so short that records could go before they are due."""
    derived = max(RETENTION_SECONDS_MIN, RETENTION_FACTOR * total_seconds)
    return max(shape.retention_seconds or derived, RETENTION_FACTOR * delay_seconds)


def _managed(retry: RetryObservation | None, name: str) -> ManagedTopic:
    return (retry.topics.get(name) if retry is not None else None) or ManagedTopic()


def _drift(wanted: WantedTopic, seen: ManagedTopic) -> dict[str, str]:
    """The settings to be set, of those that could be read. A size limit that is higher than needed stays."""
    if seen.configs is None:
        return {}
    differing = {name: value for name, value in wanted.configs.items() if seen.configs.get(name) != value}
    size = seen.configs.get(SIZE, "")
    if SIZE in differing and size.isdigit() and int(size) > int(differing[SIZE]):
        del differing[SIZE]
    return differing


def _unusable(wanted: tuple[WantedTopic, ...], observation: ClusterObservation) -> Problem | None:
    """The first topic that is there and that we may not use."""
    for topic in wanted:
        seen = observation.topics.get(topic.name)
        if seen is not None and seen.error not in (None, conditions.TOPIC_NOT_FOUND):
            return Problem(str(seen.error), f"topic {topic.name} cannot be used: {seen.error}")
    return None


def _deletable(
    group: ConsumerGroup, intent: RetryIntent | None, observation: ClusterObservation, retry: RetryObservation | None
) -> Iterator[str]:
    """Topics of removed delays that are still there, are wanted gone, and are known to hold nothing that waits."""
    if intent is None or group.spec.deletion.retry_topics == "Keep":
        return
    for delay in intent.drained_delays:
        name = naming.retry_topic(group.group_id, delay)
        seen = observation.topics.get(name)
        there = delay not in intent.delays and seen is not None and seen.error is None
        if there and _managed(retry, name).waiting == 0:
            yield name
