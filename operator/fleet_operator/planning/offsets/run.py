"""An OffsetReset as a run: its next step, and its status. Pure; `planning.offsets.reset` has the reset itself.

A reset that was done, or may have been done, is never begun: a mark in the group's commits and an entry in the state
of its group tell of it where its own state is gone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.offsetreset import OffsetReset
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import ENDED, ResetPhase, ResetRecord, mark_of, new_record
from fleet_operator.planning.offsets.reset import ResetFacts, ResetStep, decide_reset, ended
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Ahead, RunDecision, group_not_found, refuse_time, run_conditions

UNREADY: Final = (c.FOREIGN_MEMBERS, c.WORKERS_REMAIN)
ON_THE_WAY: Final = {
    ResetPhase.PENDING: Problem(c.CHECKING, "the operator checks what the reset asks for"),
    ResetPhase.STANDING_DOWN: Problem(c.STOPPING_WORKERS, "the main workers are being stopped"),
    ResetPhase.COMMITTING: Problem(c.RESETTING_OFFSETS, "the new offsets are being committed"),
}
"""Words for a phase in which nothing is in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResetFacts:
    """An OffsetReset and what it depends on.

    - `of`: the fleet and its Kafka group; `record`: what is remembered of the reset.
    - `doubt`: the reason why nobody knows that it was not done before.
    - `begun_before`: its group remembers that it was begun, and its own state does not.
    - `ahead`: the OffsetResets of the same group that go first.
    - `group_gone`: the ConsumerGroup is being deleted or is no more; `deleted`: so is the OffsetReset.
    """

    reset: OffsetReset
    of: ResetFacts
    record: ResetRecord | None = None
    doubt: Problem | None = None
    begun_before: bool = False
    ahead: Ahead | None = None
    group_gone: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class OffsetResetDecision(RunDecision):
    """With the record to be remembered, and the step in Kafka that it allows. That record is remembered before anything
    is changed. `advanced`: the phase is another one than before."""

    record: ResetRecord = field(kw_only=True)
    step: ResetStep | None = field(default=None, kw_only=True)
    advanced: bool = field(default=False, kw_only=True)

    @property
    def is_noted_first(self) -> bool:
        return self.advanced or self.record.phase is ResetPhase.STANDING_DOWN


def decide(facts: OffsetResetFacts, now: float) -> OffsetResetDecision:
    """The next step of an OffsetReset that has not ended; `now` in epoch seconds."""
    reset, known = facts.reset, facts.record
    record, step = known or new_record(now), None
    early = _without_group(facts, record, now) if facts.group_gone else _before_commit(facts, record, now)
    if early is not None:
        record = early
    else:
        record, step = decide_reset(reset, record, facts.of, now, abandoned=facts.deleted)
    advanced = known is None or known.phase is not record.phase
    ahead = facts.ahead if record.reason == c.ANOTHER_RESET_RUNS else None
    return replace(_decision(reset, record, step, advanced=advanced), place=ahead.count if ahead is not None else 0)


def _before_commit(facts: OffsetResetFacts, record: ResetRecord, now: float) -> ResetRecord | None:
    """The record of a reset that may not begin, or not go on before it has changed anything; None for others."""
    if record.phase is ResetPhase.COMMITTING:
        return None
    reset, read = facts.reset, facts.of.finding.read if facts.of.finding is not None else None
    until = times.from_text(reset.spec.not_after)
    if (problem := _refusal(reset)) is not None:
        return ended(record, ResetPhase.FAILED, problem, now)
    if facts.begun_before:
        message = (
            "this reset was begun before, and may have been done in part, while what was before it is not remembered: "
            "nothing more is set; compare the group's offsets with what it asks for, and make another OffsetReset"
        )
        return ended(record, ResetPhase.FAILED, Problem(c.MEMORY_LOST, message), now)
    if read is not None and not reset.spec.dry_run and mark_of(reset) in read.marks:
        message = "commits of the group have the mark of this reset: it was done before"
        return ended(record, ResetPhase.SUCCEEDED, Problem(c.OFFSETS_SET, message), now)
    if facts.deleted:
        message = "it was deleted before anything was changed"
        return ended(record, ResetPhase.CANCELLED, Problem(c.OFFSET_RESET_CANCELLED, message), now)
    if until is not None and now > until:
        message = (
            f"spec.notAfter is over, and nothing was changed: make another OffsetReset (it is {times.to_text(now)})"
        )
        return ended(record, ResetPhase.FAILED, Problem(c.NOT_AFTER_PASSED, message), now)
    if facts.doubt is not None and until is None and not reset.spec.dry_run:
        return _waiting(record, facts.doubt)
    if facts.ahead is not None:
        message = f"OffsetResets of one group take turns: waiting for OffsetReset {facts.ahead.name!r}"
        return _waiting(record, Problem(c.ANOTHER_RESET_RUNS, message))
    return None


def _refusal(reset: OffsetReset) -> Problem | None:
    """The reason why an immutable spec can never be carried out, where the CRD cannot refuse it."""
    remedy = "make another OffsetReset"
    for name, text in (("spec.notAfter", reset.spec.not_after), ("spec.time", reset.spec.time)):
        if (problem := refuse_time(name, text, c.OFFSETS_REFUSED, remedy)) is not None:
            return problem
    times_named = Counter((each.topic, each.partition) for each in reset.spec.offsets or ())
    twice = next((place for place, number in times_named.items() if number > 1), None)
    if twice is None:
        return None
    return Problem(c.OFFSETS_REFUSED, f"spec.offsets names {twice[0]}-{twice[1]} more than once: {remedy}")


def _without_group(facts: OffsetResetFacts, record: ResetRecord, now: float) -> ResetRecord:
    name = facts.reset.spec.group_ref.name
    if record.phase is ResetPhase.PENDING and not facts.deleted:
        return _waiting(record, group_not_found(facts.reset))
    what = "some offsets may be set" if record.phase is ResetPhase.COMMITTING else "nothing was changed"
    problem = Problem(c.GROUP_DELETED, f"ConsumerGroup {name!r} was deleted; {what}")
    return ended(record, ResetPhase.CANCELLED, problem, now)


def _waiting(record: ResetRecord, problem: Problem) -> ResetRecord:
    """Nothing is held up for a reset that waits before it has begun."""
    return replace(record, phase=ResetPhase.PENDING, reason=problem.reason, message=problem.message)


def _decision(
    reset: OffsetReset, record: ResetRecord, step: ResetStep | None, *, advanced: bool
) -> OffsetResetDecision:
    reason, message = record.reason, record.message
    if record.phase is ResetPhase.SUCCEEDED:
        reason = c.OFFSETS_SHOWN if reset.spec.dry_run else c.OFFSETS_SET
        done = "nothing was changed (dry run)" if reset.spec.dry_run else "all offsets were set"
        message = message or f"{len(record.offsets)} partitions: {done}"
    elif not reason and record.phase not in ENDED:
        reason, message = ON_THE_WAY[record.phase].reason, ON_THE_WAY[record.phase].message
    return OffsetResetDecision(record.phase.value, reason, message, record=record, step=step, advanced=advanced)


def project_offset_reset_status(
    reset: OffsetReset, decision: OffsetResetDecision, obstacle: Problem | None, now: float
) -> dict[str, Any]:
    available = "nothing is in the way of the reset"
    verdicts = run_conditions(decision, obstacle, unready=UNREADY, available=available)
    shown, now_text = decision.record.shown(), times.to_text(now)
    return c.with_conditions(shown, verdicts, now_text, reset.metadata.generation, reset.status)
