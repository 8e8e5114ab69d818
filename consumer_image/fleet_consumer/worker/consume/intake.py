"""The filter between polls and handlers: main workers handle everything, retry workers what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

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


class Intake:
    """Stands between polls and handlers: that of main workers. Used by the consume loop's thread only."""

    present: Callable[[Record], Record | None] | None = None
    """Turns a record as it was read into the handler's, None for a copy that is passed over; None in place of the
    function where both are the same record."""

    heads: tuple[WaitingHead, ...] = ()
    """The records that are waited for now. Any thread."""

    def retell(self, record: Record) -> Record:
        """A record as its handler knows it, from the record as it was read."""
        return record

    def handling(self, handle: Handle, watch: Watch) -> Handle:
        """`handle` for a loop that calls it with records as they were read."""
        return handle

    def before_poll(self, partitions: Partitions, most_s: float) -> float:
        """Resume partitions that are due; returns how many of `most_s` seconds the next poll may wait for records."""
        return most_s

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """The records that may be handled now. Those left out are sought back to, and come again later."""
        return runs

    def not_needed(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """The offset to go on at if data at `offset` cannot be read and are not needed; None where they are."""
        return None

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more."""
