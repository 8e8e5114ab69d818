"""Rollout of a revision: check it, roll it out, record it as good, or return to the last good one.

A bad revision must never take a fleet down, and the operator may be killed between any two writes. So every fact comes
from cluster objects (parsed by `readings`): the revision ConfigMaps record checked, good and refused revisions, the
check pod has the result of the check, the StatefulSet and its pods show the progress. One call of `decide` returns the
next steps for all of it; carrying them out and calling again converges.

States:  (absent) -> Candidate -> checked Candidate -> Good
                       |  ^            |
             check 20  v  | 10 min     v  runs and does not become Ready in time, and there is a good revision
                    Refused         Refused
                       |               |
                       +---------------+--> Candidate, when the spec or its retry annotation changes

A check that fails for a cause outside the revision (exit 21: brokers, credentials, topics) leaves a Candidate with the
reason on record, and is repeated after a minute. Time that a pod spends waiting for the cluster (a node, an image, a
volume, quota) never counts against its revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.deadlines import (
    MISSING,
    TROUBLE_S,
    check_wait,
    describe_late,
    late_check,
    late_pod,
    rollout_wait,
)
from fleet_operator.planning.fleet.readings import INIT_CONTAINER_FAILED
from fleet_operator.planning.fleet.rollout_facts import CheckFacts, FleetFacts, PodFacts, RevisionRecord, RolloutFacts
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionState

CHECK_RETRY_OUTSIDE_S: Final = 60.0
"""Pause before a check is repeated that failed for a reason outside the revision."""

CHECK_RETRY_INSIDE_S: Final = 600.0
"""Pause before a refused revision is checked again: the image behind a moving tag may have been fixed."""

POLL_S: Final = 5.0
"""Poll interval of a rollout in progress, in case an event was missed."""


class RolloutPhase(StrEnum):
    HELD = "Held"  # no revision can be planned, or no workers are wanted
    CHECKING = "Checking"  # the check pod is wanted, waiting or running
    CHECK_FAILED = "CheckFailed"  # for a reason outside the revision; will be repeated
    REFUSED = "Refused"  # the wanted revision is refused; the fleet stays at, or returns to, the last good one
    APPLYING = "Applying"  # the StatefulSet does not have the revision yet
    WAITING = "Waiting"  # the StatefulSet has it, its pods are not all ready
    SETTLED = "Settled"  # the wanted revision is good


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDecision:
    """The next steps, in this order.

    1. `mark`: remember this of the wanted revision (never of another one), in the group's state.
    2. `write_revision`: create the wanted revision's copy of the handler's source, if it has one, and its ConfigMap.
    3. `delete_checks`, `run_check`: delete these check pods; create the wanted revision's.
    4. `target`: hash of the revision for the StatefulSet; None leaves a StatefulSet as it is and makes none.
    5. `delete_pods`, `prune`: delete these worker pods, and the ConfigMaps of these revisions.

    `cause` is the reason why the wanted revision does not run; `waits` is set while nothing but the cluster keeps it
    from running. `requeue_after` is in seconds, None for an event.
    """

    phase: RolloutPhase
    target: str | None
    cause: Problem | None = None
    waits: Problem | None = None
    write_revision: bool = False
    mark: RevisionRecord | None = None
    delete_checks: tuple[str, ...] = ()
    run_check: bool = False
    delete_pods: tuple[str, ...] = ()
    prune: tuple[str, ...] = ()
    requeue_after: float | None = None


def decide(facts: RolloutFacts, now: float) -> RolloutDecision:
    """The next steps of a rollout; `now` in epoch seconds."""
    decision = _withheld(facts, _choose(facts, now))
    stale_checks = tuple(check.pod for check in facts.checks if check.revision != facts.wanted and not check.deleting)
    mark = decision.mark
    if mark is None and decision.write_revision:
        mark = _recorded(facts)
    return replace(
        decision,
        mark=mark,
        delete_checks=decision.delete_checks + stale_checks,
        delete_pods=stuck_pods(facts.fleet, facts.pods, facts.records, decision.target),
        prune=facts.prunable(decision.target),
    )


def _withheld(facts: RolloutFacts, decision: RolloutDecision) -> RolloutDecision:
    """Without a check, and without the wanted revision where it does not run yet, while its connection is unproven."""
    if facts.unproven is None or facts.wanted is None:
        return decision
    applies = decision.target == facts.wanted and (facts.fleet is None or facts.fleet.revision != facts.wanted)
    if not (applies or decision.run_check):
        return decision
    return replace(
        decision,
        phase=RolloutPhase.CHECKING if applies else decision.phase,
        target=facts.fallback if applies else decision.target,
        run_check=False,
        waits=facts.unproven if decision.cause is None else decision.waits,
        requeue_after=min(decision.requeue_after or POLL_S, POLL_S),
    )


def _recorded(facts: RolloutFacts) -> RevisionRecord:
    """The recorded state of the wanted revision, to be written again unchanged."""
    assert facts.wanted is not None
    return facts.records.get(facts.wanted) or RevisionRecord(hash=facts.wanted)


def _choose(facts: RolloutFacts, now: float) -> RolloutDecision:
    """The branch for the wanted revision; `decide` adds the cleanup that all branches share."""
    if facts.wanted is None:
        return RolloutDecision(phase=RolloutPhase.HELD, target=facts.fallback, cause=facts.blocked)
    record = facts.records.get(facts.wanted)
    write = record is None or not record.complete
    if facts.wanted_replicas == 0:
        return _at_rest(facts, record)
    if record is None and facts.fleet is not None and facts.fleet.revision == facts.wanted:
        # Its record is lost. The StatefulSet has it, so it was checked, and nothing has to go back for another check.
        known = RevisionRecord(hash=facts.wanted, checked=True)
        going = _roll_out(facts, known, now)
        return replace(going, write_revision=True, mark=going.mark or known)
    if record is not None and record.state is RevisionState.REFUSED:
        if record.request != facts.request:
            return _try_again(facts, record)
        if facts.wanted_before not in (None, facts.wanted):
            return _ask_anew(facts, record)
    if record is not None and record.state is RevisionState.GOOD and facts.newest_good() is record:
        return replace(_keep_good(facts, record), write_revision=write, delete_checks=_check_pods(facts))
    if record is not None and (record.state is RevisionState.GOOD or _is_checked(record)):
        return replace(_roll_out(facts, record, now), write_revision=write, delete_checks=_check_pods(facts))
    if record is not None and record.state is RevisionState.REFUSED and record.checked:
        # By its pods. A check would pass again, and another try costs the fleet a worker.
        return RolloutDecision(phase=RolloutPhase.REFUSED, target=facts.fallback, cause=_cause(record))
    return replace(_check(facts, record, now), write_revision=write)


def _at_rest(facts: RolloutFacts, record: RevisionRecord | None) -> RolloutDecision:
    """No workers are wanted, so nothing is checked. A refusal stands: the number of workers asks for nothing.

    The fleet rests at the last good revision, or all workers would start again at one that was being tried.
    """
    fleet, good = facts.fleet, facts.newest_good()
    if record is None and fleet is not None and fleet.revision == facts.wanted:
        # Its record is lost. The template is known all the same, and the workers have to be stopped.
        known = RevisionRecord(hash=fleet.revision, checked=True)
        return RolloutDecision(phase=RolloutPhase.HELD, target=fleet.revision, write_revision=True, mark=known)
    running = facts.running
    proven = running is not None and facts.records[running].state is RevisionState.GOOD
    target = running if fleet is None or proven or good is None else good.hash
    held = RolloutDecision(phase=RolloutPhase.HELD, target=target)
    if target is None and fleet is not None:
        # Nothing that runs is on record, and it has to be stopped: without workers one template is like another.
        held = replace(held, target=facts.wanted, write_revision=record is None)
    if record is None or record.state is not RevisionState.REFUSED or record.request != facts.request:
        return held
    return replace(held, phase=RolloutPhase.REFUSED, cause=_cause(record))


def _try_again(facts: RolloutFacts, record: RevisionRecord) -> RolloutDecision:
    """A refused revision that was asked for again. The old check goes first, or its answer would refuse it again.

    The old refusal is shown no more from the first step on: it would be taken for the answer to the new request.
    """
    decision = RolloutDecision(phase=RolloutPhase.CHECKING, target=facts.fallback, requeue_after=1.0)
    old = [check for check in facts.checks if check.revision == facts.wanted]
    if old:
        waits = check_wait(facts, old[0]) if old[0].deleting else None
        return replace(decision, delete_checks=_check_pods(facts), waits=waits, requeue_after=POLL_S)
    forgotten = RevisionRecord(hash=record.hash, request=facts.request, complete=record.complete)
    return replace(decision, mark=forgotten, write_revision=not record.complete)


def _ask_anew(facts: RolloutFacts, record: RevisionRecord) -> RolloutDecision:
    """A refused revision is wanted again after another one. That is forgotten at the next look, so the record has to
    say first that no request was answered."""
    return RolloutDecision(
        phase=RolloutPhase.CHECKING, target=facts.fallback, mark=replace(record, request=""), requeue_after=1.0
    )


def _check(facts: RolloutFacts, record: RevisionRecord | None, now: float) -> RolloutDecision:
    """The wanted revision has not passed a check yet."""
    assert facts.wanted is not None
    record = record or RevisionRecord(hash=facts.wanted)
    check = next((check for check in facts.checks if check.revision == facts.wanted), None)
    waiting = RolloutDecision(
        phase=_phase_of_unchecked(record), target=facts.fallback, cause=_cause(record), requeue_after=POLL_S
    )
    if check is None:
        due_at = _check_due_at(record, now)
        due = now >= due_at
        return replace(waiting, run_check=due, requeue_after=POLL_S if due else due_at - now)
    if check.deleting or check.ok is None:
        return _running_check(facts, waiting, record, check, now)
    return _passed(facts, record, check, now) if check.ok else _failed(facts, waiting, record, check, now)


def _running_check(
    facts: RolloutFacts, waiting: RolloutDecision, record: RevisionRecord, check: CheckFacts, now: float
) -> RolloutDecision:
    """A check without an answer: it waits for the cluster, it runs, or it cannot start.

    One that hangs is refused and stays for its log and its stack; should it end after all, its answer counts.
    """
    waits = check_wait(facts, check)
    if waits is not None or check.waits is not None or check.deleting:
        return replace(waiting, waits=waits)
    if record.state is RevisionState.REFUSED and record.check == check.uid:
        due = now >= _check_due_at(record, now)
        return replace(waiting, delete_checks=(check.pod,) if due else (), requeue_after=1.0 if due else POLL_S)
    late = late_check(facts, check)
    return waiting if late is None else _refused(facts, waiting, record, check, late, now=now)


def _passed(facts: RolloutFacts, record: RevisionRecord, check: CheckFacts, now: float) -> RolloutDecision:
    """The mark is written before the StatefulSet changes, so that after a crash no new check is needed."""
    passed = replace(record, state=RevisionState.CANDIDATE, since=now, reason="", message="", check="", checked=True)
    return replace(_roll_out(facts, passed, now), mark=passed, delete_checks=(check.pod,))


def _failed(
    facts: RolloutFacts, waiting: RolloutDecision, record: RevisionRecord, check: CheckFacts, now: float
) -> RolloutDecision:
    """A failed check is recorded once. Its pod stays for its log until the next try is due."""
    if record.check == check.uid and record.reason:
        due_at = _check_due_at(record, now)
        due = now >= due_at
        return replace(waiting, delete_checks=(check.pod,) if due else (), requeue_after=1.0 if due else due_at - now)
    problem = Problem(check.reason, check.message)
    if check.outside and record.state is RevisionState.REFUSED:
        # A try that nobody asked for: Kafka is away, and that takes no refusal back.
        return _noted(waiting, replace(record, check=check.uid, since=now), now)
    keeps_dying = check.reason == record.reason == INIT_CONTAINER_FAILED
    if keeps_dying or not check.outside:
        return _refused(facts, waiting, record, check, problem, now=now)
    return _noted(waiting, _with_answer(record, RevisionState.CANDIDATE, problem, check, now), now)


def _refused(
    facts: RolloutFacts,
    waiting: RolloutDecision,
    record: RevisionRecord,
    check: CheckFacts,
    problem: Problem,
    *,
    now: float,
) -> RolloutDecision:
    failed = _with_answer(record, RevisionState.REFUSED, problem, check, now)
    return _noted(waiting, replace(failed, request=facts.request), now)


def _with_answer(
    record: RevisionRecord, state: RevisionState, problem: Problem, check: CheckFacts, now: float
) -> RevisionRecord:
    return replace(
        record, state=state, since=now, reason=problem.reason, message=problem.message, check=check.uid, checked=False
    )


def _noted(waiting: RolloutDecision, failed: RevisionRecord, now: float) -> RolloutDecision:
    return replace(
        waiting,
        phase=_phase_of_unchecked(failed),
        cause=_cause(failed),
        mark=failed,
        requeue_after=max(1.0, _check_due_at(failed, now) - now),
    )


def _check_due_at(record: RevisionRecord, now: float) -> float:
    """The time at which the next check is due. An answer from the future was noted by a leader with another clock."""
    if not record.reason or record.since is None or record.since > now:
        return 0.0
    inside = record.state is RevisionState.REFUSED
    return record.since + (CHECK_RETRY_INSIDE_S if inside else CHECK_RETRY_OUTSIDE_S)


def _phase_of_unchecked(record: RevisionRecord) -> RolloutPhase:
    """The phase of the last check while it is repeated: a status must not flip with every try."""
    if record.state is RevisionState.REFUSED:
        return RolloutPhase.REFUSED
    return RolloutPhase.CHECK_FAILED if record.reason else RolloutPhase.CHECKING


def _is_checked(record: RevisionRecord) -> bool:
    return record.state is RevisionState.CANDIDATE and record.checked


def _check_pods(facts: RolloutFacts) -> tuple[str, ...]:
    """The wanted revision's check pods, once their answer is on record."""
    return tuple(check.pod for check in facts.checks if check.revision == facts.wanted and not check.deleting)


def _keep_good(facts: RolloutFacts, record: RevisionRecord) -> RolloutDecision:
    """The wanted revision is the last good one: it needs no proof, and nothing takes its place.

    It may have to come back first, from another revision whose rollout had begun.
    """
    kept = RolloutDecision(phase=RolloutPhase.SETTLED, target=record.hash)
    if facts.fleet is None or facts.fleet.revision != record.hash:
        return replace(kept, phase=RolloutPhase.APPLYING, requeue_after=POLL_S)
    # A controller that has not seen the return may have deleted a pod for the other revision, and make it at that one.
    begun = any(other.checked and other.state is not RevisionState.GOOD for other in facts.records.values())
    seen = facts.fleet.observed or not begun
    if seen and not any(pod.revision not in ("", record.hash) for pod in facts.pods):
        return kept
    return replace(kept, phase=RolloutPhase.WAITING, waits=rollout_wait(facts), requeue_after=POLL_S)


def _roll_out(facts: RolloutFacts, record: RevisionRecord, now: float) -> RolloutDecision:
    """Roll out the wanted revision, which may run and is not known to be good (again)."""
    fleet = facts.fleet
    going = RolloutDecision(phase=RolloutPhase.APPLYING, target=record.hash, requeue_after=POLL_S)
    if fleet is None:
        return going
    if fleet.revision != record.hash:
        return replace(going, target=_start_of_rest(facts, fleet) or record.hash)
    going = replace(going, phase=RolloutPhase.WAITING)
    if _complete(fleet, facts.wanted_replicas):
        mark = replace(
            record, state=RevisionState.GOOD, since=facts.good_since(now), reason="", message="", checked=True
        )
        return replace(going, phase=RolloutPhase.SETTLED, mark=mark, requeue_after=None)
    late = late_pod(facts)
    if late is None:
        return replace(going, waits=rollout_wait(facts))
    cause = Problem(conditions.PROGRESS_DEADLINE_EXCEEDED, describe_late(facts, late))
    good = facts.newest_good(other_than=record.hash)
    if good is None:
        return replace(going, cause=cause)
    refused = replace(
        record,
        state=RevisionState.REFUSED,
        since=now,
        reason=cause.reason,
        message=cause.message,
        request=facts.request,
        checked=True,
    )
    return RolloutDecision(
        phase=RolloutPhase.REFUSED, target=good.hash, cause=cause, mark=refused, requeue_after=POLL_S
    )


def _start_of_rest(facts: RolloutFacts, fleet: FleetFacts) -> str | None:
    """The good revision at which a fleet without pods starts before it changes to an unproven one, else None.

    A StatefulSet makes missing pods at its newest template, all at once; one by one it replaces only those that exist.
    Where pods of the good revision cannot be made either (a quota), the new one goes on without them.
    """
    leaving = sum(pod.deleting for pod in facts.pods)
    if fleet.replicas > 0 and fleet.observed and fleet.current_replicas > leaving:
        return None
    good = next((r for r in facts.records.values() if r.hash == fleet.revision), None)
    if good is None or good.state is not RevisionState.GOOD or facts.watched.seconds(MISSING) >= TROUBLE_S:
        return None
    return good.hash


def _complete(fleet: FleetFacts, wanted_replicas: int) -> bool:
    """True if all pods are of the newest template and available, by the controller's status of this template."""
    counts = (fleet.replicas, fleet.current_replicas, fleet.updated_replicas, fleet.available_replicas)
    return fleet.observed and all(count == wanted_replicas for count in counts)


def _cause(record: RevisionRecord) -> Problem | None:
    return Problem(record.reason, record.message) if record.reason else None


def stuck_pods(
    fleet: FleetFacts | None, pods: Iterable[PodFacts], records: Mapping[str, RevisionRecord], target: str | None
) -> tuple[str, ...]:
    """Unready pods of refused revisions, once the StatefulSet is back at `target`.

    Its controller waits for an unready pod before it replaces it, and a refused revision's pod never becomes ready.
    """
    if fleet is None or fleet.revision != target or not fleet.observed:
        return ()
    refused = {record.hash for record in records.values() if record.state is RevisionState.REFUSED} - {target}
    return tuple(pod.name for pod in pods if pod.revision in refused and not pod.ready and not pod.deleting)
