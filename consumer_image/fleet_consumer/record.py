"""Records: what polls return and handlers are given, and what handlers may answer.

Both the data plane, which makes records, and the worker, which handles answers, import this module. Nothing here may do
I/O. A poll returns runs, because handlers keep order and offsets per partition, and because a list that is passed on
costs nothing per record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        """The partition in messages, such as `orders-3`."""
        return f"{self.topic}-{self.partition}"


def names(partitions: Iterable[TopicPartition]) -> str:
    """Partitions in messages, separated by commas."""
    return ", ".join(part.name for part in partitions)


class TimestampType(StrEnum):
    """The meaning of a record's timestamp, in Java's words; the topic's setting `message.timestamp.type` decides it."""

    NO_TIMESTAMP_TYPE = "NoTimestampType"
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


_TIMESTAMP_TYPES: Mapping[int, TimestampType] = {1: TimestampType.CREATE_TIME, 2: TimestampType.LOG_APPEND_TIME}
"""By librdkafka's numbers."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The place and attempt at which a record was read just now; differs from the record's origin in retries."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    attempt: int


class _Source:
    """A slot for the message that a record was read from, unset in records made of fields. No field: neither compared,
    copied, pickled nor shown."""

    __slots__ = ("_message",)
    _message: Any


@dataclass(slots=True)
class Record(_Source):
    """One Kafka record, as its handler's own: what a handler assigns to it changes nothing that the worker writes or
    commits.

    `topic`, `partition`, `offset` and `timestamp` (milliseconds since the epoch, -1 when the broker gave none) are
    those of the record's origin, so that idempotency keys and event times hold in every delivery.
    `key` and `value` are bytes or None, or what `decode` made of them. `headers` keep their order and duplicates.
    `leader_epoch` is -1 when unknown. `attempt` is 0 on the first delivery; `first_failed_at` is in milliseconds.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: Headers = ()
    leader_epoch: int = -1
    attempt: int = 0
    first_failed_at: int | None = None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """For copies and pickles: the fields, and not what they were read from."""
        return None, {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def timestamp_type(self) -> TimestampType:
        """The type of the timestamp that was read with this record; `NO_TIMESTAMP_TYPE` when that is not known.

        It is read from the message on request, so it is no field. It is unknown for a record made of fields, copied or
        pickled, and for a retried one, whose timestamp is its origin's.
        """
        message = getattr(self, "_message", None)
        if message is None:
            return TimestampType.NO_TIMESTAMP_TYPE
        return _TIMESTAMP_TYPES.get(message.timestamp()[0], TimestampType.NO_TIMESTAMP_TYPE)

    @property
    def delivery(self) -> Delivery:
        """The place and attempt at which this record was read just now."""
        return Delivery(self.topic, self.partition, self.offset, self.timestamp, self.attempt)


@dataclass(frozen=True, slots=True)
class Produce:
    """A record a handler wants written: acknowledged by all in-sync replicas before the input's offset is committed."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Headers = ()


class HandlerVerdict(Exception):
    """Base of what a handler raises to decide a record's fate itself; raise one of its subclasses."""


class RetryAfter(HandlerVerdict):
    """Try this record again, no sooner than after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"retry after {seconds} s")
        self.seconds = seconds


class Fatal(HandlerVerdict):
    """This record can never succeed: put it into the failed topic now, with `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(HandlerVerdict):
    """Drop this record on purpose; it is counted as dropped, with `reason` in the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one partition in offset order; never empty."""

    topic_partition: TopicPartition
    records: list[Record]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def next_offset(self) -> int:
        """The offset to commit once all records of the run are done."""
        return self.records[-1].offset + 1

    # Columns: what batches need of all records at once. Of a run that was just polled they are read from librdkafka's
    # messages, and no `Record` is made unless somebody asks for `records`.

    def values(self) -> list[Any]:
        """The value of each record, None for a tombstone; as it was read, while `records` are not asked for."""
        return [record.value for record in self.records]

    def keys(self) -> list[Any]:
        """The key of each record, None where there is none; as `values`."""
        return [record.key for record in self.records]

    def offsets(self) -> list[int]:
        """The offset of each record."""
        return [record.offset for record in self.records]

    def timestamps(self) -> list[int]:
        """The timestamp of each record, in milliseconds since the epoch."""
        return [record.timestamp for record in self.records]


class Gap(NamedTuple):
    """Offsets of one partition, from `first` up to and without `next`, at which there is no record to read."""

    first: int
    next: int

    def behind(self, former: Gap | None) -> Gap:
        """This gap, with the `former` one if it ends where this one begins."""
        return self if former is None or former.next != self.first else Gap(former.first, self.next)


@dataclass(frozen=True, slots=True)
class Records:
    """The runs of one poll; empty when there was nothing to hand out in time.

    `gaps` are the offsets without records that the poll moved positions over, behind the runs: a partition's last
    offsets when a transaction's marker, aborted records or what compaction removed stand there, and what retention
    deleted before it was read.
    """

    runs: list[Run]
    gaps: Mapping[TopicPartition, Gap] = field(default_factory=dict)

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """For each partition that this poll moved, the offset to commit once its records are done (as KIP-1094)."""
        offsets = {run.topic_partition: run.next_offset for run in self.runs}
        return offsets | {part: gap.next for part, gap in self.gaps.items()}

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[Record]:
        for run in self.runs:
            yield from run.records
