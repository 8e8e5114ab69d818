"""Records that were read ahead and not yet returned to the user.

One thread at a time reads from librdkafka (see `FetchThread`); it appends to a deque and counts the received records.
The user's thread pops from the deque and counts the taken records. No lock is needed, because appends and pops of a
deque are atomic. A run (consecutive records of one partition) is passed on as a whole, without access to its records.

Decision: docs/decisions/0021-partition-ends-and-interrupted-polls.md.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from fleet_consumer.librdkafka.fetched import FetchedRun, leader_epoch, memory_bytes
from fleet_consumer.record import Gap, Records, Run, TopicPartition

_offset: Callable[[Message], Any] = Message.offset


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """Queue entry, after the records fetched earlier: the next offset to read is outside of the broker's log, before
    its start or after its end."""

    detail: str


@dataclass(frozen=True, slots=True)
class End:
    """Queue entry: the partition currently ends at `offset`, and has no record between the last received record and
    this offset."""

    offset: int


PartitionEvent = OutOfRange | End
"""Entries of the read-ahead queue that are not runs of records."""


@dataclass(slots=True, eq=False)
class PartitionBuffer:
    """The reading of one partition, from its assignment or a seek until the next seek or the revocation.

    After that, `current` is False, and queue entries with this buffer are ignored. Only the user's thread uses the
    fields. The reader only attaches the buffer to runs.
    """

    topic_partition: TopicPartition
    position: int
    leader_epoch: int = -1
    paused: bool = False
    current: bool = True
    held: deque[list[Message] | PartitionEvent] = field(default_factory=deque)
    # True if librdkafka has stopped fetching the partition, because too many records are held back.
    on_hold: bool = False
    # True if the records held back were dropped, so that the end of the pause needs a seek.
    dropped: bool = False
    # The number of records held back by the pause, and their approximate memory.
    held_records: int = 0
    held_bytes: int = 0


class SoughtPlaces:
    """Positions to which the fetch thread, not the user, has sought; each with the leader epoch that reading had
    reached.

    librdkafka does not check such a position for a truncation of the log. The fetch thread records positions with the
    consumer's lock held; the user's thread removes them with `take`.
    """

    def __init__(self) -> None:
        self._places: dict[TopicPartition, tuple[PartitionBuffer, int, int]] = {}

    def record(self, buffer: PartitionBuffer, place: tuple[int, int]) -> tuple[int, int]:
        """Record a place (offset and leader epoch) and return it. If an earlier place of this buffer was not taken yet,
        the earlier place stays recorded instead. Only the earlier place reveals a truncation between the two."""
        known = self._places.get(buffer.topic_partition)
        if known is None or known[0] is not buffer:
            self._places[buffer.topic_partition] = (buffer, *place)
        return place

    def take(self) -> list[tuple[PartitionBuffer, int, int]]:
        return [self._places.popitem()[1] for _ in range(len(self._places))]


@dataclass(slots=True, eq=False)
class ReadAhead:
    """The queue between the reader and the user's thread, with counts for back-pressure. Only the reader writes
    `received` and `received_bytes`; only the user's thread writes `taken` and `taken_bytes`."""

    # Buffers moved by `take_records`, with their former position and leader epoch; cleared once the user has the
    # records.
    moved: list[tuple[PartitionBuffer, int, int]] = field(default_factory=list)
    # Paused partitions for which records were held back since this set was last cleared.
    held_back: set[PartitionBuffer] = field(default_factory=set)
    # Buffer, entry, and the bytes of its values.
    _queue: deque[tuple[PartitionBuffer, list[Message] | PartitionEvent, int]] = field(default_factory=deque)
    received: int = 0
    received_bytes: int = 0
    taken: int = 0
    taken_bytes: int = 0

    @property
    def waiting(self) -> int:
        return self.received - self.taken

    @property
    def pending(self) -> bool:
        """True if the queue has an entry: records, the end of a partition, or an offset out of range."""
        return bool(self._queue)

    @property
    def waiting_bytes(self) -> int:
        return self.received_bytes - self.taken_bytes

    # Called by the reader.

    def put(self, buffer: PartitionBuffer, run: list[Message], size: int) -> None:
        """Queue a run of one partition; `size` is the number of bytes to count for it."""
        # Count before the append; otherwise more records could be counted as taken than as received.
        self.received += len(run)
        self.received_bytes += size
        self._queue.append((buffer, run, size))

    def put_out_of_range(self, buffer: PartitionBuffer, detail: str) -> None:
        self._queue.append((buffer, OutOfRange(detail), 0))

    def put_end(self, buffer: PartitionBuffer, offset: int) -> None:
        self._queue.append((buffer, End(offset), 0))

    # Called by the user's thread.

    def take_back(self) -> None:
        """Restore the positions that `take_records` has moved, because the records never reached the user."""
        for buffer, position, epoch in reversed(self.moved):
            buffer.position, buffer.leader_epoch = position, epoch

    def take_records(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        """Return at most `limit` records, in the order of arrival, and move the partitions' positions past these
        records."""
        runs: list[Run] = []
        gaps: dict[TopicPartition, Gap] = {}
        room = limit
        while room and self._queue:
            buffer, run, size = self._queue[0]
            if not buffer.current or buffer.paused:
                self._set_aside()
                continue
            if isinstance(run, End):
                self._queue.popleft()
                self._pass_gap(buffer, run.offset, gaps)
                continue
            if isinstance(run, OutOfRange):
                if runs:
                    break  # Earlier records are returned first.
                self._queue.popleft()
                on_out_of_range(buffer, run)
                continue
            if len(run) > room:
                if runs:
                    break  # The next poll takes the whole run: cutting costs more than a smaller batch now.
                self._cut(room)
                continue
            self._pop(run, size)
            self.moved.append((buffer, buffer.position, buffer.leader_epoch))
            handed_out = _run(buffer, run)
            if handed_out is not None:
                runs.append(handed_out)
                room -= len(handed_out)
                if gaps:
                    gaps.pop(buffer.topic_partition, None)
        return Records(runs, gaps)

    def _pass_gap(self, buffer: PartitionBuffer, end: int, gaps: dict[TopicPartition, Gap]) -> None:
        """Move the position past offsets without records, to the end of the partition.

        The leader epoch of the last record is kept, because the epoch of the offsets without records is unknown. An
        older epoch still detects a truncation. In the worst case, a later leader wrote a transaction marker to these
        offsets, and a truncation is reported wrongly after a restart. Several ends may arrive without a record in
        between, because each aborted transaction moves the end.
        """
        first, part = buffer.position, buffer.topic_partition
        if end > first:
            self.moved.append((buffer, first, buffer.leader_epoch))
            buffer.position = end
            gaps[part] = Gap(first, end).behind(gaps.get(part))

    def release(self, buffer: PartitionBuffer) -> None:
        """Move the entries that were held back while `buffer` was paused to the head of the queue."""
        while buffer.held:
            run = buffer.held.pop()
            size = 0
            if isinstance(run, list):
                size = value_bytes(run)
                self.taken -= len(run)
                self.taken_bytes -= size
            self._queue.appendleft((buffer, run, size))
        buffer.held_records = buffer.held_bytes = 0

    def _set_aside(self) -> None:
        """Hold the first entry back until its partition's pause ends, or drop the entry if its buffer is not
        current."""
        buffer, run, size = self._queue[0]
        if isinstance(run, list):
            self._pop(run, size)
        else:
            self._queue.popleft()
        if buffer.current:
            buffer.held.append(run)
            if isinstance(run, list):
                buffer.held_records += len(run)
                buffer.held_bytes += sum(map(memory_bytes, run))
                self.held_back.add(buffer)

    def _pop(self, run: list[Message], size: int) -> None:
        self._queue.popleft()
        self.taken += len(run)
        self.taken_bytes += size

    def _cut(self, count: int) -> None:
        """Cut the first run in two. All bytes of the run are counted for the second piece, because it is safe to count
        too many bytes."""
        buffer, run, size = self._queue.popleft()
        assert isinstance(run, list)
        self._queue.appendleft((buffer, run[count:], size))
        self._queue.appendleft((buffer, run[:count], 0))


def value_bytes(run: list[Message]) -> int:
    return sum(map(len, run))


def _run(buffer: PartitionBuffer, messages: list[Message]) -> Run | None:
    """Move the position past the messages, and return them as a run. Messages before the position are removed, because
    librdkafka may have prefetched them before a seek forward. Returns None if no message remains."""
    if _offset(messages[0]) < buffer.position:
        messages = [message for message in messages if _offset(message) >= buffer.position]
        if not messages:
            return None
    buffer.position = _offset(messages[-1]) + 1
    buffer.leader_epoch = leader_epoch(messages[-1])
    return FetchedRun(buffer.topic_partition, messages)
