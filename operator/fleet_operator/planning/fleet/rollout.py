"""Rollout of a revision: check it, roll it out, record it as good, or return to the last good one.

A bad revision must never take a fleet down, and the operator may be killed between any two writes. So every fact comes
from cluster objects (parsed by `readings`): the revision ConfigMaps record checked, good and rejected revisions, the
check pod has the result of the check, the StatefulSet and its pods show the progress. One call of `decide` returns the
next steps for all of it; carrying them out and calling again converges.

States:  (absent) -> Candidate -> checked Candidate -> Good
                       |  ^            |
             check 20  v  | 10 min     v  not Ready in time, and there is a good revision to go back to
                    Rejected        Rejected (until there is another revision, or the record is removed)

A check that fails for a cause outside the revision (exit 21: brokers, credentials, topics) leaves a Candidate with the
reason on record, and is repeated after a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.problem import Problem

PROGRESS_DEADLINE_S: Final = 120.0
"""Longest time that an updated pod may be unready, for image pull, start and join, before the last good revision
returns."""

CHECK_RETRY_OUTSIDE_S: Final = 60.0
"""Pause before a check is repeated that failed for a reason outside the revision."""

CHECK_RETRY_INSIDE_S: Final = 600.0
"""Pause before a rejected revision is checked again: the image behind a moving tag may have been fixed."""

CHECK_PENDING_S: Final = 60.0
"""Longest wait of a check pod for its node and image before its waiting reason is shown."""

POLL_S: Final = 5.0
"""Poll interval of a rollout in progress, in case an event was missed."""


class RevisionState(StrEnum):
    """State of a revision; the value of the annotation `consumerfleet.io/revision-state`."""

    CANDIDATE = "Candidate"
    GOOD = "Good"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord:
    """One revision ConfigMap as found.

    `since` (epoch seconds) is when it became Good, or when its last failed check ended. `reason` and `message` are
    those of the rejection, or of the last failed check. `complete` is False when the copy of the handler's source is
    missing.
    """

    hash: str
    state: RevisionState = RevisionState.CANDIDATE
    since: float | None = None
    reason: str = ""
    message: str = ""
    checked: bool = False
    complete: bool = True
    pod_template: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """One check pod as found. `ok` is None until it ended; `outside` marks a cause that may pass."""

    pod: str
    revision: str
    ok: bool | None = None
    outside: bool = False
    reason: str = ""
    message: str = ""
    created_at: float = 0.0
    finished_at: float | None = None
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """The StatefulSet as found; `observed` is False while its controller has not seen the newest template."""

    revision: str
    replicas: int
    observed: bool
    current_replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One worker pod as found. `unready_since`, `reason` and `message` are for a pod that is not Ready. `ended` is the
    death of a container that still counts as failing."""

    name: str
    revision: str
    ordinal: int
    unready_since: float | None = None
    deleting: bool = False
    reason: str = ""
    message: str = ""
    ended: ContainerEnd | None = None

    @property
    def ready(self) -> bool:
        return self.unready_since is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Everything a rollout depends on.

    - `wanted`: hash of the revision planned from the spec; None when none can be planned, with the reason in `blocked`.
    - `outside_ok`: Kafka answers, since `outside_ok_since`; without it an unready pod proves nothing against its
      revision.
    - `patience_s`: added to the deadline while others rebalance the group.
    - `used`: revisions that other parts of the fleet run.
    """

    wanted: str | None
    wanted_replicas: int
    blocked: Problem | None = None
    records: Mapping[str, RevisionRecord] = field(default_factory=dict)
    checks: tuple[CheckFacts, ...] = ()
    fleet: FleetFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    outside_ok: bool = True
    outside_ok_since: float | None = None
    patience_s: float = 0.0
    used: frozenset[str] = frozenset()


class RolloutPhase(StrEnum):
    """Phase of a rollout."""

    HELD = "Held"  # no revision can be planned, or no workers are wanted
    CHECKING = "Checking"  # the check pod is wanted, waiting or running
    CHECK_FAILED = "CheckFailed"  # for a reason outside the revision; will be repeated
    REJECTED = "Rejected"  # the wanted revision is rejected; the fleet stays at, or returns to, the last good one
    APPLYING = "Applying"  # the StatefulSet does not have the revision yet
    WAITING = "Waiting"  # the StatefulSet has it, its pods are not all ready
    SETTLED = "Settled"  # the wanted revision is good


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDecision:
    """The next steps, in this order.

    1. `write_revision`: create the wanted revision's copy of the handler's source, if it has one.
    2. `mark`: apply the wanted revision's ConfigMap with this state (never another revision's).
    3. `delete_checks`, `run_check`: delete these check pods; create the wanted revision's.
    4. `target`: hash of the revision for the StatefulSet; None leaves a StatefulSet as it is and makes none.
    5. `delete_pods`, `prune`: delete these worker pods, and the ConfigMaps of these revisions.

    `cause` is the reason why the wanted revision does not run. `requeue_after` is in seconds, None for an event.
    """

    phase: RolloutPhase
    target: str | None
    cause: Problem | None = None
    write_revision: bool = False
    mark: RevisionRecord | None = None
    delete_checks: tuple[str, ...] = ()
    run_check: bool = False
    delete_pods: tuple[str, ...] = ()
    prune: tuple[str, ...] = ()
    requeue_after: float | None = None


def decide(facts: RolloutFacts, now: float) -> RolloutDecision:
    """The next steps of a rollout; `now` in epoch seconds."""
    decision = _choose(facts, now)
    stale_checks = tuple(check.pod for check in facts.checks if check.revision != facts.wanted and not check.deleting)
    mark = decision.mark
    if mark is None and decision.write_revision:
        mark = _recorded(facts)
    return replace(
        decision,
        mark=mark,
        delete_checks=decision.delete_checks + stale_checks,
        delete_pods=stuck_pods(facts.fleet, facts.pods, facts.records, decision.target),
        prune=_prunable(facts, decision),
    )


def _recorded(facts: RolloutFacts) -> RevisionRecord:
    """The recorded state of the wanted revision, to be written again unchanged."""
    assert facts.wanted is not None
    return facts.records.get(facts.wanted) or RevisionRecord(hash=facts.wanted)


def _choose(facts: RolloutFacts, now: float) -> RolloutDecision:
    """The branch for the wanted revision; `decide` adds the cleanup that all branches share."""
    if facts.wanted is None:
        return RolloutDecision(phase=RolloutPhase.HELD, target=_fallback(facts), cause=facts.blocked)
    record = facts.records.get(facts.wanted)
    write = record is None or not record.complete
    if facts.wanted_replicas == 0:
        return RolloutDecision(phase=RolloutPhase.HELD, target=_running(facts))
    if record is not None and record.state is RevisionState.GOOD and _newest_good(facts) is record:
        return RolloutDecision(
            phase=RolloutPhase.SETTLED, target=record.hash, write_revision=write, delete_checks=_check_pods(facts)
        )
    if record is not None and (record.state is RevisionState.GOOD or _is_checked(record)):
        return replace(_roll_out(facts, record, now), write_revision=write, delete_checks=_check_pods(facts))
    if record is not None and record.reason == conditions.PROGRESS_DEADLINE_EXCEEDED:
        return RolloutDecision(phase=RolloutPhase.REJECTED, target=_fallback(facts), cause=_cause(record))
    return replace(_check(facts, record, now), write_revision=write)


def _check(facts: RolloutFacts, record: RevisionRecord | None, now: float) -> RolloutDecision:
    """The wanted revision has not passed a check yet."""
    assert facts.wanted is not None
    record = record or RevisionRecord(hash=facts.wanted)
    due_at = _check_due_at(record)
    check = next((check for check in facts.checks if check.revision == facts.wanted), None)
    waiting = RolloutDecision(
        phase=_phase_of_unchecked(record), target=_fallback(facts), cause=_cause(record), requeue_after=POLL_S
    )
    if check is None:
        due = now >= due_at
        return replace(waiting, run_check=due, requeue_after=POLL_S if due else due_at - now)
    if check.deleting:
        return waiting
    if check.ok is None:
        slow = now - check.created_at >= CHECK_PENDING_S and check.reason and not record.reason
        return replace(waiting, cause=Problem(check.reason, check.message) if slow else waiting.cause)
    if check.ok:
        return _passed(facts, record, check, now)
    return _failed(waiting, record, check, due_at, now)


def _passed(facts: RolloutFacts, record: RevisionRecord, check: CheckFacts, now: float) -> RolloutDecision:
    """The mark is written before the StatefulSet changes, so that after a crash no new check is needed."""
    passed = replace(record, state=RevisionState.CANDIDATE, since=now, reason="", message="", checked=True)
    return replace(_roll_out(facts, passed, now), mark=passed, delete_checks=(check.pod,))


def _failed(
    waiting: RolloutDecision, record: RevisionRecord, check: CheckFacts, due_at: float, now: float
) -> RolloutDecision:
    """A failed check is recorded once. Its pod stays for its log until the next try is due."""
    finished_at = check.finished_at or check.created_at
    noted = bool(record.reason) and record.since is not None and finished_at <= record.since
    if noted:
        due = now >= due_at
        return replace(waiting, delete_checks=(check.pod,) if due else (), requeue_after=1.0 if due else due_at - now)
    state = RevisionState.CANDIDATE if check.outside else RevisionState.REJECTED
    failed = replace(record, state=state, since=finished_at, reason=check.reason, message=check.message, checked=False)
    return replace(
        waiting,
        phase=_phase_of_unchecked(failed),
        cause=_cause(failed),
        mark=failed,
        requeue_after=max(1.0, _check_due_at(failed) - now),
    )


def _check_due_at(record: RevisionRecord) -> float:
    if not record.reason or record.since is None:
        return 0.0
    inside = record.state is RevisionState.REJECTED
    return record.since + (CHECK_RETRY_INSIDE_S if inside else CHECK_RETRY_OUTSIDE_S)


def _phase_of_unchecked(record: RevisionRecord) -> RolloutPhase:
    """The phase of the last check while it is repeated: a status must not flip with every try."""
    if record.state is RevisionState.REJECTED:
        return RolloutPhase.REJECTED
    return RolloutPhase.CHECK_FAILED if record.reason else RolloutPhase.CHECKING


def _is_checked(record: RevisionRecord) -> bool:
    return record.state is RevisionState.CANDIDATE and record.checked


def _check_pods(facts: RolloutFacts) -> tuple[str, ...]:
    """The wanted revision's check pods, once their answer is on record."""
    return tuple(check.pod for check in facts.checks if check.revision == facts.wanted and not check.deleting)


def _roll_out(facts: RolloutFacts, record: RevisionRecord, now: float) -> RolloutDecision:
    """Roll out the wanted revision, which may run and is not known to be good (again)."""
    fleet = facts.fleet
    going = RolloutDecision(phase=RolloutPhase.APPLYING, target=record.hash, requeue_after=POLL_S)
    if fleet is None or fleet.revision != record.hash:
        return going
    going = replace(going, phase=RolloutPhase.WAITING)
    if _complete(fleet, facts.wanted_replicas):
        mark = replace(
            record, state=RevisionState.GOOD, since=_good_since(facts, now), reason="", message="", checked=True
        )
        return replace(going, phase=RolloutPhase.SETTLED, mark=mark, requeue_after=None)
    late = _late_pod(facts, record.hash, now)
    if late is None:
        return going
    message = f"pod {late.name} was not ready within {PROGRESS_DEADLINE_S + facts.patience_s:.0f} s"
    message += f": {late.reason}: {late.message}" if late.reason else f": see its log, `kubectl logs {late.name}`"
    cause = Problem(conditions.PROGRESS_DEADLINE_EXCEEDED, message)
    good = _newest_good(facts, other_than=record.hash)
    if good is None:
        return replace(going, cause=cause)
    mark = replace(record, state=RevisionState.REJECTED, since=now, reason=cause.reason, message=message, checked=True)
    return RolloutDecision(phase=RolloutPhase.REJECTED, target=good.hash, cause=cause, mark=mark, requeue_after=POLL_S)


def _complete(fleet: FleetFacts, wanted_replicas: int) -> bool:
    """True if all pods are of the newest template and available, by the controller's status of this template."""
    counts = (fleet.replicas, fleet.current_replicas, fleet.updated_replicas, fleet.available_replicas)
    return fleet.observed and all(count == wanted_replicas for count in counts)


def _late_pod(facts: RolloutFacts, revision: str, now: float) -> PodFacts | None:
    """An updated pod past its deadline. The deadline starts again when Kafka is back: no worker could join before."""
    if not facts.outside_ok:
        return None
    floor = facts.outside_ok_since or 0.0
    deadline_s = PROGRESS_DEADLINE_S + facts.patience_s
    for pod in facts.pods:
        updated = pod.revision == revision and not pod.deleting
        if updated and pod.unready_since is not None and now - max(pod.unready_since, floor) >= deadline_s:
            return pod
    return None


def _newest_good(facts: RolloutFacts, *, other_than: str | None = None) -> RevisionRecord | None:
    """The revision that was last seen working. A revision that is rolled out again counts only when confirmed again."""
    good = [r for r in facts.records.values() if r.state is RevisionState.GOOD and r.hash != other_than]
    return max(good, key=lambda record: (record.since or 0.0, record.hash == facts.wanted), default=None)


def _good_since(facts: RolloutFacts, now: float) -> float:
    """The time for a revision that became good now: later than all others, also those marked by a leader whose clock
    was ahead. Otherwise the older one would stay the newest, and this one would be marked again and again."""
    newest = _newest_good(facts, other_than=facts.wanted)
    return now if newest is None or newest.since is None else max(now, newest.since + 1.0)


def _running(facts: RolloutFacts) -> str | None:
    return facts.fleet.revision if facts.fleet and facts.fleet.revision in facts.records else None


def _fallback(facts: RolloutFacts) -> str | None:
    """The revision to run while the wanted one may not: the last good one, else the present one."""
    good = _newest_good(facts, other_than=facts.wanted)
    running = _running(facts)
    return good.hash if good and facts.fleet else running


def _cause(record: RevisionRecord) -> Problem | None:
    return Problem(record.reason, record.message) if record.reason else None


def stuck_pods(
    fleet: FleetFacts | None,
    pods: Iterable[PodFacts],
    records: Mapping[str, RevisionRecord],
    target: str | None,
) -> tuple[str, ...]:
    """Unready pods of rejected revisions, once the StatefulSet is back at `target`.

    Its controller waits for an unready pod before it replaces it, and a rejected revision's pod never becomes ready.
    """
    if fleet is None or fleet.revision != target or not fleet.observed:
        return ()
    rejected = {record.hash for record in records.values() if record.state is RevisionState.REJECTED} - {target}
    return tuple(pod.name for pod in pods if pod.revision in rejected and not pod.ready and not pod.deleting)


def _prunable(facts: RolloutFacts, decision: RolloutDecision) -> tuple[str, ...]:
    """Unused revisions: not wanted, not running anywhere, not the fallback."""
    good = _newest_good(facts)
    older_good = _newest_good(facts, other_than=facts.wanted)
    kept = {facts.wanted, decision.target, *(pod.revision for pod in facts.pods)}
    kept |= {facts.fleet.revision} if facts.fleet else set()
    kept |= facts.used
    kept |= {record.hash for record in (good, older_good) if record}
    return tuple(sorted(set(facts.records) - kept))
