"""Destination of a failed record: a retry topic, the failed topic, or none.

Targets come from the policy and the group, never from a record's headers. Pure: the worker writes the record, and
commits nothing of it before that is acknowledged.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from fleet_consumer.contract.naming import canonical_delay, failed_topic, retry_topic
from fleet_consumer.contract.policies import Policy
from fleet_consumer.record import Record
from fleet_consumer.retry.delivered import story_of
from fleet_consumer.retry.failure import Drop, Failure, Retry
from fleet_consumer.retry.headers import FailedDelivery, HeaderList, Origin, Story, failed_headers, hop_headers


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
    """The record has no attempt left."""

    topic: str
    failure: Failure
    headers: HeaderList


@dataclass(frozen=True, slots=True)
class Dropped:
    """The record is dropped on purpose; `message` says why."""

    message: str


def route(
    record: Record, verdict: Retry | Failure | Drop, policy: Policy | None, *, group_id: str, now_ms: int
) -> Hop | ToFailed | Dropped:
    """Route `record`, which failed at `now_ms`, by the policy revision that it follows; without a policy no retries.

    Attempt k is the k-th delivery after the first. When it fails, the record waits for the k-th delay of the sequence
    (from 0), or is exhausted when there is none or its total time is over.
    """
    story = story_of(record)
    if isinstance(verdict, Drop):
        return Dropped(verdict.message)
    failure = verdict.failure if isinstance(verdict, Retry) else verdict
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
