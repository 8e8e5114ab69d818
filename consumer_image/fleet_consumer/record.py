"""The words of the handler contract: what a handler is given, and what it may answer.

They stand at the bottom of the package, because the data plane makes records and the worker judges answers.
Nothing here may do I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where and as which attempt a record was read just now; differs from the record's own coordinates in retries."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    attempt: int


@dataclass(slots=True)
class Record:
    """One Kafka record. Treat it as immutable: it is not frozen only because frozen ones take twice as long to make.

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

    @property
    def delivery(self) -> Delivery:
        """Where this record was read just now."""
        return Delivery(self.topic, self.partition, self.offset, self.timestamp, self.attempt)


@dataclass(frozen=True, slots=True)
class Produce:
    """A record a handler wants written: acknowledged by all replicas before the input's offset is committed."""

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
