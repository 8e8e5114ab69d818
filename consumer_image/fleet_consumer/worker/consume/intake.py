"""What the consume loop may handle of what polls bring: all of it, unless the worker reads retry topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.worker.consume.outcomes import Handle
from fleet_consumer.worker.consume.progress import Partitions
from fleet_consumer.worker.lifecycle.watchdog import Watch


@dataclass(frozen=True, slots=True)
class WaitingHead:
    """The record at which a partition of a retry topic waits, and when it is due (wall clock, seconds)."""

    topic: str
    partition: int
    offset: int
    due_at: float


class Intake(Protocol):
    """Stands between polls and handlers. Used by the consume loop's thread only, except `heads`."""

    present: Callable[[Record], Record | None] | None
    """From a record as it was read to what its handler is given, None for a copy that is passed over; None in place of
    the function where both are the same record."""

    @property
    def heads(self) -> tuple[WaitingHead, ...]:
        """What is waited for now. Any thread."""
        ...

    def retell(self, record: Record) -> Record:
        """A record as its handler knows it, from the record as it was read."""
        ...

    def handling(self, handle: Handle, watch: Watch) -> Handle:
        """`handle` for a loop that calls it with records as they were read."""
        ...

    def before_poll(self, partitions: Partitions, most_s: float) -> float:
        """See to partitions whose time has come; how many of `most_s` seconds the next poll may wait for records."""
        ...

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """What of these may be handled now. What is left out is sought back to, and comes again later."""
        ...

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are not ours any more."""
        ...


class Everything:
    """The intake of main workers."""

    present: Callable[[Record], Record | None] | None = None
    heads = ()

    def retell(self, record: Record) -> Record:
        """The same."""
        return record

    def handling(self, handle: Handle, watch: Watch) -> Handle:
        """`handle` itself: nothing stands between a record and its handler."""
        return handle

    def before_poll(self, partitions: Partitions, most_s: float) -> float:
        """Nothing has a time of its own."""
        return most_s

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """All of it."""
        return runs

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is remembered."""
