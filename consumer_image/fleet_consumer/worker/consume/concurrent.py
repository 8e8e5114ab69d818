"""Handling outside the loop's thread: in several threads, in an event loop, or in batches.

The loop's thread polls and never waits for a handler. It admits records, preserves the order per key (`KeyOrder`),
keeps the executor's slots busy, writes outputs and commits. Every admitted record is in its partition's `unfinished`.
The committable offset is that of the first unfinished record, even if many later records are finished. Records without
a key are handled in any order. If they were handled one at a time, `concurrency` would be useless for topics without
keys.

Two limits apply. `pending_max` limits all records that wait or are being handled. `window` limits the records from a
partition's first unfinished record on. A partition with a full window is paused, so one slow record neither fills the
memory nor stops other partitions.

On revocation, a waiting record is dropped if no later record of its partition has started. Otherwise the waiting record
is still handled while time remains, because the next owner repeats everything from the first unfinished record on.
Results for a partition that is no longer owned are ignored.

While the breaker is open, no call starts. A failed record that must be handled again is parked. It stays unfinished and
keeps its order key, so later records with the same key wait. When calls start again, parked records are handled first.
A record whose handler is misconfigured (`is_endpoints`) is parked for a few seconds, while other records are tried.

Decision: docs/decisions/0010-handler-execution.md.
"""

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
from fleet_consumer.worker.consume.progress import CRASH_GUARD, WINDOW_FULL, PartitionProgress, Partitions


class CarefulPartitions:
    """The partitions of one loop that need careful handling (`crash_guard`). They are paused until their handling ends.

    Only a few records of one partition (a chunk) are handled at a time. If the process dies, the crash marker names
    these records. The later records of these partitions are put aside. All other partitions get one round after each
    chunk. They also continue while records of the chunk are parked. The next chunk starts only after all records of the
    previous chunk have been handled.
    """

    def __init__(self, parts: LoopParts, loop: Loop, pending: Pending, calls: Calls, concurrency: Concurrency) -> None:
        self._parts = parts
        self._loop = loop
        self._crash_markers = loop.crash_markers
        self._pending = pending
        self._calls = calls
        self._batch = concurrency.batch
        self.aside: dict[TopicPartition, list[Record]] = {}
        # The chunk being handled: its partition, number of records, and start (monotonic seconds).
        self._alone: tuple[PartitionProgress, int, float] | None = None
        # Work of this chunk that waits for a free slot of the executor.
        self._waiting: deque[Work] = deque()
        # True while records of this chunk are parked for another attempt, and other partitions' records are handled.
        self._parked = False
        self._others_next = False

    def put_aside(self, run: Run) -> None:
        partition = self._loop.partitions.get(run.topic_partition)
        if partition is not None:
            if run.topic_partition not in self.aside:
                # Move the position to this run. Earlier offsets may be deleted and must not be committed.
                first = as_read(run.records[0])
                partition.handled(first.offset - 1, first.leader_epoch)
            self.aside.setdefault(run.topic_partition, []).extend(run.records)
            self._parts.pauses.pause(run.topic_partition, CRASH_GUARD)

    def others_may_go(self, *, stopping: bool) -> bool:
        """Advance the careful handling, and return True if records of the other partitions may start now.

        Returns False while a chunk is being handled, and while the next chunk waits for running calls to finish.
        """
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
        if self._others_next:
            self._others_next = False
            return True
        if self._calls.out:
            return False
        partitions = self._loop.partitions
        topic_partition = min(self.aside, key=lambda each: self._crash_markers.deaths(partitions[each]))
        if partitions[topic_partition].unfinished:
            return True  # some writes of this partition are not acknowledged yet
        if not self._hand_out(partitions[topic_partition]):
            return True
        self._issue()
        return False

    def take_waiting(self, partitions: Collection[PartitionProgress]) -> list[Work]:
        """Remove and return the work of these partitions for which no call has started."""
        gone = [work for work in self._waiting if work.partition in partitions]
        if gone:
            self._waiting.clear()  # all waiting work belongs to a single partition
        return gone

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            self.aside.pop(topic_partition, None)

    def _issue(self) -> None:
        while self._waiting and self._calls.out < self._calls.limit(self._loop.pace):
            work = self._waiting.popleft()
            self._pending.record_call(work)
            self._calls.give(work)

    def _hand_out(self, partition: PartitionProgress) -> bool:
        """Start the next chunk of a partition's records that were put aside. Returns False if no record may start."""
        records = self.aside[partition.topic_partition]
        probe = self._loop.pace is Pace.PROBE
        most = 1 if probe else len(records) if self._batch else _side_by_side(records)
        count, error = self._crash_markers.admit_records(partition, records[:most])
        if not count:
            return False
        works = self._pending.works(partition, records[:count])
        del records[:count]
        self._alone = partition, count, self._parts.clock.monotonic()
        for work in works:
            # No order key is needed, because no other records of the partition are being handled. The chunk's records
            # are a single batch, or have different keys.
            work.order_key = None
            if error is None:
                self._waiting.append(work)
            else:
                self._calls.conclude(work, error)
        return True

    def _is_in_hand(self, partition: PartitionProgress) -> bool:
        return self._loop.owns(partition) and any(not each.handled for each in partition.unfinished)

    def _come_back(self, partition: PartitionProgress, count: int, began: float) -> None:
        self._alone, self._others_next = None, True
        topic_partition = partition.topic_partition
        if not self._loop.owns(partition):
            return
        self._crash_markers.count_handled(partition, count, self._parts.clock.monotonic() - began)
        records = self.aside.get(topic_partition, [])
        if topic_partition not in self._crash_markers.careful or not records:
            self.aside.pop(topic_partition, None)
            self._parts.pauses.resume(topic_partition, CRASH_GUARD)
            if records:
                self._pending.take_up(partition, records)
            self._loop.committing.soon()


def _side_by_side(records: Sequence[Record]) -> int:
    """Return how many of the first records may be handled in any order, because their keys differ or are None."""
    keys = set[Any]()
    for count, record in enumerate(records):
        if (key := as_read(record).key) is not None and key in keys:
            return count
        keys.add(key)
    return len(records)


ENDPOINT_PAUSE_S: Final = 5.0
"""Seconds until the next attempt of a record whose handler is misconfigured."""

SHORT_POLL_S: Final = 0.02
"""Poll timeout in seconds while writes await acknowledgement or slots of the executor are free. The timeout is short,
because acknowledgements do not end a poll early. New records do not end it either if `max_records` is 0."""


class ConcurrentRounds:
    """Rounds of a loop that handles records with an executor. The caller starts the executor."""

    def __init__(self, loop: Loop, parts: LoopParts, executor: Executor, concurrency: Concurrency) -> None:
        self._loop = loop
        self._parts = parts
        self._writing = parts.writing
        self._stats = parts.stats
        self._clock = parts.clock
        self._concurrency = concurrency
        self._calls = Calls(executor, parts.consumer)
        self._pending = Pending(parts.intake, parts.skips, concurrency, self._calls.report)
        self._careful = CarefulPartitions(parts, loop, self._pending, self._calls, concurrency)
        self._open_writes = False

    @property
    def in_flight(self) -> int:
        return self._pending.in_flight

    @property
    def busy(self) -> bool:
        return bool(self.in_flight or self._pending.parked or self._careful.aside)

    def drain(self) -> None:
        """Finish the records in flight. Polls continue during the drain, so the membership is kept."""
        self._forget_waiting(dict(self._loop.partitions))
        # Calls run, or records in flight wait for a call that may still start.
        while self._calls.out or (self.in_flight and self._goes_on()):
            if self._loop.drain_over:
                return
            self._loop.step()

    def _goes_on(self) -> bool:
        """Return True while calls may start: the breaker is closed and no handler is known to be misconfigured."""
        return self._loop.pace is Pace.FULL and not self._pending.stands(self._clock.monotonic())

    def receive(self) -> Records:
        """Return available records. If there are none, wait for records or results.

        A poll for records notices a result of the executor only with a delay. A poll with `max_records` 0 ends
        immediately at a result, but does not end when new records arrive. So with records in flight, the first poll
        returns available records without a wait, and a second poll with `max_records` 0 waits. The second poll waits
        long only while all slots are busy, because then no new record could start.
        """
        limit = self._limit()
        wait_s = self._parts.intake.before_poll(self._loop.partitions, POLL_TIMEOUT_S)
        if not self.in_flight:
            return self._loop.poll(min(SHORT_POLL_S, wait_s) if self._open_writes else wait_s, max_records=limit)
        records = self._loop.poll(0.0, max_records=limit) if limit else Records([])
        if not records and not records.gaps and not self._calls.finished:
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
                self._careful.put_aside(run)
        self._stats.batches += bool(runs)
        wrote = self._take_back()
        if self._parts.consumer.holds_session():
            # While the session is unconfirmed, no call starts, because another member may own the partitions. This
            # lasts until a heartbeat succeeds or the partitions are lost.
            self._issue()
        self._open_writes = self._writing.tend(self._loop.partitions) or wrote
        self._regulate()

    def _issue(self) -> None:
        """Start as many calls as the pace and the executor's free slots allow."""
        if not self._careful.others_may_go(stopping=self._loop.draining):
            return
        pace = self._loop.pace
        now = self._clock.monotonic()
        while self._calls.out < self._calls.limit(pace) and (work := self._pending.next(pace, now)) is not None:
            self._calls.give(work)

    def _take_back(self) -> bool:
        """Process the results of finished calls. Returns True if any finished record has writes."""
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
                self._pending.return_work(work, staying, self._loop.pace, not_before)
                if staying or self._loop.pace is Pace.PROBE:
                    self._loop.adjust_pace()
            else:
                self._pending.abandon(work)
                self._stats.abandoned += len(work.entries)
        return wrote

    def _regulate(self) -> None:
        """Pause partitions with a full window. Resume them when at most half of the window is used."""
        window = self._concurrency.window
        for topic_partition, partition in self._loop.partitions.items():
            behind = len(partition.unfinished)
            full = WINDOW_FULL in self._parts.pauses.reasons.get(topic_partition, ())
            if behind >= window and not full:
                self._parts.pauses.pause(topic_partition, WINDOW_FULL)
            elif full and behind <= window // 2:
                self._parts.pauses.resume(topic_partition, WINDOW_FULL)

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        return any(not each.handled for each in partition.unfinished)

    def finish(self, going: Partitions, timeout_s: float) -> None:
        # First finish the calls, then the writes of their records.
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
        """Drop waiting records. A waiting record is kept if a later record of its partition has started."""
        partitions = set(going.values())
        self._careful.discard_partitions(going)
        gone = self._pending.take_unbegun(partitions) + self._careful.take_waiting(partitions)
        self._pending.drop(gone, partitions)

    def drop_partitions(self, gone: Partitions) -> None:
        """Drop waiting records of partitions that are no longer owned.

        Results of running calls will be ignored. Calls that have not started are cancelled.
        """
        partitions = set(gone.values())
        for partition in partitions:
            partition.gone = True
        self._careful.discard_partitions(gone)
        self._pending.drop_waiting(partitions, self._careful.take_waiting(partitions))
