"""The consume loop whose handlers run elsewhere: in several threads, in an event loop, or on whole batches.

The loop's thread polls, and never waits for a handler. It takes records up, keeps the order that keys ask for
(`order keys`), gives an executor as many jobs as it has hands, writes what comes back, and commits. A record stands in
its partition's `unfinished` from the moment it is taken up, so the committable offset is that of the first record that
is not finished, however many behind it are.

Bounded: records that wait or are being handled (`pending_max`), and for each partition those behind its first
unfinished one (`window`): past that the partition is paused, so one slow record neither fills memory nor stops others.

What leaves with its partition: waiting records are forgotten, except those below one that has begun, which are handled
still as long as there is time, because everything from the first unfinished record on would be repeated by the next
owner. What comes back for a partition that is gone meanwhile moves nothing: it is recognised by its progress object.

A partition that asks for care (`caution`) is handed out in parts, and while one of them is in hand, nothing else is:
should the process die, it is known with which records. Its runs wait aside; other records take turns with them.

While the breaker is open nothing new begins. A record that comes back failed and has to stay is parked: unfinished, its
key's order key still taken, so that those behind it wait; it is the first to be handled again when the pacing lets one
through.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.handlers.performing import Result
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.executor import Executor
from fleet_consumer.worker.consume.key_order import KeyOrder
from fleet_consumer.worker.consume.loop import POLL_TIMEOUT_S, ConsumeLoop
from fleet_consumer.worker.consume.pauses import SUSPECT, WINDOW_FULL
from fleet_consumer.worker.consume.progress import PartitionProgress, Unfinished
from fleet_consumer.worker.stats import DONE

SHORT_POLL_S: Final = 0.02
"""How long a poll waits while acknowledgements, or records for empty hands, are awaited: who asks is told."""

OrderKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How handlers run. `batch`: whole runs of a partition, at most `poll_max` records in a call, as in a poll."""

    batch: bool
    poll_max: int
    window: int
    pending_max: int

    @classmethod
    def of(cls, *, batch: bool, size: int, max_poll_records: int) -> Concurrency:
        """Bounds that keep `size` hands busy: a poll's records; for batches a poll for each hand, and one waiting."""
        window = 2 * max_poll_records if batch else max(max_poll_records, 2 * size)
        pending = max_poll_records * (size + 1) if batch else window
        return cls(batch=batch, poll_max=max_poll_records, window=window, pending_max=pending)


@dataclass(slots=True, eq=False)
class _Work:
    """Records that are handled together, with what their handling is to move. `rest` is what stood behind them in one
    batch, and goes on in the order of their key when they have come back."""

    topic_partition: TopicPartition
    partition: PartitionProgress
    entries: list[Unfinished]
    order_key: OrderKey | None
    report: Callable[[_Work, Sequence[Result], float], None]
    records: list[Record] = field(default_factory=list)
    rest: _Work | None = None

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.report(self, results, seconds)


@dataclass(frozen=True, slots=True)
class _Alone:
    """A part of a partition that is in hand by itself."""

    topic_partition: TopicPartition
    partition: PartitionProgress
    count: int
    began: float


class ConcurrentLoop(ConsumeLoop):
    """A consume loop with an executor. `executor` is started by its owner; everything else is as in `ConsumeLoop`."""

    def __init__(self, *, executor: Executor, concurrency: Concurrency, **parts: Any) -> None:
        super().__init__(at_once=concurrency.poll_max if concurrency.batch else executor.size, **parts)
        self._executor = executor
        self._concurrency = concurrency
        self._key_order: KeyOrder[OrderKey, _Work] = KeyOrder()
        self._begun: dict[PartitionProgress, int] = {}
        self._parked: deque[_Work] = deque()
        self._out = 0
        self._came_back: deque[tuple[_Work, Sequence[Result], float]] = deque()
        self._news = threading.Event()
        self._rung = False
        self._open_writes = False
        self._in_flight = 0
        self._aside: dict[TopicPartition, list[Record]] = {}
        self._alone: _Alone | None = None
        self._alone_waiting: deque[_Work] = deque()
        self._turn_of_others = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def step(self) -> None:
        """Poll once and see to everything that came of it and of the executor. Raises FatalConsumerError."""
        room = self._concurrency.pending_max - self.in_flight
        self._turn(0 if self.stopping else max(0, room))

    def close(self, timeout_s: float) -> None:
        """As `ConsumeLoop.close`; when the worker stops, what has begun may come to its end first, in the drain time.

        Polls go on meanwhile, so the membership is kept however long it takes.
        """
        try:
            if self.stopping:
                self._forget_waiting(list(self.progress.partitions))
            while self._comes_to_an_end() and self._stop_at is not None and self._clock.monotonic() < self._stop_at:
                self._turn(0)
        finally:
            super().close(timeout_s)

    def _comes_to_an_end(self) -> bool:
        """Whether anything in flight is with the executor, or may still get there."""
        return bool(self._out or (self._in_flight and self._pace is Pace.FULL))

    def _turn(self, room: int) -> None:
        before = self._clock.monotonic()
        self._match_pace()
        records = self._receive(self._limit(room))
        self._stats.poll_wait_seconds += self._clock.monotonic() - before
        self._note(records)
        runs = self._readings.admit(records.runs, self.progress.partitions)
        runs = self._intake.admit(runs, self.progress.partitions)
        self._idle = not runs and not self._in_flight and not self._parked and not self._aside
        if self._notes.unwritten:
            runs = self._noted(runs)
        careful, runs = self._apart(runs)
        if not self.stopping:
            for run in runs:
                self._take_up(run)
            for run in careful:
                self._put_aside(run)
        self._stats.batches += bool(runs)
        wrote = self._take_back()
        if self._consumer.holds_session():
            # In doubt another member may own the records; either a heartbeat gets through, or they are lost.
            self._issue()
        self._open_writes = self._writing.tend(self.progress.partitions) or wrote
        self._regulate()
        self._commit_if_due()
        self.beat_at = self._clock.monotonic()

    def _receive(self, limit: int) -> Records:
        """Records that are there, or else a wait for whatever comes first.

        A poll that waits for records may hear from the executor a little late; one that takes none hears at once, but
        not of records. So with records in flight the first only looks, and the second waits: for long only while every
        hand is full, because then no new record could begin anyway.
        """
        wait_s = self._intake.before_poll(self.progress.partitions, POLL_TIMEOUT_S)
        if not self._in_flight:
            return self._poll(min(SHORT_POLL_S, wait_s) if self._open_writes else wait_s, max_records=limit)
        records = self._poll(0.0, max_records=limit) if limit else Records([])
        if not records and not records.gaps and not self._came_back:
            idle = self._open_writes or self._out < self._calls()
            self._poll(min(SHORT_POLL_S, wait_s) if idle else wait_s, max_records=0)
        return records

    def _limit(self, room: int) -> int:
        if self._pace is Pace.PROBE:
            return 0 if self._in_flight or self._parked else min(room, 1)
        return min(room, self._concurrency.poll_max)

    def _calls(self) -> int:
        """How many calls may be under way at once."""
        return {Pace.FULL: self._executor.size, Pace.PROBE: 1, Pace.STOP: 0}[self._pace]

    def _take_up(self, run: Run) -> None:
        """From now on these records are ours to finish; each is kept as it was read, and its handler has its own."""
        partition = self.progress.partitions[run.topic_partition]
        for work in self._works(run.topic_partition, partition, run.records):
            self._key_order.add(work.order_key, work)

    def _works(
        self, topic_partition: TopicPartition, partition: PartitionProgress, records: Sequence[Record]
    ) -> list[_Work]:
        works: list[_Work] = []
        present = self._intake.present
        for record in records:
            shown = record if present is None else present(record)
            if shown is None:
                continue  # a copy: whatever stands before it is finished first all the same
            self._in_flight += 1
            read = as_read(record)
            entry = Unfinished(read, DONE, [], handled=False)
            partition.unfinished.append(entry)
            if self._concurrency.batch and works:
                works[0].entries.append(entry)
                works[0].records.append(shown)
            else:
                order_key = topic_partition if self._concurrency.batch else _order_key(topic_partition, read.key)
                works.append(_Work(topic_partition, partition, [entry], order_key, self._report, [shown]))
        last = as_read(records[-1])
        partition.handled(last.offset, last.leader_epoch)
        return works

    def _put_aside(self, run: Run) -> None:
        """A run that asks for care waits for its turns; its partition is not read meanwhile."""
        if run.topic_partition in self.progress.partitions:
            self._aside.setdefault(run.topic_partition, []).extend(run.records)
            self._pauses.pause(run.topic_partition, SUSPECT)

    def _others_may_go(self) -> bool:
        """See to what waits aside; False while it has to be in hand alone, or waits for the others' end."""
        if self._alone is not None:
            self._issue_alone()
            if self._out or self._alone_waiting:
                return False
            self._come_back_alone(self._alone)
        if not self._aside or self.stopping or self._pace is Pace.STOP:
            return True
        if self._turn_of_others:
            self._turn_of_others = False
            return True
        if self._out:
            return False
        partitions = self.progress.partitions
        topic_partition = min(self._aside, key=lambda each: self._notes.deaths(partitions[each]))
        if partitions[topic_partition].unfinished:
            return True  # what it has written is not acknowledged yet
        if not self._hand_out_alone(topic_partition, partitions[topic_partition]):
            return True
        self._issue_alone()
        return False

    def _issue_alone(self) -> None:
        while self._alone_waiting and self._out < self._calls():
            work = self._alone_waiting.popleft()
            self._begun[work.partition] = work.entries[-1].record.offset
            self._out += 1
            self._executor.give(work)

    def _hand_out_alone(self, topic_partition: TopicPartition, partition: PartitionProgress) -> bool:
        """Begin with the next part of what waits aside; whether any of it is in hand now."""
        records = self._aside[topic_partition]
        most = (
            1 if self._pace is Pace.PROBE else len(records) if self._concurrency.batch else self._side_by_side(records)
        )
        count, error = self._notes.take(topic_partition, partition, records[:most])
        if not count:
            return False
        works = self._works(topic_partition, partition, records[:count])
        del records[:count]
        self._alone = _Alone(topic_partition, partition, count, self._clock.monotonic())
        for work in works:
            # Without an order key: nothing of their partition is anywhere else, and no two of them have one key.
            work.order_key = None
            if error is None:
                self._alone_waiting.append(work)
            else:
                self._out += 1
                work.done([Result(error=error)] * len(work.entries), 0.0)
        return True

    def _alone_parts(self, partitions: Collection[PartitionProgress]) -> list[_Work]:
        """Take back what waits for a hand in a part of one of these partitions."""
        gone = [work for work in self._alone_waiting if work.partition in partitions]
        if gone:
            self._alone_waiting.clear()  # all of them are of one partition
        return gone

    def _side_by_side(self, records: Sequence[Record]) -> int:
        """How many of the first of these may be in hand in any order: one of each key."""
        keys = set[Any]()
        for count, record in enumerate(records):
            if (key := as_read(record).key) is not None and key in keys:
                return count
            keys.add(key)
        return len(records)

    def _come_back_alone(self, alone: _Alone) -> None:
        self._alone, self._turn_of_others = None, True
        topic_partition, partition = alone.topic_partition, alone.partition
        if not self._owns(topic_partition, partition):
            return
        self._notes.came_back(topic_partition, partition, alone.count, self._clock.monotonic() - alone.began)
        records = self._aside.get(topic_partition, [])
        if topic_partition not in self._notes.careful or not records:
            self._aside.pop(topic_partition, None)
            self._pauses.resume(topic_partition, SUSPECT)
            if records:
                self._take_up(Run(topic_partition, records))
            self._commit_at = self._clock.monotonic()

    def _issue(self) -> None:
        if (self._aside or self._alone is not None) and not self._others_may_go():
            return
        hands = self._calls()
        while self._parked and self._out < hands:
            self._out += 1
            self._executor.give(self._from_parked())
        while self._out < hands and (ready := self._key_order.next()) is not None:
            order_key, work = ready
            if self._concurrency.batch and order_key is not None and self._pace is Pace.FULL:
                self._fill_up(order_key, work)
            self._begun[work.partition] = max(self._begun.get(work.partition, -1), work.entries[-1].record.offset)
            self._out += 1
            self._executor.give(work)

    def _fill_up(self, order_key: OrderKey, work: _Work) -> None:
        """What came in while the order key was busy goes with it: the slower the handler, the larger its batches."""
        while (more := self._key_order.following(order_key)) is not None and more.partition is work.partition:
            if len(work.entries) + len(more.entries) > self._concurrency.poll_max:
                break
            self._key_order.follow(order_key)
            work.entries.extend(more.entries)
            work.records.extend(more.records)

    def _report(self, work: _Work, results: Sequence[Result], seconds: float) -> None:
        """On the executor's thread."""
        self._came_back.append((work, results, seconds))
        # Rung once until the loop has looked: it clears the sign first and looks then, so nothing is overlooked.
        if not self._rung:
            self._rung = True
            self._news.set()
            self._consumer.wakeup()

    def _take_back(self) -> bool:
        """Take in what came back from the executor; whether any of it is being written now."""
        wrote = False
        self._rung = False
        self._news.clear()
        while self._came_back:
            work, results, seconds = self._came_back.popleft()
            self._out -= 1
            self._in_flight -= len(work.entries)
            self._stats.handler_seconds += seconds
            if not self._owns(work.topic_partition, work.partition):
                self._key_order.done(work.order_key)
                self._stats.abandoned += len(work.entries)
                continue
            staying = []
            for entry, result in zip(work.entries, results, strict=True):
                if not self._outcomes.conclude(entry, result):
                    staying.append(entry)
                    continue
                wrote = wrote or bool(entry.writes)
            if staying:
                self._park(work, staying)
            elif work.rest is not None:
                self._parked.appendleft(work.rest)
            else:
                self._key_order.done(work.order_key)
            if staying or self._pace is Pace.PROBE:
                self._match_pace()
        return wrote

    def _park(self, work: _Work, entries: list[Unfinished]) -> None:
        """These are handled again later, as they were read, whatever decoding and their handler have made of them."""
        records = [self._intake.retell(as_read(entry.record)) for entry in entries]
        if work.rest is not None:
            entries, records = entries + work.rest.entries, records + work.rest.records
        again = _Work(work.topic_partition, work.partition, entries, work.order_key, self._report, records)
        if self._pace is Pace.PROBE:
            self._parked.appendleft(again)
        else:
            self._parked.append(again)

    def _from_parked(self) -> _Work:
        """What was parked first; where one record at a time is let through, only its first one. The others wait for
        that one in its order key, whatever the pace is by then."""
        work = self._parked.popleft()
        if self._pace is Pace.PROBE and len(work.entries) > 1:
            rest = _Work(
                work.topic_partition, work.partition, work.entries[1:], work.order_key, self._report, work.records[1:]
            )
            work = replace(work, entries=work.entries[:1], records=work.records[:1], rest=rest)
        self._in_flight += len(work.entries)
        return work

    def _regulate(self) -> None:
        window = self._concurrency.window
        for topic_partition, partition in self.progress.partitions.items():
            behind = len(partition.unfinished)
            full = WINDOW_FULL in self._pauses.reasons.get(topic_partition, ())
            if behind >= window and not full:
                self._pauses.pause(topic_partition, WINDOW_FULL)
            elif full and behind <= window // 2:
                self._pauses.resume(topic_partition, WINDOW_FULL)

    def _in_hands(self, partition: PartitionProgress) -> bool:
        return any(not each.handled for each in partition.unfinished)

    def _finish(self, going: Mapping[TopicPartition, PartitionProgress], timeout_s: float) -> None:
        """Inside a rebalance or a close: let what has begun come back, then see its writes through."""
        self._forget_waiting(going)
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._take_back()
            self._issue()
            left = deadline - self._clock.monotonic()
            if (
                left <= 0
                or not (self._out or self._pace is Pace.FULL)
                or all(each.handled for partition in going.values() for each in partition.unfinished)
            ):
                break
            self._news.wait(min(left, POLL_TIMEOUT_S))
        super()._finish(going, max(0.0, deadline - self._clock.monotonic()))

    def _forget_waiting(self, going: Mapping[TopicPartition, Any] | Sequence[TopicPartition]) -> None:
        """Drop what nobody has begun; kept is only what stands before a record that has begun."""
        for topic_partition in going:
            self._aside.pop(topic_partition, None)
        partitions = {self.progress.partitions[each] for each in going if each in self.progress.partitions}

        def unwanted(work: _Work) -> bool:
            return work.partition in partitions and work.entries[0].record.offset > self._begun.get(work.partition, -1)

        gone = self._key_order.discard(unwanted) + self._alone_parts(partitions)
        self._in_flight -= sum(len(work.entries) for work in gone)
        dropped = {id(entry) for work in gone for entry in work.entries}
        for partition in partitions:
            kept = [entry for entry in partition.unfinished if id(entry) not in dropped]
            first_dropped = next((entry for entry in partition.unfinished if id(entry) in dropped), None)
            partition.unfinished.clear()
            partition.unfinished.extend(kept)
            if first_dropped is not None:
                partition.handled(first_dropped.record.offset - 1, first_dropped.record.leader_epoch)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        going = [self.progress.partitions[each] for each in partitions if each in self.progress.partitions]
        super()._forget(partitions)
        for work in [work for work in self._parked if work.partition in going]:
            self._parked.remove(work)
            self._key_order.done(work.order_key)
        for topic_partition in partitions:
            self._aside.pop(topic_partition, None)
        gone = self._key_order.discard(lambda work: work.partition in going) + self._alone_parts(going)
        self._in_flight -= sum(len(work.entries) for work in gone)
        for partition in going:
            self._begun.pop(partition, None)


def _order_key(topic_partition: TopicPartition, key: Any) -> OrderKey | None:
    """Records of one key stay in order. Those without one have none to keep: their sender spread them at random."""
    return None if key is None else (*topic_partition, key)
