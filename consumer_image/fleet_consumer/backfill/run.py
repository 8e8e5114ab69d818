"""One attempt of a Backfill: runs one slice after another, and writes the ledger after each slice.

The order of the steps makes a kill harmless. The ledger records a slice only after the slice's writes are acknowledged
and its files committed. If the driver is killed before that, the next attempt repeats only this slice, under the same
number.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from fleet_consumer.backfill.errors import ADVICE, BackfillFailed, ExecutorsLost
from fleet_consumer.backfill.slices import (
    FailedRecord,
    Pace,
    Task,
    TaskRange,
    TaskReport,
    merged,
    offsets_of,
    outcome_of,
    part_of,
    plan_slice,
    slice_offsets,
    slices_left,
    suspected_after,
    total_of,
    without,
)
from fleet_consumer.backfill.work import Work
from fleet_consumer.clock import Clock
from fleet_consumer.contract.backfill_config import BOTH, CANDIDATE, LIVE, BackfillConfig
from fleet_consumer.contract.backfill_ledger import Comparison, Control, Ledger, RunProblem, SuspectedRecord
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

GUARD_AGE_MAX_S: Final = 90.0
"""The Backfill pauses if the operator has not checked the live group for this time."""
POLL_S: Final = 2.0
"""Interval at which the operator's control is read while the Backfill is paused."""
SIGN_POLLS: Final = 10
"""A paused driver writes a sign of life after this many reads of the control, because a silent driver would seem
dead."""


class ControlWatch:
    """Decides from the control if the Backfill must pause. Stores the time of the last change of `guard.checked`."""

    def __init__(self) -> None:
        self._checked: str | None = None
        self._changed_at = 0.0

    def pause(self, control: Control, now: float) -> str | None:
        """Return the reason to pause (a message for people), or None. `control` was read at `now` (monotonic
        seconds)."""
        guard = control.guard
        if guard is None or guard.checked != self._checked:
            self._checked, self._changed_at = None if guard is None else guard.checked, now
        if guard is not None and guard.pause:
            return guard.message
        if guard is not None and now - self._changed_at >= GUARD_AGE_MAX_S:
            # The message has no changing parts, because every change of the message causes a write to the ledger.
            seen = f"the operator has not checked the live group for {GUARD_AGE_MAX_S:.0f} s, so its state is unknown"
            return f"{seen}; check that the operator runs and reaches the brokers"
        return None


GROUP_SLICES: Final = 40
"""Number of slices per commit to the table; about ten minutes of work."""
RATE: Final = "Rate"
GUARD: Final = "Guard"
WAITED_SHARE: Final = 0.05
"""Share of a slice's duration (0.05: 5 %). If the slice's tasks wait for the rate limit for a larger share, the ledger
reports that the rate limit slows the Backfill down."""
POISON_MAX: Final = 10
POISON_SHARE: Final = 0.01
DEATHS_MAX: Final = 12
"""Limits above which the run fails, because the cause must be the handler and not single records.

The run fails if at least POISON_MAX records have killed the handler's process, and these are more than POISON_SHARE of
all records. It also fails if the process has died DEATHS_MAX times without handling a record in between.
"""
REPEATS_MAX: Final = 100
"""The run fails if the handler's process has died in this many tries of one slice of the second pass. Such a slice is
always repeated as a whole. So without this limit, a process that runs out of memory at a different record each time
would repeat the slice without end."""


class Engine(Protocol):
    @property
    def cores(self) -> int: ...

    def play(self, slice_number: int, planned: Sequence[Task], work: Work) -> Mapping[int, TaskReport]: ...

    def play_second_pass(self, slice_number: int, work: Work) -> Mapping[int, TaskReport]: ...

    def publish(self, first: int, end: int) -> None: ...

    def discard(self, first: int, end: int | None = None) -> None: ...


class Ledgers(Protocol):
    def load(self) -> Ledger | None: ...

    def write(self, ledger: Ledger) -> None: ...

    def alive(self, sign: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The dependencies of a run.

    - `check_ranges` raises BackfillFailed if offsets of the ranges are not in the log.
    - `prepare` makes the request for a slice's tasks. Its arguments are the time limit in seconds, the rate of each
      task (records per second, None: unlimited) and the suspected records.
    - `wait` sleeps for the given number of seconds.
    """

    ledgers: Ledgers
    read_control: Callable[[], Control]
    check_ranges: Callable[[Sequence[TaskRange]], None]
    prepare: Callable[[float, float | None, tuple[SuspectedRecord, ...]], Work]
    clock: Clock
    wait: Callable[[float], object]


class Run:
    def __init__(self, config: BackfillConfig, attempt: int, parts: Parts) -> None:
        """Take over the ledger by writing it with this attempt's number. Raises Superseded and SettingsInvalid."""
        self._config = config
        self._attempt = attempt
        self._parts = parts
        self._control_watch = ControlWatch()
        self._handled = self._poison = self._deaths = self._repeats = 0
        # After an executor has died: maximum number of offsets per task, to find the record that kills executors.
        # Otherwise None.
        self._careful: int | None = None
        stored = parts.ledgers.load()
        self._ledger = self._start() if stored is None else self._resumed(stored)
        self._observed = self._ledger.offsets_per_second
        self._write(self._ledger)
        LOG.info(
            "backfill begins" if stored is None else "backfill continues",
            extra=fields(backfill=config.id, attempt=attempt, offsets=self._ledger.offsets_left),
        )

    def go(self, start: Callable[[], Engine]) -> bool:
        """Run all slices. Returns True when all ranges are covered, False when the operator's control stops the run.
        `start` creates the engine, which is slow, so it is called only if there is work."""
        engine: Engine | None = None
        while self._ledger.remaining or self._is_unpublished:
            control = self._await_go()
            # If only staged rows remain, they are committed even after a stop, because no later attempt would commit
            # them.
            if engine is None and (control is not None or not self._ledger.remaining):
                engine = start()
                self._discard(engine)
            if control is None:
                if engine is not None:
                    self._publish_all(engine)
                break
            assert engine is not None, "the control allows work, so the engine was started"
            if self._ledger.remaining:
                self._play(engine, control)
            self._publish(engine, due=not self._ledger.remaining)
        self._end()
        return not self._ledger.remaining

    def fail(self, problem: RunProblem) -> None:
        """Write the problem to the ledger, as the last write of this attempt."""
        self._write(replace(self._ledger, problem=problem, ended=True, slice_offsets=0))

    @property
    def _pass(self) -> str:
        return BOTH if self._config.compare is None else self._config.compare.handlers

    def _start(self) -> Ledger:
        ranges = {part: ((first, end),) for part, (first, end) in sorted(self._config.ranges.items()) if first < end}
        compares = self._config.compare is not None and self._pass != LIVE
        return Ledger(
            attempt=self._attempt, handlers=self._pass, remaining=ranges, comparison=Comparison() if compares else None
        )

    def _resumed(self, stored: Ledger) -> Ledger:
        if stored.handlers == LIVE and self._pass == CANDIDATE:
            if stored.remaining:
                message = f"has {stored.offsets_left} unhandled offsets in pass Live, but the settings name Candidate"
                raise SettingsInvalid("ledger", message)
            # The second pass reads the slices stored by the first pass.
            return replace(self._start(), slices_left=stored.slices_done)
        if stored.handlers != self._pass:
            raise SettingsInvalid("ledger", f"belongs to pass {stored.handlers}, but the settings name {self._pass}")
        return replace(
            stored,
            attempt=self._attempt,
            slice_offsets=0,
            throttled_by="",
            throttle_message="",
            problem=None,
            ended=False,
        )

    def _await_go(self) -> Control | None:
        """Wait while the Backfill is paused. Returns the control for the next slice, or None to stop."""
        polls = 0
        while True:
            control = self._parts.read_control()
            if control.suspend:
                return None
            why = self._control_watch.pause(control, self._parts.clock.monotonic())
            if why is None:
                return control
            self._pause(why)
            polls += 1
            if polls % SIGN_POLLS == 0:
                self._parts.ledgers.alive(polls)
            self._parts.wait(POLL_S)

    def _pause(self, why: str) -> None:
        paused = replace(self._ledger, throttled_by=GUARD, throttle_message=why, slice_offsets=0)
        if self._ledger.throttled_by != GUARD:
            LOG.info("backfill pauses", extra=fields(cause=why))
        if paused != self._ledger:
            self._write(paused)

    def _play(self, engine: Engine, control: Control) -> None:
        ledger, config = self._ledger, self._config
        pace = self._pace(engine, control)
        second = self._pass == CANDIDATE
        planned = plan_slice(ledger.remaining, pace, config.ranges)
        rate = control.records_per_second
        try:
            self._parts.check_ranges([each for task in planned for each in task])
            work = self._parts.prepare(
                config.slice_seconds, None if rate is None else rate / max(1, len(planned)), ledger.suspects
            )
        except BackfillFailed as error:
            # Later attempts may also fail here, so the staged rows are committed now.
            self._publish_before(error, engine)
            raise
        kept = RATE if rate is not None and ledger.throttled_by == RATE else ""
        left = ledger.slices_left if second else slices_left(ledger.remaining, slice_offsets(pace))
        size = sum(map(offsets_of, planned))
        self._write(replace(ledger, slice_offsets=size, slices_left=left, throttled_by=kept, throttle_message=""))
        began = self._parts.clock.monotonic()
        try:
            if second:
                reports = engine.play_second_pass(ledger.slices_done, work)
                outcome = total_of(reports.values())
            else:
                reports = engine.play(ledger.slices_done, planned, work)
                outcome = outcome_of(planned, reports)
        except ExecutorsLost as error:
            raise self._executors_lost(error, planned) from error
        # The speed excludes the overhead of the job, because this overhead does not depend on the job's size.
        worked = outcome.seconds / max(1, len(reports))
        self._observed = outcome.offsets / max(worked, 1e-3)
        self._take_care(reports.values(), planned)
        self._record_slice(outcome, max(1e-3, self._parts.clock.monotonic() - began), pace, rate)
        try:
            self._judge(outcome)
        except BackfillFailed as error:
            self._publish_before(error, engine)
            raise

    def _pace(self, engine: Engine, control: Control) -> Pace:
        config = self._config
        return Pace(
            slice_records=config.slice_records,
            slice_seconds=config.slice_seconds,
            tasks=min(engine.cores, config.parallelism),
            ordered=config.ordering == "Partition",
            # The second pass handles all offsets from the first to the last answer of a file, so files must have no
            # gaps.
            gapless=self._pass == LIVE,
            observed=self._observed,
            rate_limit=control.records_per_second,
            careful=self._careful,
        )

    def _take_care(self, reports: Iterable[TaskReport], planned: Sequence[Task]) -> None:
        """After an executor has died, reduce the size of the next tasks to isolate a record that may kill executors.

        If Spark repeated tasks, the limit is the fewest offsets that a repeated task covered. Each slice without
        repeated tasks doubles the limit. The limit is removed once it is larger than every task.
        """
        repeated = [report.offsets for report in reports if report.repeated]
        if repeated:
            self._careful = max(1, min(repeated))
        elif self._careful is not None:
            largest = max(map(offsets_of, planned), default=0)
            self._careful = None if largest < self._careful else 2 * self._careful

    def _judge(self, outcome: TaskReport) -> None:
        """Raise BackfillFailed if a task stopped or the handler's process died too often. The ledger already has the
        slice."""
        if outcome.failure is not None:
            raise self._handler_failed(outcome.failure, len(outcome.failures))
        if outcome.problem is not None:
            problem = outcome.problem
            raise BackfillFailed(problem.reason, problem.message, final=problem.final)
        self._handled += outcome.records_in
        self._poison += outcome.poison
        well = outcome.records_in > outcome.poison
        self._deaths = 0 if well else self._deaths + bool(outcome.died)
        self._repeats = self._repeats + 1 if self._pass == CANDIDATE and outcome.died else 0
        seen = ""
        if self._poison >= POISON_MAX and self._poison > POISON_SHARE * self._handled:
            seen = f"{self._poison} of {self._handled} records ended the process of their handler"
        elif self._deaths >= DEATHS_MAX:
            seen = f"the process of the handler died {self._deaths} times without handling a record in between"
        elif self._repeats >= REPEATS_MAX:
            number = self._ledger.slices_done
            seen = f"the process of the handler died in each of {self._repeats} tries of slice {number}"
        if seen:
            message = f"{seen}, so the cause is not a single record; {ADVICE}"
            raise BackfillFailed("HandlerProcessDied", message, final=True)

    def _executors_lost(self, error: ExecutorsLost, planned: Sequence[Task]) -> BackfillFailed:
        """Return the error to raise. If a failed task had only one record, this record becomes suspected, and the error
        names it."""
        # A task of a second pass handles the records of some files, not the planned ranges.
        if error.task is None or error.task >= len(planned) or self._pass == CANDIDATE:
            return error
        task = planned[error.task]
        alone = sum(offsets_of(part_of(task, attempt)) == 1 for attempt in range(error.tries))
        if not alone:
            return error
        partition, offset = task[0].partition, task[0].first
        # If both handlers of a comparison run in one pass, either may have ended the executor.
        sides = (LIVE, CANDIDATE) if self._config.compare is not None and self._pass == BOTH else (LIVE,)
        found = [SuspectedRecord(partition=partition, offset=offset, side=side, deaths=alone) for side in sides]
        suspects = suspected_after(self._ledger.suspects, found, self._ledger.remaining)
        self._ledger = replace(self._ledger, suspects=suspects)
        place = f"topic {self._config.topic!r} partition {partition} offset {offset}"
        return BackfillFailed(error.reason, f"at {place}: {error}", final=False)

    def _discard(self, engine: Engine) -> None:
        """Remove files of slices that are not in the ledger. Raises Superseded if a newer attempt may have written the
        files."""
        self._parts.ledgers.load()
        engine.discard(self._ledger.slices_done)

    @property
    def _is_unpublished(self) -> bool:
        return self._config.sink.table is not None and self._ledger.published < self._ledger.slices_done

    def _publish(self, engine: Engine, *, due: bool) -> None:
        """Commit the staged rows to the table, if a commit is `due` or GROUP_SLICES slices are staged.

        The ledger first records which slices the commit contains. If the commit is interrupted, the next attempt
        repeats it with the same rows.
        """
        if not self._is_unpublished:
            return
        published, end = self._ledger.published, self._ledger.publishing
        if end <= published:
            end = self._ledger.slices_done
            if not due and end - published < GROUP_SLICES:
                return
            self._write(replace(self._ledger, publishing=end))
        engine.publish(published, end)
        self._write(replace(self._ledger, published=end))
        engine.discard(published, end)
        LOG.info("rows published", extra=fields(slices=end - published, slicesPublished=end))

    def _publish_all(self, engine: Engine) -> None:
        """Commit all staged rows to the table: first the rows of an interrupted commit, then all others."""
        while self._is_unpublished:
            self._publish(engine, due=True)

    def _publish_before(self, error: BackfillFailed, engine: Engine) -> None:
        """Publish the rows of the finished slices before `error` ends the attempt. If publishing fails, raises
        BackfillFailed with both messages.

        The operator decides by the reason of the raised error how many attempts it allows. If another attempt may be
        able to publish the rows, the reason is that of the failed commit, otherwise that of `error`.
        """
        try:
            self._publish_all(engine)
        except BackfillFailed as unpublished:
            message = f"{error}; the rows of earlier records are not in the table: {unpublished}"
            reason = error.reason if unpublished.final else unpublished.reason
            raise BackfillFailed(reason, message, final=unpublished.final) from unpublished

    def _record_slice(self, outcome: TaskReport, seconds: float, pace: Pace, rate: int | None) -> None:
        ledger = self._ledger
        second = self._pass == CANDIDATE
        whole = outcome.problem is None and not outcome.died
        if second and not whole:
            # An incomplete slice of the second pass is repeated as a whole.
            outcome = TaskReport(waited=outcome.waited, died=outcome.died, repeated=outcome.repeated)
        handled = outcome.records_in + outcome.dropped
        remaining = without(ledger.remaining, outcome.covered)
        if second and whole and ledger.slices_left <= 1:
            # All slices of the first pass are now compared, so no record remains.
            remaining = {}
        bound = rate is not None and outcome.waited > WAITED_SHARE * seconds
        comparison = ledger.comparison
        done = replace(
            ledger,
            remaining=remaining,
            # A slice without covered offsets has no files, so its number is reused.
            slices_done=ledger.slices_done + bool(outcome.covered or (second and whole)),
            slices_left=ledger.slices_left - whole
            if second
            else slices_left(remaining, slice_offsets(replace(pace, observed=self._observed))),
            slice_offsets=0,
            counts=ledger.counts.plus(outcome.counts),
            suspects=suspected_after(ledger.suspects, outcome.died, remaining),
            repeated=ledger.repeated + outcome.repeated,
            comparison=None if comparison is None else merged(comparison, outcome.comparison),
            records_per_second=handled / seconds,
            offsets_per_second=outcome.offsets / seconds,
            throttled_by=RATE if bound else "",
            throttle_message=f"rate.recordsPerSecond is {rate}" if bound else "",
        )
        self._write(done)
        LOG.info(
            "slice done",
            extra=fields(
                slice=ledger.slices_done,
                offsets=outcome.offsets,
                records=outcome.records_in,
                failed=outcome.failed,
                seconds=round(seconds, 1),
                perSecond=round(handled / seconds, 1),
                offsetsLeft=done.offsets_left,
            ),
        )

    def _end(self) -> None:
        ended = replace(self._ledger, ended=True, slice_offsets=0, throttled_by="", throttle_message="")
        self._write(ended)
        LOG.info("backfill ends", extra=fields(offsetsLeft=ended.offsets_left, slices=ended.slices_done))

    def _write(self, ledger: Ledger) -> None:
        self._parts.ledgers.write(ledger)
        self._ledger = ledger

    def _handler_failed(self, failure: FailedRecord, failures: int) -> BackfillFailed:
        place = f"topic {self._config.topic!r} partition {failure.partition} offset {failure.offset}"
        error = f"{failure.error_class}: {failure.message}".removesuffix(": ")
        more = f" (other tasks of the slice that stopped as well: {failures - 1})" if failures > 1 else ""
        advice = "all earlier records of its partition are done; fix the handler, or set onError to Skip or FailedTopic"
        return BackfillFailed("HandlerFailed", f"{place}: {error}{more}; {advice}", final=True)
