"""Records admitted by a concurrent loop. Each waits (in order within its key), is being handled, or is parked."""

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
"""While this many calls are parked, no other call starts, because the handler is probably misconfigured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """The limits of a concurrent loop, in records.

    `poll_max` limits the records of a poll. With `batch`, it also limits the records of a call, which all belong to one
    partition. `window` limits the records from a partition's first unfinished record on. `pending_max` limits all
    records that wait or are being handled.
    """

    batch: bool
    poll_max: int
    window: int
    pending_max: int

    @classmethod
    def sized(cls, *, batch: bool, size: int, max_poll_records: int) -> "Concurrency":
        """Return limits that keep `size` concurrent calls busy.

        Without `batch`, at most `max_poll_records` may be pending, or two records per call if this is more. With
        `batch`, at most `max_poll_records` per call may be pending, and one further poll that waits.
        """
        window = 2 * max_poll_records if batch else max(max_poll_records, 2 * size)
        pending = max_poll_records * (size + 1) if batch else window
        return cls(batch=batch, poll_max=max_poll_records, window=window, pending_max=pending)


@dataclass(slots=True, eq=False)
class Work:
    """The records of one handler call, each with its entry in the partition's `unfinished`. `report` receives the
    results.

    `rest` is work with the later records of the same batch. To preserve the order, `rest` starts when the records of
    this work are done. If `error` is set, the records fail with this error and the handler is not called. Parked work
    may start again at `not_before` (monotonic seconds).
    """

    partition: PartitionProgress
    entries: list[Unfinished]
    order_key: OrderKey | None
    report: "Report"
    records: list[Record] = field(default_factory=list)
    rest: "Work | None" = None
    error: Exception | None = None
    not_before: float = float("-inf")

    @property
    def unwanted(self) -> bool:
        return self.partition.gone

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.report(self, results, seconds)


Report = Callable[[Work, Sequence[Result], float], None]


class Calls:
    """The handler calls of one loop. Any thread may call `report`; all other methods belong to the loop's thread."""

    def __init__(self, executor: Executor, consumer: Consumer) -> None:
        self._executor = executor
        self._consumer = consumer
        self.finished: deque[tuple[Work, Sequence[Result], float]] = deque()
        """Results that the loop has not processed yet."""
        self._changed = threading.Event()
        self._rung = False
        self.out = 0

    def limit(self, pace: Pace) -> int:
        return {Pace.FULL: self._executor.size, Pace.PROBE: 1, Pace.STOP: 0}[pace]

    def give(self, work: Work) -> None:
        if work.error is not None:
            self.conclude(work, work.error)
            return
        self.out += 1
        self._executor.give(work)

    def conclude(self, work: Work, error: Exception) -> None:
        """Fail all records of this work with `error`, without a call. `take_back` yields the results."""
        self.out += 1
        work.done([Result(error=error)] * len(work.entries), 0.0)

    def report(self, work: Work, results: Sequence[Result], seconds: float) -> None:
        """Accept a call's results. Any thread."""
        self.finished.append((work, results, seconds))
        # Wake the loop once for all results until its next check. The loop clears the flag before it reads the results,
        # so no result is missed.
        if not self._rung:
            self._rung = True
            self._changed.set()
            self._consumer.wakeup()

    def take_back(self) -> Iterator[tuple[Work, Sequence[Result], float]]:
        """Remove and yield finished work, with its results and the duration of its call in seconds."""
        self._rung = False
        self._changed.clear()
        while self.finished:
            self.out -= 1
            yield self.finished.popleft()

    def wait(self, timeout_s: float) -> None:
        self._changed.wait(timeout_s)


class Pending:
    """The admitted records of one loop. Work returned by `next` must be passed to `return_work` after its call.

    `in_flight` is the number of admitted records that are not handled yet. Parked records are not counted.
    """

    def __init__(self, intake: Intake, skips: Skips, concurrency: Concurrency, report: Report) -> None:
        self._intake = intake
        self._skips = skips
        self._concurrency = concurrency
        self._report = report
        self._key_order: KeyOrder[OrderKey, Work] = KeyOrder()
        self.parked: deque[Work] = deque()
        # The highest offset whose handler call has started, by partition.
        self._begun: dict[PartitionProgress, int] = {}
        self.in_flight = 0

    def take_up(self, partition: PartitionProgress, records: Sequence[Record]) -> None:
        """Admit records. A copy of each is kept as it was read, because the handler may change its record."""
        for work in self.works(partition, records):
            self._key_order.add(work.order_key, work)

    def works(self, partition: PartitionProgress, records: Sequence[Record]) -> list[Work]:
        """Add records to the progress of their partition, and return work for them. The work is not yet queued."""
        works: list[Work] = []
        topic_partition = partition.topic_partition
        present = self._intake.present
        for record in records:
            shown = record if present is None else present(record)
            if shown is None:
                continue  # a duplicate, which is committed once all earlier records are finished
            self.in_flight += 1
            read = as_read(record)
            entry = Unfinished(read, DONE, [], handled=False)
            partition.unfinished.append(entry)
            if self._concurrency.batch and works:
                works[0].entries.append(entry)
                works[0].records.append(shown)
            else:
                # Records without a key need no order, because their producer distributes them over the partitions.
                by_key = None if read.key is None else (*topic_partition, read.key)
                order_key = topic_partition if self._concurrency.batch else by_key
                works.append(Work(partition, [entry], order_key, self._report, [shown]))
        last = as_read(records[-1])
        partition.handled(last.offset, last.leader_epoch)
        partition.timestamp = last.timestamp
        return works

    def stands(self, now: float) -> bool:
        """Return True if the first parked work must wait for its `not_before`; False without parked work."""
        return bool(self.parked) and self.parked[0].not_before > now

    def next(self, pace: Pace, now: float) -> Work | None:
        """Return the next work that may start, parked work first; None if no work may start.

        While parked work waits, other work may start until `TRIED_MAX` calls are parked. The other calls may show that
        only the parked records fail.
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
        self.record_call(work)
        return work

    def _to_skip(self, work: Work) -> Work:
        """Split work at its first record to skip. This record becomes separate work, and later records follow it."""
        place = self._skips.first(work.partition.topic_partition, [entry.record for entry in work.entries])
        if place is None:
            return work
        count = place or 1
        if len(work.entries) > count:
            rest = replace(work, entries=work.entries[count:], records=work.records[count:])
            self.in_flight -= len(rest.entries)
            work = replace(work, entries=work.entries[:count], records=work.records[:count], rest=rest)
        return work if place else replace(work, error=skipped())

    def record_call(self, work: Work) -> None:
        self._begun[work.partition] = max(self._begun.get(work.partition, -1), work.entries[-1].record.offset)

    def _fill_up(self, order_key: OrderKey, work: Work) -> None:
        """Add waiting records of the same partition to the batch. The slower the handler, the larger its batches."""
        while (more := self._key_order.following(order_key)) is not None and more.partition is work.partition:
            if len(work.entries) + len(more.entries) > self._concurrency.poll_max:
                break
            self._key_order.follow(order_key)
            work.entries.extend(more.entries)
            work.records.extend(more.records)

    def return_work(self, work: Work, staying: list[Unfinished], pace: Pace, not_before: float = float("-inf")) -> None:
        """Complete the call of this work. The entries in `staying` are handled again, not before `not_before`."""
        if staying:
            self._park(work, staying, pace, not_before)
        elif work.rest is not None:
            self.parked.appendleft(work.rest)
        else:
            self._key_order.done(work.order_key)

    def _park(self, work: Work, entries: list[Unfinished], pace: Pace, not_before: float) -> None:
        """Park entries. Their records are handled again as they were read, without the handler's changes."""
        records = [self._intake.present_again(as_read(entry.record)) for entry in entries]
        if work.rest is not None:
            entries, records = entries + work.rest.entries, records + work.rest.records
        again = Work(work.partition, entries, work.order_key, self._report, records, not_before=not_before)
        if pace is Pace.PROBE:
            self.parked.appendleft(again)
        else:
            self.parked.append(again)

    def _from_parked(self, pace: Pace) -> Work:
        """Remove and return the oldest parked work. Under `Pace.PROBE`, the result has only the first record. The other
        records follow when this record is done, even if the pace changes."""
        work = self.parked.popleft()
        if pace is Pace.PROBE and len(work.entries) > 1:
            rest = replace(work, entries=work.entries[1:], records=work.records[1:], rest=None)
            work = replace(work, entries=work.entries[:1], records=work.records[:1], rest=rest)
        self.in_flight += len(work.entries)
        return work

    def take_unbegun(self, partitions: Collection[PartitionProgress]) -> list[Work]:
        """Remove and return waiting work of these partitions. Work stays if a later record of its partition has
        started."""
        return self._key_order.discard(
            lambda work: (
                work.partition in partitions and work.entries[0].record.offset > self._begun.get(work.partition, -1)
            )
        )

    def drop(self, gone: Iterable[Work], partitions: Iterable[PartitionProgress]) -> None:
        """Undo the admission of this work. The progress of each partition then ends before its first dropped record.

        A position that is already lower is not moved forward: the log was truncated or recreated.
        """
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
        """Release the order key of work whose partition was lost or revoked before its call finished."""
        self._key_order.done(work.order_key)

    def drop_waiting(self, partitions: Collection[PartitionProgress], elsewhere: list[Work]) -> None:
        """Drop the waiting work of partitions that are no longer owned. `elsewhere` is work outside this queue."""
        for work in [work for work in self.parked if work.partition in partitions]:
            self.parked.remove(work)
            self._key_order.done(work.order_key)
        gone = self._key_order.discard(lambda work: work.partition in partitions) + elsewhere
        self.in_flight -= sum(len(work.entries) for work in gone)
        for partition in partitions:
            self._begun.pop(partition, None)
