"""The next step of an OffsetReset and its status. Pure; `planning.offsets.reset` decides the steps in Kafka.

A reset that was done, or may have been done, is never started again. If the state of the OffsetReset is lost, a marker
in the group's commits or an entry in the group's state still shows that the reset was begun.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.api.v1alpha1.offsetreset import OffsetReset
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, marker_of
from fleet_operator.planning.offsets.reset import ResetFacts, ResetStep, decide_reset, ended
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Ahead, RunDecision, group_not_found, refuse_time, run_conditions

UNREADY: Final = (c.FOREIGN_MEMBERS, c.WORKERS_REMAIN)
ON_THE_WAY: Final = {
    ResetPhase.PENDING: Problem(c.CHECKING, "the operator checks the request"),
    ResetPhase.STOPPING_WORKERS: Problem(c.STOPPING_WORKERS, "the main workers are being stopped"),
    ResetPhase.COMMITTING: Problem(c.RESETTING_OFFSETS, "the new offsets are being committed"),
}
"""Reason and message of each phase while no obstacle is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResetFacts:
    """An OffsetReset and its dependencies.

    - `memory_gap`: the reason why this reset may have been done before, although no record shows it; None without
      such a reason.
    - `begun_before`: the group's state lists the reset as begun, but the OffsetReset's own state has no record.
    - `ahead`: the OffsetResets of the same group that run before this one; None without any.
    - `group_gone`: the ConsumerGroup is being deleted or does not exist. `deleted`: the OffsetReset is being deleted.
    """

    reset: OffsetReset
    of: ResetFacts
    record: ResetRecord | None = None
    memory_gap: Problem | None = None
    begun_before: bool = False
    ahead: Ahead | None = None
    group_gone: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class OffsetResetDecision(RunDecision):
    """A decision, with the record to store and the step in Kafka that is allowed once the record is stored (None for no
    step). `advanced`: True if the phase changes."""

    record: ResetRecord = field(kw_only=True)
    step: ResetStep | None = field(default=None, kw_only=True)
    advanced: bool = field(default=False, kw_only=True)

    @property
    def is_recorded_first(self) -> bool:
        return self.advanced or self.record.phase is ResetPhase.STOPPING_WORKERS


def decide(facts: OffsetResetFacts, now: float) -> OffsetResetDecision:
    reset, known = facts.reset, facts.record
    record, step = known or ResetRecord(started_at=times.to_text(now)), None
    early = _without_group(facts, record, now) if facts.group_gone else _before_commit(facts, record, now)
    if early is not None:
        record = early
    else:
        record, step = decide_reset(reset, record, facts.of, now, abandoned=facts.deleted)
    advanced = known is None or known.phase is not record.phase
    place = facts.ahead.count if facts.ahead is not None and record.reason == c.ANOTHER_RESET_RUNS else 0
    phase, reason, message = record.phase, record.reason, record.message
    if phase is ResetPhase.SUCCEEDED:
        reason = c.OFFSETS_SHOWN if reset.spec.dry_run else c.OFFSETS_SET
        done = "nothing was changed (dry run)" if reset.spec.dry_run else "all offsets were set"
        message = message or f"{len(record.offsets)} partitions: {done}"
    elif not reason and phase not in FINAL_PHASES:
        reason, message = ON_THE_WAY[phase].reason, ON_THE_WAY[phase].message
    return OffsetResetDecision(phase.value, reason, message, place=place, record=record, step=step, advanced=advanced)


def _before_commit(facts: OffsetResetFacts, record: ResetRecord, now: float) -> ResetRecord | None:
    """Return the new record if a reset must end or wait before it commits. None if the reset may continue, or if it has
    started to commit."""
    if record.phase is ResetPhase.COMMITTING:
        return None
    reset, read = facts.reset, facts.of.finding.read if facts.of.finding is not None else None
    until = times.from_text(reset.spec.not_after)
    if (problem := _refusal(reset)) is not None:
        return ended(record, ResetPhase.FAILED, problem, now)
    if facts.begun_before:
        message = (
            "this reset was begun before and may be partly done, and its record with the previous offsets is "
            "lost: nothing more is set; compare the group's offsets with the spec, and create another OffsetReset"
        )
        return ended(record, ResetPhase.FAILED, Problem(c.MEMORY_LOST, message), now)
    if read is not None and not reset.spec.dry_run and marker_of(reset) in read.markers:
        message = "commits of the group have the marker of this reset, so it was done before"
        return ended(record, ResetPhase.SUCCEEDED, Problem(c.OFFSETS_SET, message), now)
    if facts.deleted:
        message = "the OffsetReset was deleted before anything was changed"
        return ended(record, ResetPhase.CANCELLED, Problem(c.OFFSET_RESET_CANCELLED, message), now)
    if until is not None and now > until:
        message = (
            f"spec.notAfter has passed (now it is {times.to_text(now)}), and nothing was changed: create another "
            "OffsetReset"
        )
        return ended(record, ResetPhase.FAILED, Problem(c.NOT_AFTER_PASSED, message), now)
    if facts.memory_gap is not None and until is None and not reset.spec.dry_run:
        return _waiting(record, facts.memory_gap)
    if facts.ahead is not None:
        message = f"OffsetResets of one group run one at a time: waiting for OffsetReset {facts.ahead.name!r}"
        return _waiting(record, Problem(c.ANOTHER_RESET_RUNS, message))
    return None


def _refusal(reset: OffsetReset) -> Problem | None:
    """Return the first error in the spec that the CRD cannot detect; None without one. Such an error is final, because
    the spec is immutable."""
    remedy = "create another OffsetReset"
    for name, text in (("spec.notAfter", reset.spec.not_after), ("spec.time", reset.spec.time)):
        if (problem := refuse_time(name, text, c.OFFSETS_REFUSED, remedy)) is not None:
            return problem
    times_named = Counter((each.topic, each.partition) for each in reset.spec.offsets or ())
    twice = next((place for place, number in times_named.items() if number > 1), None)
    if twice is None:
        return None
    return Problem(c.OFFSETS_REFUSED, f"spec.offsets lists {twice[0]}-{twice[1]} more than once: {remedy}")


def _without_group(facts: OffsetResetFacts, record: ResetRecord, now: float) -> ResetRecord:
    name = facts.reset.spec.group_ref.name
    if record.phase is ResetPhase.PENDING and not facts.deleted:
        return _waiting(record, group_not_found(facts.reset))
    what = "some offsets may have been set" if record.phase is ResetPhase.COMMITTING else "nothing was changed"
    problem = Problem(c.GROUP_DELETED, f"ConsumerGroup {name!r} was deleted; {what}")
    return ended(record, ResetPhase.CANCELLED, problem, now)


def _waiting(record: ResetRecord, problem: Problem) -> ResetRecord:
    """Return the record of a reset that is waiting to begin; the workers keep running."""
    return replace(record, phase=ResetPhase.PENDING, reason=problem.reason, message=problem.message)


def project_offset_reset_status(
    reset: OffsetReset, decision: OffsetResetDecision, obstacle: Problem | None, now: float
) -> dict[str, Any]:
    available = "the reset has no obstacle"
    verdicts = run_conditions(decision, obstacle, unready=UNREADY, available=available)
    shown, now_text = decision.record.shown(), times.to_text(now)
    return c.with_conditions(shown, verdicts, now_text, reset.metadata.generation, reset.status)
