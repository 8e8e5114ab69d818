"""Records, as returned by polls and passed to handlers, and the results that handlers may return or raise.

The package `librdkafka` creates records, and the worker handles results. Both import this module, which must not do
I/O. A poll returns runs: lists of records of one partition. Order and offsets are per partition, and passing a list has
no cost per record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    @property
    def name(self) -> str:
        """The name of the partition in messages, such as `orders-3`."""
        return f"{self.topic}-{self.partition}"


def names(partitions: Iterable[TopicPartition]) -> str:
    """Return the names of partitions for a message, separated by commas."""
    return ", ".join(part.name for part in partitions)


class TimestampType(StrEnum):
    """The type of a record's timestamp, with Java's names; set by the topic's `message.timestamp.type`."""

    NO_TIMESTAMP_TYPE = "NoTimestampType"
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


_TIMESTAMP_TYPES: Mapping[int, TimestampType] = {1: TimestampType.CREATE_TIME, 2: TimestampType.LOG_APPEND_TIME}
"""Timestamp types, keyed by their numbers in librdkafka."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The topic, partition and offset at which a record was last read, its timestamp there (milliseconds since the
    epoch), and the number of the attempt (0: first delivery). For a retried record, the coordinates and the timestamp
    differ from those of its origin."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    attempt: int


class _Source:
    """Slot for a record's librdkafka message; unset in records created from field values. The slot is not a dataclass
    field, so the message is not compared, copied, pickled or shown."""

    __slots__ = ("_message",)
    _message: Any


@dataclass(slots=True)
class Record(_Source):
    """One Kafka record, owned by its handler. Assignments to the record do not change what the worker writes or
    commits.

    `topic`, `partition`, `offset` and `timestamp` (milliseconds since the epoch, -1 if the broker gave none) are those
    of the record's origin. So idempotency keys and event times are the same in every delivery. `key` and `value` are
    bytes or None, or the result of `decode`. `headers` keep their order and duplicates. `leader_epoch` is -1 if
    unknown. `attempt` is 0 on the first delivery. `first_failed_at` is the time of the first failure in milliseconds
    since the epoch, None before a failure.
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
        """Return the fields without the message, for copies and pickles."""
        return None, {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def timestamp_type(self) -> TimestampType:
        """The type of this record's timestamp, from librdkafka's message. `NO_TIMESTAMP_TYPE` (unknown) for retried
        records, which have their origin's timestamp, and for records created from field values, copied or pickled."""
        message = getattr(self, "_message", None)
        if message is None:
            return TimestampType.NO_TIMESTAMP_TYPE
        return _TIMESTAMP_TYPES.get(message.timestamp()[0], TimestampType.NO_TIMESTAMP_TYPE)

    @property
    def delivery(self) -> Delivery:
        """The topic, partition and offset at which this record was last read, and the number of the attempt (0: first
        delivery)."""
        return Delivery(self.topic, self.partition, self.offset, self.timestamp, self.attempt)


@dataclass(frozen=True, slots=True)
class Produce:
    """A record for the worker to write, acknowledged by all in-sync replicas before the input record is committed."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Headers = ()


class HandlerVerdict(Exception):
    """Base class of the exceptions by which a handler decides a record's outcome. Raise a subclass."""


class RetryAfter(HandlerVerdict):
    """Retry this record after at least `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"retry after {seconds} s")
        self.seconds = seconds


class Fatal(HandlerVerdict):
    """Write this record to the failed topic now, with `reason`, because it can never succeed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(HandlerVerdict):
    """Drop this record on purpose. The record counts as dropped, and `reason` is logged."""

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

    # The methods below return one value per record, for batches. A polled run reads the values from librdkafka's
    # messages, and creates `Record` objects only on access to `records`.

    def values(self) -> list[Any]:
        """Return the value of each record, None for a tombstone. Values are raw bytes before the first access to
        `records`."""
        return [record.value for record in self.records]

    def keys(self) -> list[Any]:
        """Return the key of each record, None for a record without a key. Keys are decoded or raw like `values`."""
        return [record.key for record in self.records]

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]

    def timestamps(self) -> list[int]:
        """Return the timestamp of each record, in milliseconds since the epoch."""
        return [record.timestamp for record in self.records]


class Gap(NamedTuple):
    """Offsets without records in one partition, from `first` (inclusive) to `next` (exclusive)."""

    first: int
    next: int

    def behind(self, former: "Gap | None") -> "Gap":
        """Return this gap, extended to include the `former` gap if `former` ends where this gap begins."""
        return self if former is None or former.next != self.first else Gap(former.first, self.next)


@dataclass(frozen=True, slots=True)
class Records:
    """The runs of one poll; empty if no record arrived in time.

    `gaps` are offsets without records that follow the runs; the poll moved positions past them. Causes of gaps are
    transaction markers, aborted or compacted records at the end of a partition, and records that retention deleted
    before they were read.
    """

    runs: list[Run]
    gaps: Mapping[TopicPartition, Gap] = field(default_factory=dict)

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Offsets to commit once the records are done, for each partition whose position this poll moved (as in
        KIP-1094)."""
        offsets = {run.topic_partition: run.next_offset for run in self.runs}
        return offsets | {part: gap.next for part, gap in self.gaps.items()}

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[Record]:
        for run in self.runs:
            yield from run.records
