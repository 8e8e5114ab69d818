"""One attempt of a Backfill, slice by slice, with the ledger after each.

The order makes a kill harmless at any point: a slice's writes are acknowledged and its files committed, then the ledger
says so. After a kill in between the next attempt plays the slice of that number again, and at most that one.
"""

from __future__ import annotations

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
    suspected,
    total_of,
    without,
)
from fleet_consumer.backfill.work import Work
from fleet_consumer.clock import Clock
from fleet_consumer.contract.backfill_config import BOTH, CANDIDATE, LIVE, BackfillConfig
from fleet_consumer.contract.backfill_ledger import Comparison, Control, Ledger, RunProblem, Suspect
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

LOOK_AGE_MAX_S: Final = 90.0
"""A guard that has not looked for so long knows nothing."""
POLL_S: Final = 2.0
"""Interval of the looks at the control while paused."""
SIGN_LOOKS: Final = 10
"""Looks from one sign of life to the next while paused: else nothing would tell a pause from a dead driver."""


class Orders:
    """Judges each state of the control; remembers when the guard's look changed last."""

    def __init__(self) -> None:
        self._look: str | None = None
        self._changed_at = 0.0

    def pause(self, control: Control, now: float) -> str | None:
        """The reason to pause by this control, read at `now`, for people; None to go on."""
        guard = control.guard
        if guard is None or guard.look != self._look:
            self._look, self._changed_at = None if guard is None else guard.look, now
        if guard is not None and guard.pause:
            return guard.message
        if guard is not None and now - self._changed_at >= LOOK_AGE_MAX_S:
            # Without the age: the text is written to the ledger when it changes.
            seen = f"the operator has not looked at the live group for {LOOK_AGE_MAX_S:.0f} s: its state is unknown"
            return f"{seen}; see that the operator runs and reaches the brokers"
        return None


GROUP_SLICES: Final = 40
"""Slices that are published together: ten minutes of them."""
RATE: Final = "Rate"
GUARD: Final = "Guard"
WAITED_SHARE: Final = 0.05
"""The limit binds if tasks waited for it for this part of a slice."""
POISON_MAX: Final = 10
POISON_SHARE: Final = 0.01
DEATHS_MAX: Final = 12
"""So many records that end their process, and this part of all, speak of the handler and not of the records; and so do
so many deaths with no record handled in between."""
AGAIN_MAX: Final = 100
"""So many times a slice of a second pass is gone through. It is done as a whole or not at all: one in which a process
with too little memory dies at another record each time would never be done."""


class Engine(Protocol):
    @property
    def cores(self) -> int: ...

    def play(self, slice_number: int, planned: Sequence[Task], work: Work) -> Mapping[int, TaskReport]: ...

    def play_second_pass(self, slice_number: int, work: Work) -> Mapping[int, TaskReport]: ...

    def publish(self, first: int, end: int) -> None: ...

    def discard(self, first: int, end: int | None = None) -> None: ...


class Ledgers(Protocol):
    def read(self) -> Ledger | None: ...

    def write(self, ledger: Ledger) -> None: ...

    def alive(self, sign: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a run.

    `read_control` reads the operator's orders. `check_ranges` raises BackfillFailed if brokers do not have a part of
    these ranges. `prepare` makes the order to a slice's tasks from their time, their rate and the suspects. `wait`
    passes time.
    """

    ledgers: Ledgers
    read_control: Callable[[], Control]
    check_ranges: Callable[[Sequence[TaskRange]], None]
    prepare: Callable[[float, float | None, tuple[Suspect, ...]], Work]
    clock: Clock
    wait: Callable[[float], object]


class Run:
    """One attempt. `go` returns when all is covered or the control says stop."""

    def __init__(self, config: BackfillConfig, attempt: int, parts: Parts) -> None:
        """Claim the ledger: read it, and write it as this attempt's. Raises Superseded and SettingsInvalid."""
        self._config = config
        self._attempt = attempt
        self._parts = parts
        self._orders = Orders()
        self._handled = self._poison = self._deaths = self._again = 0
        # The most offsets of a task while an executor's death is being looked into.
        self._careful: int | None = None
        stored = parts.ledgers.read()
        self._ledger = self._start() if stored is None else self._resumed(stored)
        self._observed = self._ledger.offsets_per_second
        self._write(self._ledger)
        LOG.info(
            "backfill begins" if stored is None else "backfill goes on",
            extra=fields(backfill=config.id, attempt=attempt, offsets=self._ledger.offsets_left),
        )

    def go(self, start: Callable[[], Engine]) -> bool:
        """Play all slices; True when everything is covered, False when stopped by the control.

        `start` makes the engine, which takes a while: at the first use, and not for a run that has nothing to do.
        """
        engine: Engine | None = None
        while self._ledger.remaining or self._is_unpublished:
            control = self._await_go()
            # Rows that are all that is left are published in any case: an end with nothing left is that of the run.
            if engine is None and (control is not None or not self._ledger.remaining):
                engine = start()
                self._discard(engine)
            if control is None:
                if engine is not None:
                    self._publish_all(engine)
                break
            assert engine is not None, "it is started for whatever is to be done"
            if self._ledger.remaining:
                self._play(engine, control)
            self._publish(engine, due=not self._ledger.remaining)
        self._end()
        return not self._ledger.remaining

    def fail(self, problem: RunProblem) -> None:
        """Write the last word of an attempt that ends with an error."""
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
                message = f"is at the pass Live with {stored.offsets_left} offsets left, and the settings say Candidate"
                raise SettingsInvalid("ledger", message)
            # It goes through the slices of the first pass.
            return replace(self._start(), slices_left=stored.slices_done)
        if stored.handlers != self._pass:
            raise SettingsInvalid("ledger", f"is at the pass {stored.handlers}, and the settings say {self._pass}")
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
        """The control under which the next slice runs, after pauses; None to stop."""
        looks = 0
        while True:
            control = self._parts.read_control()
            if control.suspend:
                return None
            why = self._orders.pause(control, self._parts.clock.monotonic())
            if why is None:
                return control
            self._pause(why)
            looks += 1
            if looks % SIGN_LOOKS == 0:
                self._parts.ledgers.alive(looks)
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
            # No later attempt may come any further.
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
        # Of the tasks alone: the job around them costs the same for any size.
        worked = outcome.seconds / max(1, len(reports))
        self._observed = outcome.offsets / max(worked, 1e-3)
        self._take_care(reports.values(), planned)
        self._note(outcome, max(1e-3, self._parts.clock.monotonic() - began), pace, rate)
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
            # The second pass reads from the first to the last of the answers that it takes at once.
            gapless=self._pass == LIVE,
            observed=self._observed,
            rate_limit=control.records_per_second,
            careful=self._careful,
        )

    def _take_care(self, reports: Iterable[TaskReport], planned: Sequence[Task]) -> None:
        """Make tasks small after one whose executor died, so that the record which ends executors is soon alone; and
        twice as large behind each slice in which none died."""
        repeated = [report.offsets for report in reports if report.repeated]
        if repeated:
            self._careful = max(1, min(repeated))
        elif self._careful is not None:
            largest = max(map(offsets_of, planned), default=0)
            self._careful = None if largest < self._careful else 2 * self._careful

    def _judge(self, outcome: TaskReport) -> None:
        """Raise BackfillFailed for what a task has stopped for. What the slice has covered is noted by then."""
        if outcome.failure is not None:
            raise self._handler_failed(outcome.failure, len(outcome.failures))
        if outcome.problem is not None:
            problem = outcome.problem
            raise BackfillFailed(problem.reason, problem.message, final=problem.final)
        self._handled += outcome.records_in
        self._poison += outcome.poison
        well = outcome.records_in > outcome.poison
        self._deaths = 0 if well else self._deaths + bool(outcome.died)
        self._again = self._again + 1 if self._pass == CANDIDATE and outcome.died else 0
        seen = ""
        if self._poison >= POISON_MAX and self._poison > POISON_SHARE * self._handled:
            seen = f"{self._poison} of {self._handled} records ended the process of their handler"
        elif self._deaths >= DEATHS_MAX:
            seen = f"the process of the handler died {self._deaths} times, and handled no record in between"
        elif self._again >= AGAIN_MAX:
            number = self._ledger.slices_done
            seen = f"the process of the handler died in slice {number} each of {self._again} times"
        if seen:
            message = f"{seen}, so the cause is not in the records: {ADVICE}"
            raise BackfillFailed("HandlerProcessDied", message, final=True)

    def _executors_lost(self, error: ExecutorsLost, planned: Sequence[Task]) -> BackfillFailed:
        """The error with the record at which a task died that took nothing else; it is a suspect from now on."""
        # A task of a second pass takes the answers of some files, whatever is planned.
        if error.task is None or error.task >= len(planned) or self._pass == CANDIDATE:
            return error
        task = planned[error.task]
        alone = sum(offsets_of(part_of(task, attempt)) == 1 for attempt in range(error.tries))
        if not alone:
            return error
        partition, offset = task[0].partition, task[0].first
        # Side by side it may have been either handler.
        sides = (LIVE, CANDIDATE) if self._config.compare is not None and self._pass == BOTH else (LIVE,)
        found = [Suspect(partition=partition, offset=offset, side=side, deaths=alone) for side in sides]
        suspects = suspected(self._ledger.suspects, found, self._ledger.remaining)
        self._ledger = replace(self._ledger, suspects=suspects)
        place = f"topic {self._config.topic!r} partition {partition} offset {offset}"
        return BackfillFailed(error.reason, f"at the record {place}: {error}", final=False)

    def _discard(self, engine: Engine) -> None:
        """Remove files of slices that are not in the ledger. Raises Superseded, or they may be a newer attempt's."""
        self._parts.ledgers.read()
        engine.discard(self._ledger.slices_done)

    @property
    def _is_unpublished(self) -> bool:
        return self._config.sink.table is not None and self._ledger.published < self._ledger.slices_done

    def _publish(self, engine: Engine, *, due: bool) -> None:
        """Publish the staged rows of a table, if there are enough or it is `due`.

        The ledger names the slices before: a publication whose end a death has hidden is tried again with the same.
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
        """Publish all staged rows: first those of a publication that was cut short, then the others."""
        while self._is_unpublished:
            self._publish(engine, due=True)

    def _publish_before(self, error: BackfillFailed, engine: Engine) -> None:
        """Publish what is before the error that ends the attempt.

        Where that fails, the message has both. While another attempt may publish, the reason is the publication's, by
        which the operator counts attempts.
        """
        try:
            self._publish_all(engine)
        except BackfillFailed as unpublished:
            message = f"{error}; the rows before it are not published: {unpublished}"
            reason = error.reason if unpublished.final else unpublished.reason
            raise BackfillFailed(reason, message, final=unpublished.final) from unpublished

    def _note(self, outcome: TaskReport, seconds: float, pace: Pace, rate: int | None) -> None:
        ledger = self._ledger
        second = self._pass == CANDIDATE
        whole = outcome.problem is None and not outcome.died
        if second and not whole:
            # It goes through the answers of a slice as a whole, or once more.
            outcome = TaskReport(waited=outcome.waited, died=outcome.died, repeated=outcome.repeated)
        handled = outcome.records_in + outcome.dropped
        remaining = without(ledger.remaining, outcome.covered)
        if second and whole and ledger.slices_left <= 1:
            # Behind the last answers of the first pass there are no records.
            remaining = {}
        bound = rate is not None and outcome.waited > WAITED_SHARE * seconds
        comparison = ledger.comparison
        done = replace(
            ledger,
            remaining=remaining,
            # One that has covered nothing has no files, and its number is given again.
            slices_done=ledger.slices_done + bool(outcome.covered or (second and whole)),
            slices_left=ledger.slices_left - whole
            if second
            else slices_left(remaining, slice_offsets(replace(pace, observed=self._observed))),
            slice_offsets=0,
            counts=ledger.counts.plus(outcome.counts),
            suspects=suspected(ledger.suspects, outcome.died, remaining),
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
        more = f" ({failures - 1} other tasks of the slice stopped as well)" if failures > 1 else ""
        advice = "what is before it in its partition is done; mend the handler, or set onError to Skip or FailedTopic"
        return BackfillFailed("HandlerFailed", f"{place}: {error}{more}; {advice}", final=True)
