"""Deadlines of a rollout: the time for which pods have run without becoming ready, and the reasons why pods wait.

The operator adds up the seconds between its own reconciles. It measures them with its monotonic clock, counts at most
`GAP_MAX_S` between two reconciles, and never compares times of different clocks. So a revision is never refused because
a clock was changed or is wrong, a machine was suspended, or reconciles paused. A new leader starts from zero.

Time counts only while a container runs without becoming ready, or keeps dying. A pod that waits for something outside
its revision adds no time, and keeps the time counted so far.

Decision: docs/decisions/0033-rollouts.md.
"""

from collections.abc import Iterator
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.pod_wait import BRIEF
from fleet_operator.planning.fleet.rollout_facts import (
    CheckFacts,
    CountedTime,
    PodFacts,
    PodState,
    RolloutFacts,
    Watched,
)
from fleet_operator.planning.problem import Problem

GAP_MAX_S: Final = 30.0
"""Maximum seconds counted between two reconciles. A rollout in progress is reconciled every few seconds."""

READY_S: Final = 5.0
"""If a pod has been ready for this many seconds, the time counted against it is reset to zero. Being ready for a moment
is not enough, because a pod in a crash loop may do so (compare `minReadySeconds`)."""

CHECK_UNSTARTED_S: Final = 60.0
"""A revision is refused if its check pod cannot start for this many seconds because of the revision itself, for
example because of an invalid image name."""

TROUBLE_S: Final = 10.0
"""Pods that are late in being created, starting or terminating are reported only after this many seconds, because
controllers and kubelets need some time."""

MISSING: Final = "missing pods"
LINGERING: Final = "lingering "
STARTING: Final = "starting "


def watch(before: Watched, facts: RolloutFacts, *, counts: bool, tick: float) -> Watched:
    """Update the counted times. If `counts` is False, all times restart from zero. `tick`: now, in monotonic
    seconds."""
    fleet = facts.fleet
    subject = f"{facts.wanted} {fleet.revision if fleet else ''} {facts.request}"
    if not counts or subject != before.subject:
        before = Watched()
    passed = min(max(tick - before.checked_at, 0.0), GAP_MAX_S)
    states = dict(_pod_states(facts)) if counts else {}
    counted = {key: _count_time(before.counted.get(key), now, passed) for key, now in states.items()}
    return Watched(subject=subject, checked_at=tick, counted=counted)


def _count_time(before: CountedTime | None, now: PodState, passed: float) -> CountedTime:
    """Add the seconds since the previous reconcile (`passed`) to a pod's counted time. The pod is assumed to have been
    in its previous state for all of these seconds. `now`: its present state."""
    if before is None:
        return CountedTime(state=now)
    seconds, ready_s = before.seconds, 0.0
    if before.state is PodState.TRIES:
        seconds += passed
    if before.state is PodState.READY:
        ready_s = before.ready_s + passed
        seconds = 0.0 if ready_s >= READY_S else seconds
    return CountedTime(state=now, seconds=seconds, ready_s=ready_s if now is PodState.READY else 0.0)


def _pod_states(facts: RolloutFacts) -> Iterator[tuple[str, PodState]]:
    checks = [check for check in facts.checks if check.revision == facts.wanted and check.ok is None]
    unready: list[CheckFacts | PodFacts] = [*checks, *(pod for pod in _updated(facts) if not pod.ready)]
    for pod in unready:
        yield pod.uid, PodState.TRIES if pod.waits is None else PodState.WAITS
        if _is_brief(pod.waits):
            yield STARTING + pod.uid, PodState.TRIES
    yield from ((pod.uid, PodState.READY) for pod in _updated(facts) if pod.ready)
    every: list[CheckFacts | PodFacts] = [*checks, *facts.pods]
    yield from ((LINGERING + pod.uid, PodState.TRIES) for pod in every if pod.deleting)
    if _missing(facts) > 0:
        yield MISSING, PodState.TRIES


def late_pod(facts: RolloutFacts) -> Problem | None:
    """The refusal of a revision because a pod is late; None without a late pod. The message says how a container died,
    because the log is deleted with the pod."""
    deadline_s = facts.progress_deadline_s + facts.patience_s
    for pod in _updated(facts):
        if pod.ready or pod.waits is not None or facts.watched.seconds(pod.uid) < deadline_s:
            continue
        why = f"{pod.reason}: {pod.message}" if pod.reason else f"see its log, `kubectl logs {pod.name}`"
        message = f"pod {pod.name} ran without being ready for {deadline_s:.0f} s: {pod.ended or why}"
        return Problem(conditions.PROGRESS_DEADLINE_EXCEEDED, message)
    return None


def late_check(facts: RolloutFacts, check: CheckFacts) -> Problem | None:
    """The refusal of a revision because its check hangs, or because its check cannot start for a cause inside the
    revision. None if neither is the case."""
    seconds = facts.watched.seconds(check.uid)
    if check.started and seconds >= facts.check_deadline_s:
        return Problem(
            conditions.CHECK_DEADLINE_EXCEEDED,
            f"the check has run for {facts.check_deadline_s:.0f} s without a result, so the handler's import "
            f"hangs: see `kubectl logs {check.pod}`, or raise spec.rollout.checkDeadlineSeconds",
        )
    if not check.started and check.reason and seconds >= CHECK_UNSTARTED_S:
        return Problem(check.reason, f"check pod {check.pod} cannot start: {check.message}")
    return None


def check_wait(facts: RolloutFacts, check: CheckFacts) -> Problem | None:
    """The cause outside the revision that delays the check's result; None if there is none."""
    if check.deleting:
        return _lingering(facts, check.pod, check.uid, TROUBLE_S)
    return _told(facts, check.uid, check.waits)


def rollout_wait(facts: RolloutFacts) -> Problem | None:
    """The cause outside the wanted revision that holds up its rollout; None if there is none."""
    for pod in _updated(facts):
        waits = None if pod.ready else _told(facts, pod.uid, pod.waits)
        if waits is not None:
            return waits
    if not facts.outside_ok:
        return Problem(conditions.BROKER_UNREACHABLE, "Kafka does not answer, so no worker can join the Kafka group")
    for pod in facts.pods:
        lingers = _lingering(facts, pod.name, pod.uid, facts.grace_s + TROUBLE_S) if pod.deleting else None
        if lingers is not None:
            return lingers
    if facts.watched.seconds(MISSING) < TROUBLE_S:
        return None
    return Problem(
        conditions.PODS_NOT_CREATED,
        f"{_missing(facts)} of {facts.wanted_replicas} pods are not created, probably because a quota or an admission "
        "rule refuses them: see the API server's answer in the Events of `kubectl describe statefulset`",
    )


def _is_brief(waits: Problem | None) -> bool:
    return waits is not None and waits.reason in BRIEF


def _told(facts: RolloutFacts, uid: str, waits: Problem | None) -> Problem | None:
    """Return `waits` if the wait should be reported. The usual waits of a starting pod are reported only after
    `TROUBLE_S`."""
    return None if _is_brief(waits) and facts.watched.seconds(STARTING + uid) < TROUBLE_S else waits


def _lingering(facts: RolloutFacts, name: str, uid: str, after_s: float) -> Problem | None:
    if facts.watched.seconds(LINGERING + uid) < after_s:
        return None
    message = f"pod {name} is being deleted, but its kubelet has not confirmed that: see `kubectl describe pod {name}`"
    return Problem(conditions.POD_TERMINATING, message)


def _updated(facts: RolloutFacts) -> Iterator[PodFacts]:
    """The pods of the wanted revision that are not being deleted; none until the StatefulSet has this revision."""
    if facts.fleet is not None and facts.fleet.revision == facts.wanted:
        yield from (pod for pod in facts.pods if pod.revision == facts.wanted and not pod.deleting)


def _missing(facts: RolloutFacts) -> int:
    """The number of wanted pods that do not exist. While a pod is being replaced, it counts as missing."""
    fleet = facts.fleet
    if fleet is None or not fleet.observed:
        return 0
    return facts.wanted_replicas - fleet.current_replicas if fleet.replicas == facts.wanted_replicas else 0
