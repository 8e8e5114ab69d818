"""Rollout of a revision: check it, roll it out, and record it as good or return to the last good revision.

A bad revision must never take a fleet down, and the operator may be killed between any two writes. So all facts except
the elapsed time come from objects in the API server, parsed by the module `parsing`:

- ConfigMaps have the revisions, and the group's state has their verdicts.
- The check pod has the result of the check.
- The StatefulSet and its pods show the progress.

One call of `decide` returns all next steps. `decide` is called again after these steps, until no step is left.

States:  (absent) -> Candidate -> checked Candidate -> Good
                       |  ^            |
             check 20  v  | 10 min     v  runs without becoming Ready in time, and there is a good revision
                    Refused         Refused
                       |               |
                       +---------------+--> Candidate, when the spec or its retry annotation changes

A check that fails for a cause outside the revision (exit code 21: brokers, credentials, topics) is repeated after a
minute. Until then, the revision stays a Candidate, with the cause as its reason. Time in which a pod waits for the
cluster (a node, an image, a volume, a quota) never counts against its revision.

Decision: docs/decisions/0033-rollouts.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fleet_operator.planning.fleet.deadlines import MISSING, TROUBLE_S, check_wait, late_check, late_pod, rollout_wait
from fleet_operator.planning.fleet.parsing import INIT_CONTAINER_FAILED
from fleet_operator.planning.fleet.rollout_facts import CheckFacts, FleetFacts, PodFacts, RevisionRecord, RolloutFacts
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionState

CHECK_RETRY_OUTSIDE_S: Final = 60.0
"""Seconds after which a check is repeated if it failed for a cause outside the revision."""

CHECK_RETRY_INSIDE_S: Final = 600.0
"""Seconds after which a refused revision is checked again, because its image may have been fixed under the same
tag."""

POLL_S: Final = 5.0
"""Seconds between polls of a rollout in progress, in case an event was missed."""


class RolloutPhase(StrEnum):
    HELD = "Held"  # no revision can be planned, or no workers are wanted
    CHECKING = "Checking"  # the check pod is wanted, waiting or running
    CHECK_FAILED = "CheckFailed"  # the check failed for a reason outside the revision and will be repeated
    REFUSED = "Refused"  # the wanted revision is refused; the fleet stays at, or returns to, the last good revision
    APPLYING = "Applying"  # the StatefulSet does not have the revision yet
    WAITING = "Waiting"  # the StatefulSet has the revision, but not all pods are ready
    SETTLED = "Settled"  # the wanted revision is good


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDecision:
    """The next steps of a rollout, to be carried out in this order.

    1. `new_record`: store this record in the group's state. It is always the record of the wanted revision.
    2. `write_revision`: create the wanted revision's copy of the handler's source, if it has one, and its ConfigMap.
    3. `delete_checks`: delete these check pods. `run_check`: create the check pod of the wanted revision.
    4. `target`: apply the revision with this hash to the StatefulSet. If None, an existing StatefulSet stays as it is,
       and no StatefulSet is created.
    5. `delete_pods`: delete these worker pods. `prune`: delete the ConfigMaps of these revisions.

    `cause`: the reason why the wanted revision does not run. `waits`: the cause outside the revision for which the
    rollout waits. `requeue_after`: seconds until the next reconcile; None to wait for an event.
    """

    phase: RolloutPhase
    target: str | None
    cause: Problem | None = None
    waits: Problem | None = None
    write_revision: bool = False
    new_record: RevisionRecord | None = None
    delete_checks: tuple[str, ...] = ()
    run_check: bool = False
    delete_pods: tuple[str, ...] = ()
    prune: tuple[str, ...] = ()
    requeue_after: float | None = None


def decide(facts: RolloutFacts, now: float) -> RolloutDecision:
    decision = _withheld(facts, _choose(facts, now))
    stale_checks = tuple(check.pod for check in facts.checks if check.revision != facts.wanted and not check.deleting)
    return replace(
        decision,
        new_record=decision.new_record or (_recorded(facts) if decision.write_revision else None),
        delete_checks=decision.delete_checks + stale_checks,
        delete_pods=stuck_pods(facts.fleet, facts.pods, facts.records, decision.target),
        prune=facts.prunable(decision.target),
    )


def _withheld(facts: RolloutFacts, decision: RolloutDecision) -> RolloutDecision:
    """Return the decision without a check or rollout of the wanted revision while its connection is unproven."""
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
    assert facts.wanted is not None
    return facts.records.get(facts.wanted) or RevisionRecord(hash=facts.wanted)


def _choose(facts: RolloutFacts, now: float) -> RolloutDecision:
    """Decide the steps for the wanted revision; `decide` adds the cleanup that all decisions share."""
    if facts.wanted is None:
        return RolloutDecision(phase=RolloutPhase.HELD, target=facts.fallback, cause=facts.blocked)
    record = facts.records.get(facts.wanted)
    if record is None and facts.fleet is not None and facts.fleet.revision == facts.wanted:
        # The record of the revision is lost. But the StatefulSet has the revision, so the revision has passed its check
        # and is not checked again.
        known = RevisionRecord(hash=facts.wanted, checked=True)
        held = RolloutDecision(phase=RolloutPhase.HELD, target=facts.wanted)  # the workers must be stopped
        going = _roll_out(facts, known, now) if facts.wanted_replicas > 0 else held
        return replace(going, write_revision=True, new_record=going.new_record or known)
    if facts.wanted_replicas == 0:
        return _at_rest(facts, record)
    if record is None:
        return replace(_check(facts, now), write_revision=True)
    if record.state is RevisionState.REFUSED:
        if record.request != facts.request:
            return _try_again(facts, record)
        if facts.wanted_before not in (None, facts.wanted):
            # Another revision was wanted in between, so this revision counts as requested again. The next reconcile no
            # longer knows that another revision was wanted. So the record first gets an empty request, which differs
            # from every real request.
            unanswered = replace(record, request="")
            return RolloutDecision(
                phase=RolloutPhase.CHECKING, target=facts.fallback, new_record=unanswered, requeue_after=1.0
            )
        if record.checked:
            # The pods of the revision failed. Another check would pass, and another rollout would again replace a
            # working worker.
            return RolloutDecision(phase=RolloutPhase.REFUSED, target=facts.fallback, cause=_cause(record))
    elif record.state is RevisionState.GOOD or record.checked:
        kept = record.state is RevisionState.GOOD and facts.newest_good() is record
        going = _keep_good(facts, record) if kept else _roll_out(facts, record, now)
        return replace(going, write_revision=not record.complete, delete_checks=_check_pods(facts))
    return replace(_check(facts, now), write_revision=not record.complete)


def _at_rest(facts: RolloutFacts, record: RevisionRecord | None) -> RolloutDecision:
    """The decision while no workers are wanted. No revision is checked. A refusal stays in force, because a changed
    number of workers does not request another try. The StatefulSet gets the last good revision: otherwise all workers
    would later start with an unproven revision."""
    fleet, good = facts.fleet, facts.newest_good()
    running = facts.running
    proven = running is not None and facts.records[running].state is RevisionState.GOOD
    target = running if fleet is None or proven or good is None else good.hash
    held = RolloutDecision(phase=RolloutPhase.HELD, target=target)
    if target is None and fleet is not None:
        # The running revision has no record, and its workers must be stopped. Without workers the template does not
        # matter, so the wanted revision is applied.
        held = replace(held, target=facts.wanted, write_revision=record is None)
    if record is None or record.state is not RevisionState.REFUSED or record.request != facts.request:
        return held
    return replace(held, phase=RolloutPhase.REFUSED, cause=_cause(record))


def _try_again(facts: RolloutFacts, record: RevisionRecord) -> RolloutDecision:
    """The decision about a refused revision that was requested again.

    Its old check pod is deleted first, because the result of the old check would refuse the revision again. The old
    refusal is removed from the status immediately, because Helm would take the old refusal for the answer to the new
    request."""
    decision = RolloutDecision(phase=RolloutPhase.CHECKING, target=facts.fallback, requeue_after=1.0)
    old = [check for check in facts.checks if check.revision == facts.wanted]
    if old:
        waits = check_wait(facts, old[0]) if old[0].deleting else None
        return replace(decision, delete_checks=_check_pods(facts), waits=waits, requeue_after=POLL_S)
    forgotten = RevisionRecord(hash=record.hash, request=facts.request, complete=record.complete)
    return replace(decision, new_record=forgotten, write_revision=not record.complete)


def _check(facts: RolloutFacts, now: float) -> RolloutDecision:
    """The decision while the wanted revision has not passed a check."""
    record = _recorded(facts)
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
    if not check.ok:
        return _failed(facts, waiting, record, check, now)
    # The verdict is written before the StatefulSet changes, so that a crash in between needs no new check.
    passed = replace(record, state=RevisionState.CANDIDATE, since=now, reason="", message="", check="", checked=True)
    return replace(_roll_out(facts, passed, now), new_record=passed, delete_checks=(check.pod,))


def _running_check(
    facts: RolloutFacts, waiting: RolloutDecision, record: RevisionRecord, check: CheckFacts, now: float
) -> RolloutDecision:
    """The decision about a check without a result: the check waits for the cluster, runs, or cannot start.

    If the check hangs, the revision is refused, and the check pod is kept so that its log and stack can be read. If the
    check ends later after all, its result counts."""
    waits = check_wait(facts, check)
    if waits is not None or check.waits is not None or check.deleting:
        return replace(waiting, waits=waits)
    if record.state is RevisionState.REFUSED and record.check == check.uid:
        due = now >= _check_due_at(record, now)
        return replace(waiting, delete_checks=(check.pod,) if due else (), requeue_after=1.0 if due else POLL_S)
    late = late_check(facts, check)
    return waiting if late is None else _with_failed_check(waiting, _refused(facts, record, late), check, now)


def _failed(
    facts: RolloutFacts, waiting: RolloutDecision, record: RevisionRecord, check: CheckFacts, now: float
) -> RolloutDecision:
    """Record a check's failure once. The check pod is kept until the next check is due, so that its log can be read."""
    if record.check == check.uid and record.reason:
        due_at = _check_due_at(record, now)
        due = now >= due_at
        return replace(waiting, delete_checks=(check.pod,) if due else (), requeue_after=1.0 if due else due_at - now)
    keeps_dying = check.reason == record.reason == INIT_CONTAINER_FAILED
    if check.outside and record.state is RevisionState.REFUSED:
        # Nobody requested this repeated check. If it fails for a cause outside the revision, such as an unreachable
        # Kafka, the refusal stays in force.
        failed = record
    elif keeps_dying or not check.outside:
        failed = _refused(facts, record, Problem(check.reason, check.message))
    else:
        failed = replace(record, reason=check.reason, message=check.message, checked=False)
    return _with_failed_check(waiting, failed, check, now)


def _refused(facts: RolloutFacts, record: RevisionRecord, why: Problem, *, checked: bool = False) -> RevisionRecord:
    refused = replace(record, state=RevisionState.REFUSED, reason=why.reason, message=why.message, checked=checked)
    return replace(refused, request=facts.request)


def _with_failed_check(
    waiting: RolloutDecision, record: RevisionRecord, check: CheckFacts, now: float
) -> RolloutDecision:
    failed = replace(record, since=now, check=check.uid)
    return replace(
        waiting,
        phase=_phase_of_unchecked(failed),
        cause=_cause(failed),
        new_record=failed,
        requeue_after=max(1.0, _check_due_at(failed, now) - now),
    )


def _check_due_at(record: RevisionRecord, now: float) -> float:
    """Time of the next check in epoch seconds. It is 0, which means immediately, if no check has had a result, or if
    the time of the last result is in the future because of another clock."""
    if not record.reason or record.since is None or record.since > now:
        return 0.0
    inside = record.state is RevisionState.REFUSED
    return record.since + (CHECK_RETRY_INSIDE_S if inside else CHECK_RETRY_OUTSIDE_S)


def _phase_of_unchecked(record: RevisionRecord) -> RolloutPhase:
    """The phase of an unchecked revision. While a check is repeated, the phase still shows the last result."""
    if record.state is RevisionState.REFUSED:
        return RolloutPhase.REFUSED
    return RolloutPhase.CHECK_FAILED if record.reason else RolloutPhase.CHECKING


def _check_pods(facts: RolloutFacts) -> tuple[str, ...]:
    return tuple(check.pod for check in facts.checks if check.revision == facts.wanted and not check.deleting)


def _keep_good(facts: RolloutFacts, record: RevisionRecord) -> RolloutDecision:
    """The decision if the last good revision is wanted. It needs no check, but the fleet may first have to return to
    it."""
    kept = RolloutDecision(phase=RolloutPhase.SETTLED, target=record.hash)
    if facts.fleet is None or facts.fleet.revision != record.hash:
        return replace(kept, phase=RolloutPhase.APPLYING, requeue_after=POLL_S)
    # While the StatefulSet's controller has not seen the return to this revision, it may still create pods of the other
    # revision.
    begun = any(other.checked and other.state is not RevisionState.GOOD for other in facts.records.values())
    seen = facts.fleet.observed or not begun
    if seen and not any(pod.revision not in ("", record.hash) for pod in facts.pods):
        return kept
    return replace(kept, phase=RolloutPhase.WAITING, waits=rollout_wait(facts), requeue_after=POLL_S)


def _roll_out(facts: RolloutFacts, record: RevisionRecord, now: float) -> RolloutDecision:
    """The decision during the rollout of the wanted revision, which may run but has not yet become good (again)."""
    fleet = facts.fleet
    going = RolloutDecision(phase=RolloutPhase.APPLYING, target=record.hash, requeue_after=POLL_S)
    if fleet is None:
        return going
    if fleet.revision != record.hash:
        return replace(going, target=_start_of_rest(facts, fleet) or record.hash)
    going = replace(going, phase=RolloutPhase.WAITING)
    # All pods have the newest template and are available, according to the StatefulSet's status.
    counts = {fleet.replicas, fleet.current_replicas, fleet.updated_replicas, fleet.available_replicas}
    if fleet.observed and counts == {facts.wanted_replicas}:
        new_record = replace(
            record, state=RevisionState.GOOD, since=facts.good_since(now), reason="", message="", checked=True
        )
        return replace(going, phase=RolloutPhase.SETTLED, new_record=new_record, requeue_after=None)
    cause = late_pod(facts)
    if cause is None:
        return replace(going, waits=rollout_wait(facts))
    good = facts.newest_good(other_than=record.hash)
    if good is None:
        return replace(going, cause=cause)
    refused = replace(_refused(facts, record, cause, checked=True), since=now)
    return RolloutDecision(
        phase=RolloutPhase.REFUSED, target=good.hash, cause=cause, new_record=refused, requeue_after=POLL_S
    )


def _start_of_rest(facts: RolloutFacts, fleet: FleetFacts) -> str | None:
    """The good revision with which a fleet that has no pods must start. Only then does the fleet change to an unproven
    revision. None if the unproven revision may be applied immediately.

    A StatefulSet creates all missing pods together, with its newest template; only existing pods are replaced one by
    one. If pods of the good revision cannot be created (for example, because of a quota), the rollout continues without
    these pods.

    Decision: docs/decisions/0041-check-pods.md."""
    leaving = sum(pod.deleting for pod in facts.pods)
    if fleet.replicas > 0 and fleet.observed and fleet.current_replicas > leaving:
        return None
    good = next((r for r in facts.records.values() if r.hash == fleet.revision), None)
    if good is None or good.state is not RevisionState.GOOD or facts.watched.seconds(MISSING) >= TROUBLE_S:
        return None
    return good.hash


def _cause(record: RevisionRecord) -> Problem | None:
    return Problem(record.reason, record.message) if record.reason else None


def stuck_pods(
    fleet: FleetFacts | None, pods: Iterable[PodFacts], records: Mapping[str, RevisionRecord], target: str | None
) -> tuple[str, ...]:
    """Unready pods of refused revisions, to be deleted once the StatefulSet has returned to `target`. The StatefulSet's
    controller replaces a pod only after the pod has become ready, and a pod of a refused revision never becomes
    ready."""
    if fleet is None or fleet.revision != target or not fleet.observed:
        return ()
    refused = {record.hash for record in records.values() if record.state is RevisionState.REFUSED} - {target}
    return tuple(pod.name for pod in pods if pod.revision in refused and not pod.ready and not pod.deleting)
