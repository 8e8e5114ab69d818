"""Deadlines of a rollout: the time for which pods were watched to run without success, and what they wait for.

The operator adds up the seconds between its own looks by its own steady clock, and at most LOOK_MAX_S for each. No
times of different clocks are compared. So a clock that was set, a node or an earlier leader whose clock is wrong, a
suspended machine, and time in which nobody looked condemn nothing. A new leader starts from zero.

Only time counts in which a container runs without becoming ready, or keeps dying. Time in which a pod waits for
something outside its revision neither counts nor erases what has been counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.pod_wait import BRIEF
from fleet_operator.planning.fleet.rollout_facts import CheckFacts, PodFacts, RolloutFacts, Standing, Stretch, Watched
from fleet_operator.planning.problem import Problem

LOOK_MAX_S: Final = 30.0
"""Most seconds that count between two looks; a rollout in progress is looked at every few seconds."""

READY_S: Final = 5.0
"""Time for which a pod has to be ready to start from zero: as `minReadySeconds`, so that ready moments in a crash loop
do not."""

CHECK_UNSTARTED_S: Final = 60.0
"""Longest wait of a check pod that cannot start for a cause inside the revision, such as an invalid image name."""

TROUBLE_S: Final = 10.0
"""Time that controllers and kubelets have before missing, starting and lingering pods are reported."""

MISSING: Final = "missing pods"
LINGERING: Final = "lingering "
STARTING: Final = "starting "


def watch(before: Watched, facts: RolloutFacts, *, counts: bool, tick: float) -> Watched:
    """The times after this look at `tick`, in steady seconds. Without `counts` all start from zero."""
    fleet = facts.fleet
    subject = f"{facts.wanted} {fleet.revision if fleet else ''} {facts.request}"
    if not counts or subject != before.subject:
        before = Watched()
    passed = min(max(tick - before.looked_at, 0.0), LOOK_MAX_S)
    standings = dict(_standings(facts)) if counts else {}
    stretches = {key: _go_on(before.stretches.get(key), now, passed) for key, now in standings.items()}
    return Watched(subject=subject, looked_at=tick, stretches=stretches)


def _go_on(before: Stretch | None, now: Standing, passed: float) -> Stretch:
    """A stretch after one more look; the seconds that passed belong to what was seen at the look before."""
    if before is None:
        return Stretch(standing=now)
    seconds, ready_s = before.seconds, 0.0
    if before.standing is Standing.TRIES:
        seconds += passed
    if before.standing is Standing.READY:
        ready_s = before.ready_s + passed
        seconds = 0.0 if ready_s >= READY_S else seconds
    return Stretch(standing=now, seconds=seconds, ready_s=ready_s if now is Standing.READY else 0.0)


def _standings(facts: RolloutFacts) -> Iterator[tuple[str, Standing]]:
    for check in facts.checks:
        if check.revision == facts.wanted and check.ok is None:
            yield check.uid, Standing.TRIES if check.waits is None else Standing.WAITS
            if _is_brief(check.waits):
                yield STARTING + check.uid, Standing.TRIES
            if check.deleting:
                yield LINGERING + check.uid, Standing.TRIES
    for pod in _updated(facts):
        if pod.ready:
            yield pod.uid, Standing.READY
        else:
            yield pod.uid, Standing.TRIES if pod.waits is None else Standing.WAITS
            if _is_brief(pod.waits):
                yield STARTING + pod.uid, Standing.TRIES
    yield from ((LINGERING + pod.uid, Standing.TRIES) for pod in facts.pods if pod.deleting)
    if _missing(facts) > 0:
        yield MISSING, Standing.TRIES


def late_pod(facts: RolloutFacts) -> PodFacts | None:
    """A pod of the wanted revision that ran past the deadline without becoming ready."""
    deadline_s = facts.progress_deadline_s + facts.patience_s
    updated = (pod for pod in _updated(facts) if not pod.ready and pod.waits is None)
    return next((pod for pod in updated if facts.watched.seconds(pod.uid) >= deadline_s), None)


def describe_late(facts: RolloutFacts, pod: PodFacts) -> str:
    """The lateness of a pod and, as its log goes with it, how its container died, where it did."""
    late = f"pod {pod.name} ran without being ready for {facts.progress_deadline_s + facts.patience_s:.0f} s"
    if pod.ended is not None:
        return f"{late}: {pod.ended}"
    return f"{late}: {pod.reason}: {pod.message}" if pod.reason else f"{late}: see its log, `kubectl logs {pod.name}`"


def late_check(facts: RolloutFacts, check: CheckFacts) -> Problem | None:
    """The refusal of a check that hangs, or that can never start; it waits for nothing."""
    seconds = facts.watched.seconds(check.uid)
    if check.started and seconds >= facts.check_deadline_s:
        return Problem(
            conditions.CHECK_DEADLINE_EXCEEDED,
            f"the check has run for {facts.check_deadline_s:.0f} s without an answer, so the handler's import "
            f"hangs: see `kubectl logs {check.pod}`, or raise spec.rollout.checkDeadlineSeconds",
        )
    if not check.started and check.reason and seconds >= CHECK_UNSTARTED_S:
        return Problem(check.reason, f"check pod {check.pod} cannot start: {check.message}")
    return None


def check_wait(facts: RolloutFacts, check: CheckFacts) -> Problem | None:
    """The cause outside the revision that keeps its check from an answer."""
    if check.deleting:
        return _lingering(facts, check.pod, check.uid, TROUBLE_S)
    return _told(facts, check.uid, check.waits)


def rollout_wait(facts: RolloutFacts) -> Problem | None:
    """The cause outside the revision that keeps its rollout from going on."""
    for pod in _updated(facts):
        waits = None if pod.ready else _told(facts, pod.uid, pod.waits)
        if waits is not None:
            return waits
    if not facts.outside_ok:
        return Problem(conditions.BROKER_UNREACHABLE, "Kafka does not answer, so no worker can join its group")
    for pod in facts.pods:
        lingers = _lingering(facts, pod.name, pod.uid, facts.grace_s + TROUBLE_S) if pod.deleting else None
        if lingers is not None:
            return lingers
    if facts.watched.seconds(MISSING) < TROUBLE_S:
        return None
    return Problem(
        conditions.PODS_NOT_CREATED,
        f"{_missing(facts)} of {facts.wanted_replicas} pods are not created: a quota or an admission rule refuses "
        "them; `kubectl describe statefulset` shows the answer of the API server in its Events",
    )


def _is_brief(waits: Problem | None) -> bool:
    return waits is not None and waits.reason in BRIEF


def _told(facts: RolloutFacts, uid: str, waits: Problem | None) -> Problem | None:
    """A wait that is worth a word: every pod has a moment without containers."""
    return None if _is_brief(waits) and facts.watched.seconds(STARTING + uid) < TROUBLE_S else waits


def _lingering(facts: RolloutFacts, name: str, uid: str, after_s: float) -> Problem | None:
    if facts.watched.seconds(LINGERING + uid) < after_s:
        return None
    message = f"pod {name} is being deleted, and its kubelet has not confirmed it: see `kubectl describe pod {name}`"
    return Problem(conditions.POD_TERMINATING, message)


def _updated(facts: RolloutFacts) -> Iterator[PodFacts]:
    """The pods of the wanted revision, while the StatefulSet has it."""
    if facts.fleet is not None and facts.fleet.revision == facts.wanted:
        yield from (pod for pod in facts.pods if pod.revision == facts.wanted and not pod.deleting)


def _missing(facts: RolloutFacts) -> int:
    """Pods that the StatefulSet's controller has not created. One that replaces another is missing for a moment."""
    fleet = facts.fleet
    if fleet is None or not fleet.observed:
        return 0
    return facts.wanted_replicas - fleet.current_replicas if fleet.replicas == facts.wanted_replicas else 0
