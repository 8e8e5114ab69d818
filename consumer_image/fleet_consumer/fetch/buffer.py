"""Records that were read ahead and not yet returned to the user.

The thread that reads from librdkafka (`FetchThread` admits one at a time) appends to a deque and counts the received
records. The user's thread pops from the deque and counts the taken records. No lock is needed, because appends and pops
of a deque are atomic. A run is passed on as a whole; none of its records is touched before it is returned.

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
    """Queue entry behind the records that were fetched before it: the broker no longer has the next offset, or does not
    have it yet."""

    detail: str


@dataclass(frozen=True, slots=True)
class End:
    """Queue entry: the partition ends at `offset`, and no record follows the last received record."""

    offset: int


PartitionEvent = OutOfRange | End
"""Entries of the read-ahead queue that are not runs of records."""


@dataclass(slots=True, eq=False)
class PartitionBuffer:
    """One partition, from its assignment or a seek until the next seek or revocation. Afterwards, `current` is False,
    and queue entries with this buffer are ignored. Belongs to the user's thread; readers only label runs with it."""

    topic_partition: TopicPartition
    position: int
    leader_epoch: int = -1
    paused: bool = False
    current: bool = True
    held: deque[list[Message] | PartitionEvent] = field(default_factory=deque)
    # librdkafka has stopped fetching the partition, because too many records are held back.
    on_hold: bool = False
    # The records held back were dropped, so the end of the pause needs a seek.
    dropped: bool = False
    # The number of records held back by the pause, and their approximate memory.
    held_records: int = 0
    held_bytes: int = 0


class SoughtPlaces:
    """The positions at which the fetch thread has started reading partitions again without a seek by the user, each
    with the leader epoch reached by then.

    librdkafka does not check whether the log was truncated before a sought position. Positions are recorded with the
    consumer's lock held, and taken by the user's thread.
    """

    def __init__(self) -> None:
        self._places: dict[TopicPartition, tuple[PartitionBuffer, int, int]] = {}

    def record(self, buffer: PartitionBuffer, place: tuple[int, int]) -> tuple[int, int]:
        """Record a place (offset and leader epoch) and return it. If an earlier place of this buffer still waits, it is
        kept instead, because a later place would not reveal a truncation before it."""
        known = self._places.get(buffer.topic_partition)
        if known is None or known[0] is not buffer:
            self._places[buffer.topic_partition] = (buffer, *place)
        return place

    def take(self) -> list[tuple[PartitionBuffer, int, int]]:
        return [self._places.popitem()[1] for _ in range(len(self._places))]


@dataclass(slots=True, eq=False)
class ReadAhead:
    """The queue between the reader and the user's thread, with counts for back-pressure. Readers write `received` and
    `received_bytes`, the user's thread `taken` and `taken_bytes`."""

    # Buffers moved by `take_records`, with the former position and leader epoch, until the user has the records.
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
        """True if the queue has an entry: records, or the end or an error of a partition."""
        return bool(self._queue)

    @property
    def waiting_bytes(self) -> int:
        return self.received_bytes - self.taken_bytes

    # Called by the reader.

    def put(self, buffer: PartitionBuffer, run: list[Message], size: int) -> None:
        """Queue a run of one partition; `size` is the number of bytes to count for it."""
        # Counted before the append; otherwise the user's thread could see fewer received than taken records.
        self.received += len(run)
        self.received_bytes += size
        self._queue.append((buffer, run, size))

    def put_out_of_range(self, buffer: PartitionBuffer, detail: str) -> None:
        self._queue.append((buffer, OutOfRange(detail), 0))

    def put_end(self, buffer: PartitionBuffer, offset: int) -> None:
        self._queue.append((buffer, End(offset), 0))

    # Called by the user's thread.

    def take_back(self) -> None:
        """Restore the positions that `take_records` has moved, because its records never reached the user."""
        for buffer, position, epoch in reversed(self.moved):
            buffer.position, buffer.leader_epoch = position, epoch

    def take_records(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        """Return at most `limit` records, in the order of arrival, and move positions past them."""
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
                    break  # The next poll takes the whole run, because cutting it costs more than a smaller batch now.
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

        The leader epoch stays that of the last record: the gap's epoch is unknown, and an older epoch still detects a
        truncation. At worst, after a restart, a transaction marker that a later leader wrote is reported as truncated.
        Several ends may arrive without a record in between, because each aborted transaction moves the end.
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
        """Hold the first entry back until the pause of its partition ends, or drop it if its buffer is not current."""
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
        """Cut the first run in two. The second piece counts for all bytes of the run, because overcounting is safe."""
        buffer, run, size = self._queue.popleft()
        assert isinstance(run, list)
        self._queue.appendleft((buffer, run[count:], size))
        self._queue.appendleft((buffer, run[:count], 0))


def value_bytes(run: list[Message]) -> int:
    return sum(map(len, run))


def _run(buffer: PartitionBuffer, messages: list[Message]) -> Run | None:
    """Move the position past the messages. Returns them as a run without those before the position, which librdkafka
    may have prefetched before a seek forward; None if no message remains."""
    if _offset(messages[0]) < buffer.position:
        messages = [message for message in messages if _offset(message) >= buffer.position]
        if not messages:
            return None
    buffer.position = _offset(messages[-1]) + 1
    buffer.leader_epoch = leader_epoch(messages[-1])
    return FetchedRun(buffer.topic_partition, messages)
