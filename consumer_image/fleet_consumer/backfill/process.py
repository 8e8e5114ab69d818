"""The process of one handler: reads ranges, calls the handler, writes outputs, and reports to its task.

The first task of a Spark Python worker starts the process. All tasks of that worker share the process, including the
handler's state, broker connections and producers. If a record crashes or hangs the handler, only this process ends, and
the task can name the record. The two handlers of a comparison run in separate processes.

    python -m fleet_consumer.backfill.process CONNECTION LIFELINE SLOTS

The arguments are inherited file descriptors. `LIFELINE` is closed when the task's process ends, or earlier. `teardown`
then runs.

Decision: docs/decisions/0059-backfill-engine.md.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection
from typing import Final

from confluent_kafka import Message

from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.backfill.calling import Caller, make_caller
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.outcomes import Answered, Handled, Outcomes
from fleet_consumer.backfill.slices import Task, TaskRange, TaskReport
from fleet_consumer.backfill.work import (
    GROUP_S,
    Pacer,
    Part,
    PlayRequest,
    Selection,
    config_of,
    connection_of,
    log_as,
)
from fleet_consumer.backfill.writing import Writers
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import CANDIDATE, BackfillConfig
from fleet_consumer.contract.backfill_ledger import RunProblem
from fleet_consumer.contract.pod import POD_NAME
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.group.errors import ConsumerError, TopicAuthorizationFailed
from fleet_consumer.handlers.call import end_forked_child
from fleet_consumer.handlers.collector import tame_collector
from fleet_consumer.handlers.configured import configured_handler
from fleet_consumer.handlers.loading import Handler, HandlerContext, HandlerImportFailed, HandlerNotCallable
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.fetched import as_read, filled_records
from fleet_consumer.librdkafka.settings import SettingsRefused, consumer_config
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.failure import Poison
from fleet_consumer.worker.config.settings import ISOLATION_LEVELS, context_of

LOG = logging.getLogger("fleet_consumer.backfill")

PART_S: Final = 2.0
PART_ROWS: Final = 5_000
"""Maximum duration of a part of a request in seconds, and its maximum number of rows."""
STALL_S: Final = 120.0
"""Maximum wait for records; longer than the restart of a broker."""
DEATHS_MAX: Final = 3
"""A suspected record fails as poison, without another try, once the handler's process has died this many times while
handling it. Live workers use the same limit."""
TEARDOWN_S: Final = 10.0
"""Maximum time for `teardown` after the task's process has ended."""
FETCH_BYTES: Final = 1 << 20
FETCHED_RECORDS: Final = 2_000
FETCHED_KIB: Final = 16 << 10
"""Limits of prefetching: bytes per fetch of a partition, queued records per partition, and total queued KiB.

Records fetched beyond the end of a range are discarded. The limit of live workers, 10,000 queued records, is too high
here. With it, a comparison read its source three times, and a slice of eight partitions read a third more than its
ranges.
"""

Ranges = Mapping[TopicPartition, tuple[int, int]]


def _purpose(config: BackfillConfig) -> str:
    return "compare" if config.compare is not None else "dryRun" if config.dry_run else "backfill"


class HandlerServer:
    """Runs the task's requests one after the other."""

    def __init__(self, config: BackfillConfig, side: str, call_slots: CallSlots) -> None:
        """Import the handler of this side, and run its `setup`. Raises BackfillFailed."""
        self._config, self._side = config, side
        self._clock = SystemClock()
        worker = _worker_of(config, side)
        try:
            self._handler: Handler = configured_handler(worker.handler, self._clock)
        except (HandlerImportFailed, HandlerNotCallable) as error:
            raise BackfillFailed(error.reason, str(error), final=True) from error
        self._caller: Caller = make_caller(worker, self._handler, call_slots, self._clock)
        name = os.environ.get(POD_NAME) or os.environ.get("HOSTNAME") or config.name
        self._context: HandlerContext = context_of(worker, name, _purpose(config))
        self._pid = os.getpid()
        try:
            self._caller.call(self._handler.setup, self._context)
            end_forked_child(self._pid)
        except BaseException as error:
            end_forked_child(self._pid, error)
            seen = f"{type(error).__name__}: {error}" if worker.handler.error_text else type(error).__name__
            message = f"setup of the handler {self._handler.spec!r} ({side}) failed: {seen}"
            raise BackfillFailed("SetupFailed", message, final=False) from error
        self._selection = Selection(config.filter)
        self._writers = Writers(config)
        self._reader: BoundedReader | None = None
        self._share: _Share | None = None
        self._abandoned = False
        tame_collector()

    def play(self, request: PlayRequest) -> Iterator[Part]:
        """Run a request until it is complete, its deadline passes, or a record or error ends it. Yields its parts."""
        config, work = self._config, request.work
        deaths = {(each.partition, each.offset): each.deaths for each in work.suspected if each.side == self._side}
        pacer = Pacer(work.seconds if request.bounded else float("inf"), work.rate, self._clock)
        try:
            outcomes = Handled(config, work, self._writers) if config.compare is None else Answered(config, work)
            share = self._share = _Share(deaths, self._selection, self._caller, outcomes, pacer)
            for ranges in _one_of_each_partition(config.topic, request.ranges):
                yield from share.begin_ranges(ranges)
                for step in self._new_reader().runs(ranges):
                    yield from share.handle_messages(step.messages, step.done, ranges)
                    if self._abandoned:
                        return
                    if share.ended:
                        break
                if share.ended:
                    break
            part = share.part(last=True)
        except BackfillFailed as error:
            # Parts that were already yielded remain valid.
            part = Part(TaskReport(problem=error.problem), [], last=True)
        except (ConsumerError, SettingsRefused) as error:
            part = Part(TaskReport(problem=_problem_of(error)), [], last=True)
        yield part

    def abandon(self) -> None:
        """End the request after the current `Caller.handle`. The task has ended, and another task may already handle
        the same records. May be called on any thread."""
        self._abandoned = True
        if self._share is not None:
            self._share.stop()

    def tear_down(self) -> None:
        try:
            self._caller.call(self._handler.teardown, self._context)
            end_forked_child(self._pid)
        except BaseException as error:
            end_forked_child(self._pid, error)
            LOG.exception("the handler's teardown failed")
        self._caller.close()

    def _new_reader(self) -> BoundedReader:
        if self._reader is None:
            config = self._config
            isolation = ISOLATION_LEVELS[config.worker.consumer.isolation_level]
            ahead = {
                "queued.min.messages": str(FETCHED_RECORDS),
                "queued.max.messages.kbytes": str(FETCHED_KIB),
            }
            settings = consumer_config(connection_of(config), f"fleet-backfill-{config.id}", isolation, ahead)
            self._reader = BoundedReader(settings, stores_offsets=False, fetch_bytes=FETCH_BYTES, skips_expired=False)
        return self._reader


class _Share:
    """The progress of one request."""

    def __init__(
        self,
        deaths: dict[tuple[int, int], int],
        selection: Selection,
        caller: Caller,
        outcomes: Outcomes,
        pacer: Pacer,
    ) -> None:
        """`deaths` has, for each suspected record (partition, offset), the number of processes that died at it."""
        self._deaths = deaths
        self._selection = selection
        self._caller = caller
        self._outcomes = outcomes
        self._pacer = pacer
        self._clock = SystemClock()
        self._covered: dict[int, tuple[int, int]] = {}  # first and end offset in the current part
        self._reached: dict[int, int] = {}
        self._filtered: dict[int, list[int]] = {}  # offsets of filtered-out records that are not counted yet
        self._part_at = self._heard_at = self._clock.monotonic()
        self._over = False

    @property
    def ended(self) -> bool:
        return self._over or self._outcomes.ended

    def stop(self) -> None:
        """End the request after the current `Caller.handle`. May be called on any thread."""
        self._over = True

    def begin_ranges(self, ranges: Ranges) -> Iterator[Part]:
        if self._covered:
            yield self.part()
        self._reached = {partition.partition: first for partition, (first, _) in ranges.items()}

    def handle_messages(
        self, messages: Mapping[TopicPartition, list[Message]], done: Collection[TopicPartition], ranges: Ranges
    ) -> Iterator[Part]:
        """Handle fetched messages. Yields each completed part."""
        heard = bool(messages or done)
        if not heard and self._clock.monotonic() - self._heard_at > STALL_S:
            waiting = ", ".join(str(part.partition) for part in ranges if part.partition not in self._covered)
            message = f"no records of partitions {waiting or 'of the range'} arrived within {STALL_S:g} s"
            raise BackfillFailed("BrokerUnreachable", message, final=False)
        lists = [filled_records(each, run) for each, run in messages.items()]
        for records in [list(chain(*lists))] if self._caller.mixed else lists:
            yield from self._take(records)
        if not self.ended:
            for each in done:
                self._cover(each.partition, ranges[each][1])
            yield from self._part_if_due()
        if heard:
            # The time spent on handling these records does not count as waiting for the brokers.
            self._heard_at = self._clock.monotonic()

    def _take(self, records: list[Record]) -> Iterator[Part]:
        ends = self._ends_of(records)
        rest = records if self._selection.takes_all else self._selected(records)
        while rest and not self.ended:
            alone = self._first_suspected(rest)
            if alone == 0:
                yield self.part()
                if self._outcomes.ended:
                    # The part was discarded because the sink refused an output. Another part of this request would
                    # wrongly count the discarded offsets as covered.
                    return
                rest = self._take_alone(rest)
                yield self.part()
            else:
                rest = self._handle(rest, alone)
                yield from self._part_if_due()
        if not self.ended:
            self._cover_each(ends)

    def _handle(self, records: list[Record], most: int) -> list[Record]:
        """Handle some of these records, at most `most`, with one `Caller.handle`. Returns the remaining records."""
        # A concurrent caller waits for the last call of each list, so its lists are longer; it checks the deadline
        # itself.
        lasts = PART_S if self._caller.mixed else GROUP_S
        size = min(self._pacer.group(self._caller.at_once, lasts), most)
        if not self._pacer.may_take(size):
            self._over = True
            return records
        group = records[:size]
        answers = self._caller.handle(group, self._pacer.deadline, self._outcomes.ends)
        taken = self._outcomes.add(group, answers)
        # `as_read`, because the handler may have modified the records.
        done = group[:taken] if self._caller.mixed else group[:taken][-1:]
        self._cover_each(self._ends_of([as_read(each) for each in done]))
        if taken < len(group) and self._clock.monotonic() >= self._pacer.deadline:
            self._over = True
        return records[taken:]

    def _take_alone(self, records: list[Record]) -> list[Record]:
        """Handle only the first record, which is suspected, or fail it as poison. Returns the other records."""
        first = records[:1]
        deaths = self._deaths.pop((first[0].partition, first[0].offset))
        if deaths < DEATHS_MAX:
            return [*self._handle(first, 1), *records[1:]]
        error = Poison(f"the record ended the process of its handler {deaths} times")
        self._outcomes.add(first, [error])
        if not self._outcomes.ended:
            self._cover_each(self._ends_of(first))
        return records[1:]

    def _first_suspected(self, records: list[Record]) -> int:
        if not self._deaths:
            return len(records)
        places = (place for place, each in enumerate(records) if (each.partition, each.offset) in self._deaths)
        return next(places, len(records))

    def _selected(self, records: list[Record]) -> list[Record]:
        takes, kept, filtered = self._selection.takes, list[Record](), self._filtered
        for each in records:
            if takes(each.timestamp, each.key, each.headers):
                kept.append(each)
            else:
                filtered.setdefault(each.partition, []).append(each.offset)
        return kept

    def _count_filtered(self) -> int:
        """Return the number of records that the filter removed within the range of the current report. Records after
        this range are not counted yet, because they may be read again."""
        count = 0
        for partition, offsets in self._filtered.items():
            covered = bisect_left(offsets, self._covered.get(partition, (0, 0))[1])
            del offsets[:covered]
            count += covered
        return count

    def _ends_of(self, records: Sequence[Record]) -> Mapping[int, int]:
        lasts = records if self._caller.mixed else records[-1:]
        return {each.partition: each.offset + 1 for each in lasts}

    def _cover_each(self, ends: Mapping[int, int]) -> None:
        for partition, end in ends.items():
            self._cover(partition, end)

    def _cover(self, partition: int, end: int) -> None:
        first, _ = self._covered.get(partition, (self._reached.get(partition, end), end))
        self._covered[partition] = (first, end)

    def _part_if_due(self) -> Iterator[Part]:
        if self._clock.monotonic() - self._part_at >= PART_S or len(self._outcomes.rows) >= PART_ROWS:
            yield self.part()

    def part(self, *, last: bool = False) -> Part:
        """End the current part after waiting for its writes. Returns its report and rows."""
        outcomes = self._outcomes
        kept = outcomes.await_writes()
        report, rows = outcomes.report, outcomes.rows
        if kept:
            report.filtered = self._count_filtered()
            report.covered = [TaskRange(part, first, end) for part, (first, end) in sorted(self._covered.items())]
            for part, (_, end) in self._covered.items():
                self._reached[part] = end
        report.waited, self._pacer.waited = self._pacer.waited, 0.0
        self._covered.clear()
        outcomes.report, outcomes.rows = TaskReport(), type(rows)()
        self._part_at = self._clock.monotonic()
        return Part(report, rows.columns if kept else [], last)


def _problem_of(error: ConsumerError | SettingsRefused) -> RunProblem:
    reason, said = error.reason, str(error)
    if isinstance(error, TopicAuthorizationFailed):
        reason, said = "AuthorizationFailed", f"{said}; allow the principal Read and Describe on the topic"
    # Not final: before the next slice the driver queries the brokers itself, and decides whether the error is final.
    return RunProblem(reason=reason, message=said, final=False)


def _one_of_each_partition(topic: str, ranges: Task) -> Iterator[dict[TopicPartition, tuple[int, int]]]:
    left = list(ranges)
    while left:
        first = {each.partition: each for each in reversed(left)}
        left = [each for each in left if first[each.partition] is not each]
        yield {TopicPartition(topic, part): (each.first, each.end) for part, each in sorted(first.items())}


def _worker_of(config: BackfillConfig, side: str) -> WorkerConfig:
    if side != CANDIDATE:
        return config.worker
    assert config.compare is not None, "only a comparison has a candidate"
    handler = replace(config.worker.handler, python=config.compare.candidate, http=None)
    return replace(config.worker, handler=handler)


def main(arguments: Sequence[str]) -> int:
    """Run requests from the task's process until that process ends or closes the connection."""
    connection, lifeline, file = Connection(int(arguments[0])), int(arguments[1]), int(arguments[2])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    # The lifeline reports the end of the task's process. Signals are ignored: on exit, PySpark's daemon sends SIGHUP to
    # its process group, which would prevent `teardown`.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config_text, side, sizes = connection.recv()
    try:
        config = config_of(config_text)
        log_as(config)
        server = HandlerServer(config, side, CallSlots(file, *sizes))
    except BackfillFailed as error:
        connection.send(error.problem)
        return 0

    def wait_for_end() -> None:
        os.read(lifeline, 1)
        server.abandon()
        # The timer ends the process even if the main thread is in a long handler call.
        timer = threading.Timer(TEARDOWN_S, os._exit, (1,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()
    with suppress(EOFError, ConnectionError):
        # None tells the task that `setup` has succeeded.
        connection.send(None)
        while True:
            for part in server.play(connection.recv()):
                connection.send(part)
    server.tear_down()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
