"""Handling beside the loop's thread: in several threads, in an event loop, or on whole batches.

The loop's thread polls, and never waits for a handler. It takes records up, keeps the order that keys ask for
(`KeyOrder`), gives an executor as many jobs as it has calls, writes what comes back, and commits. A record stands in
its partition's `unfinished` from the moment it is taken up, so the committable offset is that of the first record that
is not finished, however many behind it are.

Bounded: records that wait or are being handled (`pending_max`), and for each partition those behind its first
unfinished one (`window`): past that the partition is paused, so one slow record neither fills memory nor stops others.

What leaves with its partition: waiting records are forgotten, except those below one that has begun, which are handled
still as long as there is time, because everything from the first unfinished record on would be repeated by the next
owner. What comes back for a partition that is gone meanwhile moves nothing: it is recognised by its progress object.

While the breaker is open nothing new begins. A record that comes back failed and has to stay is parked: unfinished, its
order key still taken, so that those behind it wait; it is the first to be handled again when the pacing lets one
through. So is a record whose handler is deployed wrong (`is_endpoints`), for a few seconds; others are tried
meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from fleet_consumer.handlers.executor import Executor
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.retry.failure import is_endpoints
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.loop import POLL_TIMEOUT_S, Loop
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.pending import Calls, Concurrency, Pending, Work
from fleet_consumer.worker.consume.progress import SUSPECT, WINDOW_FULL, PartitionProgress, Partitions


class Suspects:
    """The partitions of one loop that ask for care; they are paused until it ends.

    One part of one partition is handed out at a time, and nothing beside it: should the process die, it is known with
    which records. Other records of these partitions wait aside; after each part the loop's remaining records have a
    turn. So they have while records of a part are parked: the part is not through, and what is behind it waits.
    """

    def __init__(self, parts: LoopParts, loop: Loop, pending: Pending, calls: Calls, concurrency: Concurrency) -> None:
        self._parts = parts
        self._loop = loop
        self._notes = loop.notes
        self._pending = pending
        self._calls = calls
        self._batch = concurrency.batch
        self.aside: dict[TopicPartition, list[Record]] = {}
        """The records that wait for care."""
        # The partition of which a part is in hand by itself, how many records that has, and since when.
        self._alone: tuple[PartitionProgress, int, float] | None = None
        # Of the part in hand, what no call has taken yet.
        self._waiting: deque[Work] = deque()
        # Whether records of it came back to be handled again; others are handled beside them from then on.
        self._parked = False
        self._turn_of_others = False

    def put_aside(self, run: Run) -> None:
        """Have a run wait for its turns; its partition is not read meanwhile."""
        partition = self._loop.partitions.get(run.topic_partition)
        if partition is not None:
            if run.topic_partition not in self.aside:
                # Wherever the last poll ended: no commit may go back to offsets between that were deleted.
                first = as_read(run.records[0])
                partition.handled(first.offset - 1, first.leader_epoch)
            self.aside.setdefault(run.topic_partition, []).extend(run.records)
            self._parts.pauses.pause(run.topic_partition, SUSPECT)

    def others_may_go(self, *, stopping: bool) -> bool:
        """Go on with what waits aside; False while it has to be in hand alone, or waits for the others' end."""
        if self._alone is not None:
            self._issue()
            if self._waiting or (self._calls.out and not self._parked):
                return False
            self._parked = self._is_in_hand(self._alone[0])
            if self._parked:
                return True
            self._come_back(*self._alone)
        if not self.aside or stopping or self._loop.pace is Pace.STOP:
            return True
        if self._turn_of_others:
            self._turn_of_others = False
            return True
        if self._calls.out:
            return False
        partitions = self._loop.partitions
        topic_partition = min(self.aside, key=lambda each: self._notes.deaths(partitions[each]))
        if partitions[topic_partition].unfinished:
            return True  # what it has written is not acknowledged yet
        if not self._hand_out(partitions[topic_partition]):
            return True
        self._issue()
        return False

    def take_waiting(self, partitions: Collection[PartitionProgress]) -> list[Work]:
        """Take out what no call has taken yet of a part of these partitions."""
        gone = [work for work in self._waiting if work.partition in partitions]
        if gone:
            self._waiting.clear()  # all of them are of one partition
        return gone

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what waits aside of these partitions."""
        for topic_partition in partitions:
            self.aside.pop(topic_partition, None)

    def _issue(self) -> None:
        while self._waiting and self._calls.out < self._calls.limit(self._loop.pace):
            work = self._waiting.popleft()
            self._pending.begin(work)
            self._calls.give(work)

    def _hand_out(self, partition: PartitionProgress) -> bool:
        """Begin with the next part of what waits aside. True when any of it is in hand now."""
        records = self.aside[partition.topic_partition]
        probe = self._loop.pace is Pace.PROBE
        most = 1 if probe else len(records) if self._batch else _side_by_side(records)
        count, error = self._notes.take(partition, records[:most])
        if not count:
            return False
        works = self._pending.works(partition, records[:count])
        del records[:count]
        self._alone = partition, count, self._parts.clock.monotonic()
        for work in works:
            # Without an order key: nothing of their partition is anywhere else, and no two of them have one key.
            work.order_key = None
            if error is None:
                self._waiting.append(work)
            else:
                self._calls.conclude(work, error)
        return True

    def _is_in_hand(self, partition: PartitionProgress) -> bool:
        """True while records of the part are not through their handler."""
        return self._loop.owns(partition) and any(not each.handled for each in partition.unfinished)

    def _come_back(self, partition: PartitionProgress, count: int, began: float) -> None:
        self._alone, self._turn_of_others = None, True
        topic_partition = partition.topic_partition
        if not self._loop.owns(partition):
            return
        self._notes.came_back(partition, count, self._parts.clock.monotonic() - began)
        records = self.aside.get(topic_partition, [])
        if topic_partition not in self._notes.careful or not records:
            self.aside.pop(topic_partition, None)
            self._parts.pauses.resume(topic_partition, SUSPECT)
            if records:
                self._pending.take_up(partition, records)
            self._loop.committing.soon()


def _side_by_side(records: Sequence[Record]) -> int:
    """Number of first records that may be in hand in any order: one of each key."""
    keys = set[Any]()
    for count, record in enumerate(records):
        if (key := as_read(record).key) is not None and key in keys:
            return count
        keys.add(key)
    return len(records)


ENDPOINT_PAUSE_S: Final = 5.0
"""A record whose handler is deployed wrong is tried again so much later."""

SHORT_POLL_S: Final = 0.02
"""Timeout of a poll while acknowledgements, or records for free calls, are awaited: they do not end it."""


class ConcurrentRounds:
    """The rounds of a loop with an executor, which its owner starts."""

    def __init__(self, loop: Loop, parts: LoopParts, executor: Executor, concurrency: Concurrency) -> None:
        self._loop = loop
        self._parts = parts
        self._writing = parts.writing
        self._stats = parts.stats
        self._clock = parts.clock
        self._concurrency = concurrency
        self._calls = Calls(executor, parts.consumer)
        self._pending = Pending(parts.intake, parts.skips, concurrency, self._calls.report)
        self._suspects = Suspects(parts, loop, self._pending, self._calls, concurrency)
        self._open_writes = False

    @property
    def in_flight(self) -> int:
        return self._pending.in_flight

    @property
    def busy(self) -> bool:
        return bool(self.in_flight or self._pending.parked or self._suspects.aside)

    def drain(self) -> None:
        """Let what has begun come to its end. Polls go on, so the membership is kept however long it takes."""
        self._forget_waiting(dict(self._loop.partitions))
        # Anything in flight is with the executor, or may still get there.
        while self._calls.out or (self.in_flight and self._goes_on()):
            if self._loop.drain_over:
                return
            self._loop.step()

    def _goes_on(self) -> bool:
        """True while what has been taken up may begin: no breaker is open, and the handler is not deployed wrong."""
        return self._loop.pace is Pace.FULL and not self._pending.stands(self._clock.monotonic())

    def receive(self) -> Records:
        """Records that are there, or else a wait for whatever comes first.

        Results of the executor end a poll for records a little late, and one that takes none at once; but records do
        not end the latter. So with records in flight the first only looks, and the second waits: for long only while
        every call is taken, because then no new record could begin anyway.
        """
        limit = self._limit()
        wait_s = self._parts.intake.before_poll(self._loop.partitions, POLL_TIMEOUT_S)
        if not self.in_flight:
            return self._loop.poll(min(SHORT_POLL_S, wait_s) if self._open_writes else wait_s, max_records=limit)
        records = self._loop.poll(0.0, max_records=limit) if limit else Records([])
        if not records and not records.gaps and not self._calls.came_back:
            idle = self._open_writes or self._calls.out < self._calls.limit(self._loop.pace)
            self._loop.poll(min(SHORT_POLL_S, wait_s) if idle else wait_s, max_records=0)
        return records

    def _limit(self) -> int:
        if self._loop.draining:
            return 0
        room = max(0, self._concurrency.pending_max - self.in_flight)
        if self._loop.pace is Pace.PROBE:
            return 0 if self.in_flight or self._pending.parked else min(room, 1)
        return min(room, self._concurrency.poll_max)

    def handle(self, runs: list[Run], careful: list[Run]) -> None:
        if not self._loop.draining:
            for run in runs:
                self._pending.take_up(self._loop.partitions[run.topic_partition], run.records)
            for run in careful:
                self._suspects.put_aside(run)
        self._stats.batches += bool(runs)
        wrote = self._take_back()
        if self._parts.consumer.holds_session():
            # In doubt another member may own the records; either a heartbeat gets through, or they are lost.
            self._issue()
        self._open_writes = self._writing.tend(self._loop.partitions) or wrote
        self._regulate()

    def _issue(self) -> None:
        """Give the executor what may begin."""
        if not self._suspects.others_may_go(stopping=self._loop.draining):
            return
        pace = self._loop.pace
        now = self._clock.monotonic()
        while self._calls.out < self._calls.limit(pace) and (work := self._pending.next(pace, now)) is not None:
            self._calls.give(work)

    def _take_back(self) -> bool:
        """Take in what came back from the executor; whether any of it is being written now."""
        wrote = False
        for work, results, seconds in self._calls.take_back():
            self._pending.in_flight -= len(work.entries)
            self._stats.handling.observe(seconds)
            staying = []
            if self._loop.owns(work.partition):
                for entry, result in zip(work.entries, results, strict=True):
                    if not self._parts.outcomes.conclude(entry, result):
                        staying.append(entry)
                    elif entry.writes:
                        wrote = True
                wrong = any(result.error is not None and is_endpoints(result.error) for result in results)
                not_before = self._clock.monotonic() + ENDPOINT_PAUSE_S if wrong else float("-inf")
                self._pending.came_back(work, staying, self._loop.pace, not_before)
                if staying or self._loop.pace is Pace.PROBE:
                    self._loop.adjust_pace()
            else:
                self._pending.abandon(work)
                self._stats.abandoned += len(work.entries)
        return wrote

    def _regulate(self) -> None:
        """Pause partitions whose window is full, until it is half empty."""
        window = self._concurrency.window
        for topic_partition, partition in self._loop.partitions.items():
            behind = len(partition.unfinished)
            full = WINDOW_FULL in self._parts.pauses.reasons.get(topic_partition, ())
            if behind >= window and not full:
                self._parts.pauses.pause(topic_partition, WINDOW_FULL)
            elif full and behind <= window // 2:
                self._parts.pauses.resume(topic_partition, WINDOW_FULL)

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        """True while any record of this partition is taken up and not through its handler."""
        return any(not each.handled for each in partition.unfinished)

    def finish(self, going: Partitions, timeout_s: float) -> None:
        # What has begun comes back first, then its writes are seen through.
        self._forget_waiting(going)
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._take_back()
            self._issue()
            left = deadline - self._clock.monotonic()
            if (
                left <= 0
                or not (self._calls.out or self._goes_on())
                or not any(self.has_in_hand(partition) for partition in going.values())
            ):
                break
            self._calls.wait(min(left, POLL_TIMEOUT_S))
        self._writing.finish(going, max(0.0, deadline - self._clock.monotonic()))

    def _forget_waiting(self, going: Partitions) -> None:
        """Drop what nobody has begun; kept is only what stands before a record that has begun."""
        partitions = set(going.values())
        self._suspects.forget(going)
        gone = self._pending.take_unbegun(partitions) + self._suspects.take_waiting(partitions)
        self._pending.drop(gone, partitions)

    def forget(self, gone: Partitions) -> None:
        """Drop whatever waits of partitions that are gone; what is with the executor comes back to nothing, and is not
        sent to its handler if it has not been yet."""
        partitions = set(gone.values())
        for partition in partitions:
            partition.gone = True
        self._suspects.forget(gone)
        self._pending.forget(partitions, self._suspects.take_waiting(partitions))
