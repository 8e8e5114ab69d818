"""Records that a concurrent loop has taken up: waiting in the order of their keys, with a handler, or parked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.handlers.executor import Executor
from fleet_consumer.handlers.key_order import KeyOrder
from fleet_consumer.handlers.performing import Result
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.intake import Intake
from fleet_consumer.worker.consume.progress import PartitionProgress, Unfinished
from fleet_consumer.worker.consume.skips import Skips, skipped
from fleet_consumer.worker.stats import DONE

OrderKey = tuple[Any, ...]

TRIED_MAX: Final = 20
"""Pieces of work that a handler is tried with while it seems to be deployed wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """The bounds of a concurrent loop, in records.

    `batch`: a call takes a run of a partition, of at most `poll_max` records, as in a poll. `window` bounds what is
    behind a partition's first unfinished record, `pending_max` what waits or is being handled in all.
    """

    batch: bool
    poll_max: int
    window: int
    pending_max: int

    @classmethod
    def of(cls, *, batch: bool, size: int, max_poll_records: int) -> Concurrency:
        """Bounds that keep `size` calls busy: a poll's records; for batches a poll for each call, and one waiting."""
        window = 2 * max_poll_records if batch else max(max_poll_records, 2 * size)
        pending = max_poll_records * (size + 1) if batch else window
        return cls(batch=batch, poll_max=max_poll_records, window=window, pending_max=pending)


@dataclass(slots=True, eq=False)
class Work:
    """Records of one handler call, each with its entry in the partition's `unfinished`; `report` takes the results.

    `rest` is what stood behind them in one batch, and follows in the order of their key when they have come back. With
    an `error` they fail with it, in place of a call. Parked work begins again at `not_before` (monotonic seconds).
    """

    partition: PartitionProgress
    entries: list[Unfinished]
    order_key: OrderKey | None
    report: Report
    records: list[Record] = field(default_factory=list)
    rest: Work | None = None
    error: Exception | None = None
    not_before: float = float("-inf")

    @property
    def unwanted(self) -> bool:
        return self.partition.gone

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.report(self, results, seconds)


Report = Callable[[Work, Sequence[Result], float], None]


class Calls:
    """The calls of one loop. All methods belong to its thread, except `report`."""

    def __init__(self, executor: Executor, consumer: Consumer) -> None:
        self._executor = executor
        self._consumer = consumer
        self.came_back: deque[tuple[Work, Sequence[Result], float]] = deque()
        """The results that wait to be taken."""
        self._news = threading.Event()
        self._rung = False
        self.out = 0

    def limit(self, pace: Pace) -> int:
        """Number of calls that may be under way at once."""
        return {Pace.FULL: self._executor.size, Pace.PROBE: 1, Pace.STOP: 0}[pace]

    def give(self, work: Work) -> None:
        if work.error is not None:
            self.conclude(work, work.error)
            return
        self.out += 1
        self._executor.give(work)

    def conclude(self, work: Work, error: Exception) -> None:
        """Fail all of this work with `error` in place of a call; it comes back like any other."""
        self.out += 1
        work.done([Result(error=error)] * len(work.entries), 0.0)

    def report(self, work: Work, results: Sequence[Result], seconds: float) -> None:
        """Take a call's results. Any thread."""
        self.came_back.append((work, results, seconds))
        # Rung once until the loop has looked: it clears the sign first and looks then, so nothing is overlooked.
        if not self._rung:
            self._rung = True
            self._news.set()
            self._consumer.wakeup()

    def take_back(self) -> Iterator[tuple[Work, Sequence[Result], float]]:
        """Work that came back, with its results and how many seconds its call took."""
        self._rung = False
        self._news.clear()
        while self.came_back:
            self.out -= 1
            yield self.came_back.popleft()

    def wait(self, timeout_s: float) -> None:
        self._news.wait(timeout_s)


class Pending:
    """The records of one loop. Work that `next` has given out returns by `came_back`.

    `in_flight` counts records taken up and not through their handler, parked ones excepted.
    """

    def __init__(self, intake: Intake, skips: Skips, concurrency: Concurrency, report: Report) -> None:
        self._intake = intake
        self._skips = skips
        self._concurrency = concurrency
        self._report = report
        self._key_order: KeyOrder[OrderKey, Work] = KeyOrder()
        self.parked: deque[Work] = deque()
        """Work that failed and has to be handled again."""
        # The highest offset of each partition that was given out.
        self._begun: dict[PartitionProgress, int] = {}
        self.in_flight = 0

    def take_up(self, partition: PartitionProgress, records: Sequence[Record]) -> None:
        """Take up these records, to be finished here; each is kept as it was read, and its handler has its own."""
        for work in self.works(partition, records):
            self._key_order.add(work.order_key, work)

    def works(self, partition: PartitionProgress, records: Sequence[Record]) -> list[Work]:
        """Records as work: entered in their partition's progress, but not yet waiting in the order of their keys."""
        works: list[Work] = []
        topic_partition = partition.topic_partition
        present = self._intake.present
        for record in records:
            shown = record if present is None else present(record)
            if shown is None:
                continue  # a copy: whatever stands before it is finished first all the same
            self.in_flight += 1
            read = as_read(record)
            entry = Unfinished(read, DONE, [], handled=False)
            partition.unfinished.append(entry)
            if self._concurrency.batch and works:
                works[0].entries.append(entry)
                works[0].records.append(shown)
            else:
                # Records without a key have no order to keep: their sender spread them at random.
                by_key = None if read.key is None else (*topic_partition, read.key)
                order_key = topic_partition if self._concurrency.batch else by_key
                works.append(Work(partition, [entry], order_key, self._report, [shown]))
        last = as_read(records[-1])
        partition.handled(last.offset, last.leader_epoch)
        partition.timestamp = last.timestamp
        return works

    def stands(self, now: float) -> bool:
        """True while all that is parked waits for its time: nothing in flight that stands behind it may begin."""
        return bool(self.parked) and self.parked[0].not_before > now

    def next(self, pace: Pace, now: float) -> Work | None:
        """Give out the next work that may begin, parked work first; None when there is none.

        While parked work waits for its time a few others are tried: they may show that only those records fail.
        """
        if self.stands(now):
            if len(self.parked) >= TRIED_MAX:
                return None
        elif self.parked:
            return self._to_skip(self._from_parked(pace))
        ready = self._key_order.next()
        if ready is None:
            return None
        order_key, work = ready
        if self._concurrency.batch and order_key is not None and pace is Pace.FULL:
            self._fill_up(order_key, work)
        work = self._to_skip(work)
        self.begin(work)
        return work

    def _to_skip(self, work: Work) -> Work:
        """This work as far as the next record that is passed by, which goes alone; the rest follows as parked."""
        place = self._skips.first(work.partition.topic_partition, [entry.record for entry in work.entries])
        if place is None:
            return work
        count = place or 1
        if len(work.entries) > count:
            rest = replace(work, entries=work.entries[count:], records=work.records[count:])
            self.in_flight -= len(rest.entries)
            work = replace(work, entries=work.entries[:count], records=work.records[:count], rest=rest)
        return work if place else replace(work, error=skipped())

    def begin(self, work: Work) -> None:
        """Note that a handler is about to be called with these records."""
        self._begun[work.partition] = max(self._begun.get(work.partition, -1), work.entries[-1].record.offset)

    def _fill_up(self, order_key: OrderKey, work: Work) -> None:
        """Add what came in while the order key was busy: the slower the handler, the larger its batches."""
        while (more := self._key_order.following(order_key)) is not None and more.partition is work.partition:
            if len(work.entries) + len(more.entries) > self._concurrency.poll_max:
                break
            self._key_order.follow(order_key)
            work.entries.extend(more.entries)
            work.records.extend(more.records)

    def came_back(self, work: Work, staying: list[Unfinished], pace: Pace, not_before: float = float("-inf")) -> None:
        """This work has been through its handler; `staying` are its entries that have to be handled again, and not
        before this time."""
        if staying:
            self._park(work, staying, pace, not_before)
        elif work.rest is not None:
            self.parked.appendleft(work.rest)
        else:
            self._key_order.done(work.order_key)

    def _park(self, work: Work, entries: list[Unfinished], pace: Pace, not_before: float) -> None:
        """These are handled again later, as they were read, whatever decoding and their handler have made of them."""
        records = [self._intake.retell(as_read(entry.record)) for entry in entries]
        if work.rest is not None:
            entries, records = entries + work.rest.entries, records + work.rest.records
        again = Work(work.partition, entries, work.order_key, self._report, records, not_before=not_before)
        if pace is Pace.PROBE:
            self.parked.appendleft(again)
        else:
            self.parked.append(again)

    def _from_parked(self, pace: Pace) -> Work:
        """The work parked first; of it only the first record where one at a time is let through. The others wait for
        that one in its order key, whatever the pace is by then."""
        work = self.parked.popleft()
        if pace is Pace.PROBE and len(work.entries) > 1:
            rest = replace(work, entries=work.entries[1:], records=work.records[1:], rest=None)
            work = replace(work, entries=work.entries[:1], records=work.records[:1], rest=rest)
        self.in_flight += len(work.entries)
        return work

    def take_unbegun(self, partitions: Collection[PartitionProgress]) -> list[Work]:
        """Take out what waits of these partitions, except records that stand before one that has begun."""
        return self._key_order.discard(
            lambda work: (
                work.partition in partitions and work.entries[0].record.offset > self._begun.get(work.partition, -1)
            )
        )

    def drop(self, gone: Iterable[Work], partitions: Iterable[PartitionProgress]) -> None:
        """Undo the taking up of this work of these partitions: their progress ends before the first such record, and
        where it does now if that is earlier, in a log that was cut or made anew."""
        dropped = {id(entry) for work in gone for entry in work.entries}
        self.in_flight -= len(dropped)
        for partition in partitions:
            kept = [entry for entry in partition.unfinished if id(entry) not in dropped]
            gone_here = (entry.record for entry in partition.unfinished if id(entry) in dropped)
            first = min(gone_here, key=lambda record: record.offset, default=None)
            partition.unfinished.clear()
            partition.unfinished.extend(kept)
            if first is not None and (partition.position is None or first.offset < partition.position):
                partition.handled(first.offset - 1, first.leader_epoch)

    def abandon(self, work: Work) -> None:
        """This work came back for a partition that is gone."""
        self._key_order.done(work.order_key)

    def forget(self, partitions: Collection[PartitionProgress], besides: list[Work]) -> None:
        """Drop whatever waits of partitions that are gone; `besides` waited elsewhere."""
        for work in [work for work in self.parked if work.partition in partitions]:
            self.parked.remove(work)
            self._key_order.done(work.order_key)
        gone = self._key_order.discard(lambda work: work.partition in partitions) + besides
        self.in_flight -= sum(len(work.entries) for work in gone)
        for partition in partitions:
            self._begun.pop(partition, None)
