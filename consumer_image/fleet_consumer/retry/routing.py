"""Where a record goes that its handler did not finish: to wait for its next attempt, to the failed topic, or nowhere.

Targets come from the policy and the group, never from a record's headers. Pure: what is decided here is written by
the worker, which commits nothing of the record before that is acknowledged.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from fleet_consumer.contract.naming import canonical_delay, failed_topic, retry_topic
from fleet_consumer.contract.policies import Policy
from fleet_consumer.record import Record
from fleet_consumer.retry.delivered import story_of
from fleet_consumer.retry.failure import Drop, Failure, Retry
from fleet_consumer.retry.headers import HeaderList, Origin, Story, failed_headers, hop_headers


@dataclass(frozen=True, slots=True)
class Hop:
    """The record waits for attempt `attempt` in `topic`; `failure` is why, in case that it cannot be written there."""

    topic: str
    delay_s: int
    attempt: int
    headers: HeaderList
    failure: Failure


@dataclass(frozen=True, slots=True)
class ToFailed:
    """The record has no further attempt."""

    topic: str
    failure: Failure
    headers: HeaderList


@dataclass(frozen=True, slots=True)
class Dropped:
    """The record is done with on purpose; `message` says why."""

    message: str


def route(
    record: Record, verdict: Retry | Failure | Drop, policy: Policy | None, *, group_id: str, now_ms: int
) -> Hop | ToFailed | Dropped:
    """Where `record` goes, which failed at `now_ms`. `policy` is the revision that it follows; None has no attempts.

    Attempt k is the k-th delivery after the first. When it fails, the record waits for the k-th delay of the sequence
    (from 0), or is exhausted when there is none or its total time is over.
    """
    story = story_of(record)
    if isinstance(verdict, Drop):
        return Dropped(verdict.message)
    if isinstance(verdict, Retry) and policy is not None:
        delay_s = next_delay(policy, story, verdict.after_s, now_ms)
        if delay_s is not None:
            topic = retry_topic(group_id, canonical_delay(delay_s))
            headers = hop_headers(
                record, story, verdict.failure, policy, delay_s=delay_s, group_id=group_id, now_ms=now_ms
            )
            return Hop(topic, delay_s, story.attempt + 1, headers, verdict.failure)
    failure = verdict.failure if isinstance(verdict, Retry) else verdict
    headers = failed_headers(record, failure, group_id=group_id, now_ms=now_ms, story=story, policy=policy)
    return ToFailed(failed_topic(group_id), failure, headers)


def next_delay(policy: Policy, story: Story, after_s: float | None, now_ms: int) -> int | None:
    """The seconds that the record waits now, None when it is exhausted.

    A wait that the application asks for takes the shortest delay that is long enough, or else the longest; it uses
    up an attempt like any other.
    """
    if story.attempt >= len(policy.sequence) or _out_of_time(policy, story, now_ms):
        return None
    if after_s is None:
        return policy.sequence[story.attempt]
    return min((delay for delay in policy.sequence if delay >= after_s), default=max(policy.sequence))


def _out_of_time(policy: Policy, story: Story, now_ms: int) -> bool:
    """Whether the total time is over. A redrive begins a new one, or it would bring back nothing that is old."""
    if policy.max_total_s is None:
        return False
    began = max(story.first_failed_at if story.first_failed_at is not None else now_ms, story.redriven_at or 0)
    return now_ms - began >= policy.max_total_s * 1000


def partition_of(key: bytes | None, origin: Origin, partitions: int) -> int | None:
    """The partition of a managed topic for a record; None: by its key, as the producer does it for every topic.

    Records without a key are spread by their origin, so that each copy of a hop lands in the partition where its
    duplicate is looked for.
    """
    if key is not None:
        return None
    return zlib.crc32(f"{origin.topic}\0{origin.partition}\0{origin.offset}".encode()) % partitions
