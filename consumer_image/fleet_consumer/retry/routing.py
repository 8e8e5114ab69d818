"""Destination of a failed record: a retry topic, the failed topic, or none; and records as read from these topics.

Targets come from the policy and the group, never from a record's headers. Pure: the worker writes the record, and
commits nothing of it before that is acknowledged.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass, field

from fleet_consumer.contract.naming import canonical_delay, failed_topic, retry_topic
from fleet_consumer.contract.policies import Policy
from fleet_consumer.record import Delivery, Record
from fleet_consumer.retry.failure import Drop, Failure, Retry
from fleet_consumer.retry.headers import (
    FailedDelivery,
    HeaderList,
    Origin,
    Story,
    failed_headers,
    first_story,
    foreign_headers,
    hop_headers,
)


@dataclass(slots=True)
class RetriedRecord(Record):
    """A `Record` with its origin's coordinates. `delivery` is where it was read; `story` comes from its headers.

    Handlers see the same topic, partition, offset, timestamp, key, value and headers in every delivery, so that
    idempotency keys, event times and forwarded headers stay valid.
    """

    delivery: Delivery = field(kw_only=True)
    story: Story = field(kw_only=True)


@dataclass(slots=True)
class SourceRecord(Record):
    """A failed `Record` of a source topic, with its reading."""

    story: Story = field(kw_only=True)


def retried(record: Record, story: Story) -> RetriedRecord:
    """The record as handed to a handler, from one read from a managed topic.

    `leader_epoch` stays that of the partition that was read, because it goes with the offset that is committed there.
    """
    origin = story.origin
    return RetriedRecord(
        origin.topic,
        origin.partition,
        origin.offset,
        origin.timestamp,
        record.key,
        record.value,
        foreign_headers(record.headers),
        record.leader_epoch,
        story.attempt,
        story.first_failed_at,
        delivery=Delivery(record.topic, record.partition, record.offset, record.timestamp, story.attempt),
        story=story,
    )


def story_of(record: Record) -> Story:
    """A record's story, whichever topic it was read from."""
    return record.story if isinstance(record, (RetriedRecord, SourceRecord)) else first_story(record)


def with_story(record: Record, story: Story) -> Record:
    """The record with another story. Its class may change, so it must not be passed to a handler."""
    if isinstance(record, (RetriedRecord, SourceRecord)):
        return dataclasses.replace(record, story=story)
    values = (getattr(record, each.name) for each in dataclasses.fields(Record))
    return SourceRecord(*values, story=story)


@dataclass(frozen=True, slots=True)
class Hop:
    """The record waits for attempt `attempt` in `topic`; `failure` is used if it cannot be written there."""

    topic: str
    delay_s: int
    attempt: int
    headers: HeaderList
    failure: Failure


@dataclass(frozen=True, slots=True)
class ToFailed:
    topic: str
    failure: Failure
    headers: HeaderList


def route(
    record: Record, verdict: Retry | Failure | Drop, policy: Policy | None, *, group_id: str, now_ms: int
) -> Hop | ToFailed | Drop:
    """Route `record`, which failed at `now_ms`, by the policy revision that it follows; without a policy no retries.

    Attempt k is the k-th delivery after the first. When it fails, the record waits for the k-th delay of the sequence
    (from 0), or is exhausted when there is none or its total time is over.
    """
    story = story_of(record)
    if isinstance(verdict, Drop):
        return verdict
    failure = verdict.failure
    delivery = FailedDelivery(record, failure, group_id, now_ms, story)
    if isinstance(verdict, Retry) and policy is not None:
        delay_s = next_delay(policy, story, verdict.after_s, now_ms)
        if delay_s is not None:
            topic = retry_topic(group_id, canonical_delay(delay_s))
            headers = hop_headers(delivery, policy, delay_s=delay_s)
            return Hop(topic, delay_s, story.attempt + 1, headers, failure)
    return ToFailed(failed_topic(group_id), failure, failed_headers(delivery, policy))


def next_delay(policy: Policy, story: Story, after_s: float | None, now_ms: int) -> int | None:
    """The seconds of the record's next wait; None if it is exhausted.

    A requested wait takes the shortest delay that is long enough, or else the longest; it uses up an attempt like any
    other.
    """
    if story.attempt >= len(policy.sequence) or _out_of_time(policy, story, now_ms):
        return None
    if after_s is None:
        return policy.sequence[story.attempt]
    return min((delay for delay in policy.sequence if delay >= after_s), default=max(policy.sequence))


def _out_of_time(policy: Policy, story: Story, now_ms: int) -> bool:
    """True if the total time is over. A redrive restarts it, or no old record could be redriven."""
    if policy.max_total_s is None:
        return False
    began = max(story.first_failed_at if story.first_failed_at is not None else now_ms, story.redriven_at or 0)
    return now_ms - began >= policy.max_total_s * 1000


def partition_of(key: bytes | None, origin: Origin, partitions: int) -> int | None:
    """The partition of a managed topic for a record; None: by its key, as the producer does for every topic.

    Records without a key are spread by their origin, so that all copies of a hop land in the partition that detects
    duplicates.
    """
    if key is not None:
        return None
    return zlib.crc32(f"{origin.topic}\0{origin.partition}\0{origin.offset}".encode()) % partitions
