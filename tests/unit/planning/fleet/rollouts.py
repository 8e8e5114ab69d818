"""Facts of rollouts from revision OLD, which runs, to revision NEW."""

from __future__ import annotations

from typing import Any

from fleet_operator.planning.fleet.rollout import (
    RolloutDecision,
    decide,
)
from fleet_operator.planning.fleet.rollout_facts import (
    CheckFacts,
    CountedTime,
    PodState,
    RevisionRecord,
    RolloutFacts,
    Watched,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionState
from tests.unit.planning.builders import NOW, ready_fleet

PROGRESS_DEADLINE_S = 600.0
OLD, NEW = "a" * 10, "b" * 10
GOOD, REFUSED, CANDIDATE = RevisionState.GOOD, RevisionState.REFUSED, RevisionState.CANDIDATE


def record(revision: str, **changes: Any) -> RevisionRecord:
    return RevisionRecord(hash=revision, **({"pod_template": {"of": revision}} | changes))


def good(revision: str = OLD, since: float = NOW - 9000) -> RevisionRecord:
    return record(revision, state=GOOD, since=since, checked=True)


def check(**changes: Any) -> CheckFacts:
    base: dict[str, Any] = {"pod": f"orders-check-{NEW}", "revision": NEW, "uid": "c2"}
    return CheckFacts(**(base | changes))


def failed_check(*, outside: bool) -> CheckFacts:
    reason = "BrokerUnreachable" if outside else "HandlerImportFailed"
    return check(uid="c1", ok=False, outside=outside, reason=reason, message="why")


def watched(**seconds: float) -> Watched:
    """Seconds that were counted so far, by uid."""
    return Watched(counted={uid: CountedTime(state=PodState.TRIES, seconds=each) for uid, each in seconds.items()})


def rollout(*records: RevisionRecord, **changes: Any) -> RolloutDecision:
    """Decide with revision NEW wanted, two replicas, and the old fleet running unless said otherwise."""
    base: dict[str, Any] = {
        "wanted": NEW,
        "wanted_replicas": 2,
        "records": {r.hash: r for r in records},
        "fleet": ready_fleet(revision=OLD),
    }
    return decide(RolloutFacts(**(base | changes)), NOW)


PULLING = Problem("ImagePullBackOff", "pod orders-1, container worker: Back-off pulling image")
