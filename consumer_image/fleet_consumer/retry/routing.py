"""Destination of a failed record (retry topic, failed topic or none), and the handler's view of records of managed
topics.

Target topics come from the policy and the group, never from a record's headers. No I/O: the worker writes the record,
and commits its offset only after the acknowledgement.
"""

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
    RetryHistory,
    failed_headers,
    first_history,
    foreign_headers,
    retry_headers,
)


@dataclass(slots=True)
class RetriedRecord(Record):
    """A `Record` with its origin's topic, partition and offset. `delivery` is the place where the record was read;
    `history` is its retry history.

    Handlers get the same coordinates, timestamp, key, value and headers in every delivery, so that idempotency keys,
    event times and forwarded headers stay valid.
    """

    delivery: Delivery = field(kw_only=True)
    history: RetryHistory = field(kw_only=True)


@dataclass(slots=True)
class SourceRecord(Record):
    """A failed `Record` of a source topic, with its replay epoch."""

    history: RetryHistory = field(kw_only=True)


def retried(record: Record, history: RetryHistory) -> RetriedRecord:
    """Convert a record of a managed topic to the record that the handler gets. Its `leader_epoch` is still that of the
    managed topic's partition, because offsets are committed for that partition."""
    origin = history.origin
    return RetriedRecord(
        origin.topic,
        origin.partition,
        origin.offset,
        origin.timestamp,
        record.key,
        record.value,
        foreign_headers(record.headers),
        record.leader_epoch,
        history.attempt,
        history.first_failed_at,
        delivery=Delivery(record.topic, record.partition, record.offset, record.timestamp, history.attempt),
        history=history,
    )


def history_of(record: Record) -> RetryHistory:
    return record.history if isinstance(record, (RetriedRecord, SourceRecord)) else first_history(record)


def with_history(record: Record, history: RetryHistory) -> Record:
    """Return the record with another retry history. Handlers must not get this record, because its class may differ."""
    if isinstance(record, (RetriedRecord, SourceRecord)):
        return dataclasses.replace(record, history=history)
    values = (getattr(record, each.name) for each in dataclasses.fields(Record))
    return SourceRecord(*values, history=history)


@dataclass(frozen=True, slots=True)
class ToRetry:
    """The record is written to `topic` for attempt `attempt`. `failure` is used if the write to this topic fails."""

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
) -> ToRetry | ToFailed | Drop:
    """Route a record that failed at `now_ms` by its policy revision. Without a policy the record is not retried.

    Attempt k is the k-th delivery after the first. After the failure of attempt k, the record waits for delay k of the
    sequence (counted from 0). If the sequence has no delay k, or the record's total time has passed, the record is
    exhausted.
    """
    history = history_of(record)
    if isinstance(verdict, Drop):
        return verdict
    failure = verdict.failure
    delivery = FailedDelivery(record, failure, group_id, now_ms, history)
    if isinstance(verdict, Retry) and policy is not None:
        delay_s = next_delay(policy, history, verdict.after_s, now_ms)
        if delay_s is not None:
            topic = retry_topic(group_id, canonical_delay(delay_s))
            headers = retry_headers(delivery, policy, delay_s=delay_s)
            return ToRetry(topic, delay_s, history.attempt + 1, headers, failure)
    return ToFailed(failed_topic(group_id), failure, failed_headers(delivery, policy))


def next_delay(policy: Policy, history: RetryHistory, after_s: float | None, now_ms: int) -> int | None:
    """Return the record's next delay in seconds; None if it is exhausted.

    If the handler requested a delay, the result is the shortest delay of the sequence that is not below the requested
    delay. If all delays are shorter, the result is the longest delay. Such a retry uses up an attempt as well.
    """
    if history.attempt >= len(policy.sequence) or _out_of_time(policy, history, now_ms):
        return None
    if after_s is None:
        return policy.sequence[history.attempt]
    return min((delay for delay in policy.sequence if delay >= after_s), default=max(policy.sequence))


def _out_of_time(policy: Policy, history: RetryHistory, now_ms: int) -> bool:
    """Return True if the record's total time has passed. A redrive restarts the total time; otherwise old records could
    not be redriven."""
    if policy.max_total_s is None:
        return False
    began = max(history.first_failed_at if history.first_failed_at is not None else now_ms, history.redriven_at or 0)
    return now_ms - began >= policy.max_total_s * 1000


def partition_of(key: bytes | None, origin: Origin, partitions: int) -> int | None:
    """Return the partition of a managed topic for a record; None lets the producer choose it by the key. Records
    without a key are spread by their origin, so that the reader of one partition sees all copies of a retry publish."""
    if key is not None:
        return None
    return zlib.crc32(f"{origin.topic}\0{origin.partition}\0{origin.offset}".encode()) % partitions
