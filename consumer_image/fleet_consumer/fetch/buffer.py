"""Records that were read ahead and not yet handed out.

The reader of librdkafka appends, the user's thread takes. Counts of what came in are written by the reader
(`FetchThread` admits one at a time), counts of what went out by the user's thread; the queue between them is a deque,
whose appends and pops are atomic. Runs go through whole; no record is touched before it is handed out.
"""

from __future__ import annotations

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
    """The broker no longer (or not yet) has the requested offset; queued behind earlier records."""

    detail: str


@dataclass(frozen=True, slots=True)
class End:
    """The partition ends at this offset, and holds no record between the last one that came before this and there."""

    offset: int


News = OutOfRange | End
"""Queue entries that are no runs."""


@dataclass(slots=True, eq=False)
class PartitionBuffer:
    """One partition during one ownership or since one seek. A new one replaces it, and what it still holds is void.

    Belongs to the user's thread; a reader only carries a reference, to label a run.
    """

    topic_partition: TopicPartition
    position: int
    leader_epoch: int = -1
    paused: bool = False
    current: bool = True
    held: deque[list[Message] | News] = field(default_factory=deque)
    # librdkafka has stopped fetching it, because too much is held.
    on_hold: bool = False
    # Its held records were dropped since: seek when the pause ends.
    dropped: bool = False
    # The number of records held back by the pause, and about how many bytes of memory they take.
    held_records: int = 0
    held_bytes: int = 0


class SoughtPlaces:
    """The places at which partitions were read again without the user, each with the leader epoch reached by then.

    librdkafka does not check if the log still has what was read up to a place that is sought. Noted with the turn in
    hand, taken by the user's thread.
    """

    def __init__(self) -> None:
        self._places: dict[TopicPartition, tuple[PartitionBuffer, int, int]] = {}

    def note(self, buffer: PartitionBuffer, place: tuple[int, int]) -> tuple[int, int]:
        """Note and return a place. The oldest one that was not taken stays: a later one may be behind a cut already."""
        noted = self._places.get(buffer.topic_partition)
        if noted is None or noted[0] is not buffer:
            self._places[buffer.topic_partition] = (buffer, *place)
        return place

    def take(self) -> list[tuple[PartitionBuffer, int, int]]:
        return [self._places.popitem()[1] for _ in range(len(self._places))]


@dataclass(slots=True, eq=False)
class ReadAhead:
    """The queue between the reader and the user's thread, with the counts that make back-pressure.

    `received…` are written by readers, `taken…` by the user's thread; the difference is waiting.
    """

    # Buffers whose position `take` moved, with the former position and leader epoch, until the user has the records.
    moved: list[tuple[PartitionBuffer, int, int]] = field(default_factory=list)
    # Paused partitions of which records were held back since this was last cleared.
    held_back: set[PartitionBuffer] = field(default_factory=set)
    # Buffer, entry, and the number of bytes of its values.
    _queue: deque[tuple[PartitionBuffer, list[Message] | News, int]] = field(default_factory=deque)
    received: int = 0
    received_bytes: int = 0
    taken: int = 0
    taken_bytes: int = 0

    @property
    def waiting(self) -> int:
        return self.received - self.taken

    @property
    def pending(self) -> bool:
        """True while anything waits to be taken: records, an end or an error of a partition."""
        return bool(self._queue)

    @property
    def waiting_bytes(self) -> int:
        return self.received_bytes - self.taken_bytes

    # The reader's side.

    def put(self, buffer: PartitionBuffer, run: list[Message], size: int) -> None:
        """Queue a run of one partition; `size` is the number of bytes to count for it."""
        # The counts go first: the other order could let the taker see fewer received than taken.
        self.received += len(run)
        self.received_bytes += size
        self._queue.append((buffer, run, size))

    def put_out_of_range(self, buffer: PartitionBuffer, detail: str) -> None:
        self._queue.append((buffer, OutOfRange(detail), 0))

    def put_end(self, buffer: PartitionBuffer, offset: int) -> None:
        """Report that a partition ends at `offset`, with no record between the last one queued and there."""
        self._queue.append((buffer, End(offset), 0))

    # The user's side.

    def take_back(self) -> None:
        """Put positions back to where they were before a `take` whose records never reached the user."""
        for buffer, position, epoch in reversed(self.moved):
            buffer.position, buffer.leader_epoch = position, epoch

    def take(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        """Hand out at most `limit` records, in the order in which they came, and move positions past them."""
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
                    break  # Records that came before it are handed out first.
                self._queue.popleft()
                on_out_of_range(buffer, run)
                continue
            if len(run) > room:
                if runs:
                    break  # The next poll takes it whole: cutting costs more than a smaller batch now.
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
        """Move the position to the end of the partition. The leader epoch stays that of the last record: that of the
        gap is unknown, and an epoch that is too old still detects a log that was cut.

        An end may come several times with no record in between: each transaction that is aborted moves it."""
        first, part = buffer.position, buffer.topic_partition
        if end > first:
            self.moved.append((buffer, first, buffer.leader_epoch))
            buffer.position = end
            gaps[part] = Gap(first, end).behind(gaps.get(part))

    def release(self, buffer: PartitionBuffer) -> None:
        """Queue again, in front, what was held back while `buffer` was paused."""
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
        """Take the first entry out of the way: it is void, or of a paused partition."""
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
        """Cut the first run in two. Its bytes count until the second part goes: too many is the safe side."""
        buffer, run, size = self._queue.popleft()
        assert isinstance(run, list)
        self._queue.appendleft((buffer, run[count:], size))
        self._queue.appendleft((buffer, run[:count], 0))


def value_bytes(run: list[Message]) -> int:
    return sum(map(len, run))


def _run(buffer: PartitionBuffer, messages: list[Message]) -> Run | None:
    """A run of messages, with the position moved behind it; one that begins before the position is trimmed to it.

    (After a seek forward within what librdkafka had prefetched, nothing older may come out.)
    """
    if _offset(messages[0]) < buffer.position:
        messages = [message for message in messages if _offset(message) >= buffer.position]
        if not messages:
            return None
    buffer.position = _offset(messages[-1]) + 1
    buffer.leader_epoch = leader_epoch(messages[-1])
    return FetchedRun(buffer.topic_partition, messages)
