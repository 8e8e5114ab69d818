"""An OffsetReset as a run: its next step, and its status. Pure; `planning.offsets.reset` has the reset itself.

A reset that was done, or may have been done, is never begun: a mark in the group's commits and an entry in the state
of its group tell of it where its own state is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.consumergroup import OffsetReset as ResetRequest
from fleet_operator.api.v1alpha1.offsetreset import OffsetReset, PartitionOffset
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import (
    ENDED,
    OffsetsByTopic,
    ResetPhase,
    ResetRecord,
    digest_of,
    mark_of,
    new_record,
)
from fleet_operator.planning.offsets.reset import ResetFacts, ResetStep, decide_reset
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import RunDecision, run_conditions

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

    - `of`: what the reset itself depends on; its `last` and `dry` are taken from `record`, as it is remembered.
    - `doubt`: the reason why nobody knows that it was not done before.
    - `begun_before`: its group remembers that it was begun, and its own state does not.
    - `rival`: the OffsetReset of the same group whose turn it is.
    - `group_gone`: the ConsumerGroup is being deleted or is no more; `deleted`: so is the OffsetReset.
    """

    reset: OffsetReset
    of: ResetFacts
    record: ResetRecord | None = None
    doubt: Problem | None = None
    begun_before: bool = False
    rival: str | None = None
    group_gone: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class OffsetResetDecision(RunDecision):
    """With the record to be remembered, and the step in Kafka, to be taken for `step_for`."""

    record: ResetRecord | None = field(default=None, kw_only=True)
    step: ResetStep | None = field(default=None, kw_only=True)
    step_for: ResetRecord | None = field(default=None, kw_only=True)
    advanced: bool = field(default=False, kw_only=True)

    @property
    def is_noted_first(self) -> bool:
        return self.advanced or (self.record is not None and self.record.phase is ResetPhase.STANDING_DOWN)


def request_of(reset: OffsetReset) -> ResetRequest:
    """The request of an OffsetReset, under its name."""
    spec = reset.spec
    offsets: dict[str, dict[str, int]] = {}
    for each in spec.offsets or ():
        offsets.setdefault(each.topic, {})[str(each.partition)] = each.offset
    return ResetRequest(
        id=reset.metadata.name,
        to=spec.to,
        time=spec.time,
        topics=spec.topics,
        offsets=offsets or None,
        dry_run=spec.dry_run,
    )


def mark_of_reset(reset: OffsetReset, record: ResetRecord) -> str:
    """The metadata of this reset's commits: the same for an object that is made again."""
    return mark_of(record, reset.metadata.namespace)


def decide(facts: OffsetResetFacts, now: float) -> OffsetResetDecision:
    """The next step of an OffsetReset that has not ended; `now` in epoch seconds."""
    reset, known = facts.reset, facts.record
    record = known or new_record(request_of(reset), now)
    if facts.group_gone:
        return _without_group(reset, known, record, now)
    if record.phase is not ResetPhase.COMMITTING:
        early = _before_commit(facts, record, now)
        if early is not None:
            return early
    wanted = None if facts.deleted else request_of(reset)
    dry, last = (known, None) if reset.spec.dry_run else (None, known)
    found = decide_reset(replace(facts.of, wanted=wanted, dry=dry, last=last), now)
    after = found.dry if reset.spec.dry_run else found.last
    decision = _decision(reset, after or record)
    return replace(decision, step=found.step, step_for=found.step_for, advanced=found.advanced)


def _before_commit(facts: OffsetResetFacts, record: ResetRecord, now: float) -> OffsetResetDecision | None:
    """The decision for a reset that may not begin, or not go on before it has changed anything; None for others."""
    reset, read = facts.reset, facts.of.finding.read if facts.of.finding is not None else None
    until = times.from_text(reset.spec.not_after)
    if (problem := _refusal(reset)) is not None:
        return _ended(reset, record, ResetPhase.FAILED, problem, now)
    if facts.begun_before:
        message = (
            "this reset was begun before, and may have been done in part, while what was before it is not remembered: "
            "nothing more is set; compare the group's offsets with what it asks for, and make another OffsetReset"
        )
        return _ended(reset, record, ResetPhase.FAILED, Problem(c.MEMORY_LOST, message), now)
    if read is not None and not reset.spec.dry_run and mark_of_reset(reset, record) in read.marks:
        message = "commits of the group have the mark of this reset: it was done before"
        return _ended(reset, record, ResetPhase.SUCCEEDED, Problem(c.OFFSETS_SET, message), now)
    if until is not None and now > until:
        message = (
            f"spec.notAfter is over, and nothing was changed: make another OffsetReset (it is {times.to_text(now)})"
        )
        return _ended(reset, record, ResetPhase.FAILED, Problem(c.NOT_AFTER_PASSED, message), now)
    if facts.doubt is not None and until is None and not reset.spec.dry_run:
        return _waiting(reset, record, facts.doubt)
    if facts.rival is not None:
        message = f"OffsetResets of one group take turns: waiting for OffsetReset {facts.rival!r}"
        return _waiting(reset, record, Problem(c.ANOTHER_RESET_RUNS, message))
    return None


def _refusal(reset: OffsetReset) -> Problem | None:
    """The reason why an immutable spec can never be carried out, where the CRD cannot refuse it."""
    until = reset.spec.not_after
    if until is not None and times.from_text(until) is None:
        return Problem(
            c.OFFSETS_REFUSED, f"spec.notAfter: {until!r} is not a time (RFC 3339): make another OffsetReset"
        )
    places = [(each.topic, each.partition) for each in reset.spec.offsets or ()]
    twice = (
        next((place for place in places if places.count(place) > 1), None) if len(set(places)) < len(places) else None
    )
    if twice is None:
        return None
    message = f"spec.offsets names {twice[0]}-{twice[1]} more than once: make another OffsetReset"
    return Problem(c.OFFSETS_REFUSED, message)


def _without_group(
    reset: OffsetReset, known: ResetRecord | None, record: ResetRecord, now: float
) -> OffsetResetDecision:
    name = reset.spec.group_ref.name
    if known is None or known.phase is ResetPhase.PENDING:
        message = f"ConsumerGroup {name!r} is not in namespace {reset.metadata.namespace}: create it there"
        return _waiting(reset, record, Problem(c.GROUP_NOT_FOUND, message))
    what = "some offsets may be set" if known.phase is ResetPhase.COMMITTING else "nothing was changed"
    problem = Problem(c.GROUP_DELETED, f"ConsumerGroup {name!r} was deleted; {what}")
    return _ended(reset, record, ResetPhase.CANCELLED, problem, now)


def _waiting(reset: OffsetReset, record: ResetRecord, problem: Problem) -> OffsetResetDecision:
    """Nothing is held up for a reset that waits before it has begun."""
    waits = replace(record, phase=ResetPhase.PENDING, reason=problem.reason, message=problem.message)
    return _decision(reset, waits)


def _ended(
    reset: OffsetReset, record: ResetRecord, phase: ResetPhase, problem: Problem, now: float
) -> OffsetResetDecision:
    ended = replace(record, phase=phase, reason=problem.reason, message=problem.message, finished_at=times.to_text(now))
    return _decision(reset, ended)


def _decision(reset: OffsetReset, record: ResetRecord) -> OffsetResetDecision:
    reason, message = record.reason, record.message
    if record.phase is ResetPhase.SUCCEEDED:
        reason = c.OFFSETS_SHOWN if reset.spec.dry_run else c.OFFSETS_SET
        done = "nothing was changed (dry run)" if reset.spec.dry_run else "all offsets were set"
        message = message or f"{record.partitions} partitions: {done}"
    elif record.phase is ResetPhase.CANCELLED:
        reason = reason or c.OFFSET_RESET_CANCELLED
    elif not reason and record.phase not in ENDED:
        reason, message = ON_THE_WAY[record.phase].reason, ON_THE_WAY[record.phase].message
    return OffsetResetDecision(record.phase.value, reason, message, record=record)


def project_offset_reset_status(
    reset: OffsetReset, decision: OffsetResetDecision, obstacle: Problem | None, now: float
) -> dict[str, Any]:
    """The whole status."""
    record = decision.record
    assert record is not None, "each decision has a record"
    status: dict[str, Any] = {
        "phase": record.phase.value,
        "partitions": record.partitions or None,
        "previous": list_offsets(record.previous),
        "resolved": list_offsets(record.offsets),
        "note": record.note or None,
        "startedAt": record.started_at,
        "finishedAt": record.finished_at,
    }
    status = {name: value for name, value in status.items() if value}
    available = "nothing is in the way of the reset"
    verdicts = run_conditions(decision, obstacle, unready=UNREADY, available=available)
    return c.with_conditions(status, verdicts, times.to_text(now), reset.metadata.generation, reset.status)


def list_offsets(offsets: OffsetsByTopic) -> list[dict[str, Any]]:
    """Offsets in the shape of `spec.offsets`."""
    return [
        PartitionOffset(topic=topic, partition=number, offset=offset).model_dump()
        for topic, of in sorted(offsets.items())
        for number, offset in sorted(of.items())
    ]


def is_same(record: ResetRecord | None, reset: OffsetReset) -> bool:
    """True if a record is of what this OffsetReset asks for: a namesake may have asked for something else."""
    return record is not None and record.digest == digest_of(request_of(reset))


def oldest_first(bodies: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Objects in the order in which they were made."""
    return sorted(bodies, key=lambda each: (each["metadata"].get("creationTimestamp") or "", each["metadata"]["name"]))
