"""`status.scaling` and the conditions of scaling: the last decision, with its inputs.

Rates change constantly. So the entry is written only when the decision changes, or when a number changes by a factor of
two. While a fleet's size and load are steady, no writes occur.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning import times
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.load import two_digits
from fleet_operator.planning.status.facts import ConsumerGroupFacts

REASON_CHARACTERS_MAX: Final = 1024
DRIFT: Final = 0.5
"""A number in the status is replaced only if the new number differs from it by at least this share of the larger
number. 0.5 means a factor of two. Metrics have exact numbers."""
DRIFTING: Final = ("arrivalPerSecond", "perReplicaPerSecond", "rawReplicas", "usefulReplicas")
EXACT: Final = ("proposedReplicas", "decision")
INACTIVE: Final = frozenset({limits.UNKNOWN, limits.GROUP_SHARED, limits.BREAKER_OPEN})
"""Values of `status.limit` while the number of workers does not follow the load."""
REMEDIES: Final = {
    limits.PARTITIONS: "no more workers can own a partition: add partitions, or make the handler faster",
    limits.MAX_REPLICAS: "raise maxReplicas in spec.scaling, or in the schedule in force, for more workers",
    limits.REBALANCE_BUDGET: "raise spec.scaling.maxRebalancesPerHour if the group tolerates more rebalances",
    limits.HOT_PARTITION: "one partition can use only one worker: spread its keys, or make the handler faster",
    limits.STUCK_PARTITION: "see the condition Stuck, and spec.offsets.skip for records that cannot be handled",
    limits.LAGGING: "check whether the handler waits for something while its worker is not busy",
    limits.DOWNSTREAM: "check the systems that the handler depends on; more workers are tried again within minutes",
}


def scaling_status(facts: ConsumerGroupFacts, previous: Mapping[str, Any], now: float) -> dict[str, Any]:
    if facts.group.spec.scaling is None:
        return {}
    before: Mapping[str, Any] = previous.get("scaling") or {}
    decision = facts.scale
    if decision.inputs is None:
        return {"scaling": dict(before)} if before else {}
    shown = entry_of(decision)
    if decision.load_unknown and before:
        # The entry keeps its last known numbers and their time `at`.
        return {"scaling": {**before, "decision": shown["decision"], "reason": shown["reason"]}}
    step = _last_step(decision, before, previous, now)
    kept = {key: value for key, value in before.items() if key != "lastStep"}
    if previous.get("limit") != decision.limit or is_moved(kept, shown):
        kept = shown | {"at": times.to_text(now)}
    return {"scaling": kept | ({"lastStep": step} if step else {})}


def is_moved(before: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    differs = any(before.get(name) != shown.get(name) for name in EXACT)
    return differs or not all(_is_near(before.get(name), shown.get(name)) for name in DRIFTING)


def entry_of(decision: ScaleDecision) -> dict[str, Any]:
    inputs = decision.inputs
    assert inputs is not None, "a decision by load"
    rates = {"arrivalPerSecond": inputs.arrival, "perReplicaPerSecond": inputs.capacity, "rawReplicas": inputs.raw}
    entry: dict[str, Any] = {name: two_digits(value) for name, value in rates.items() if value is not None}
    counts = {"usefulReplicas": inputs.useful, "proposedReplicas": decision.proposed}
    entry |= {name: count for name, count in counts.items() if count is not None}
    return entry | {"decision": decision.verb, "reason": decision.reason[:REASON_CHARACTERS_MAX]}


def _last_step(
    decision: ScaleDecision, before: Mapping[str, Any], previous: Mapping[str, Any], now: float
) -> Mapping[str, Any] | None:
    """Return the last change of the number of workers, with its reason. The change is kept separately, because the next
    decision replaces the reason of the entry."""
    known: Mapping[str, Any] | None = before.get("lastStep")
    target = previous.get("targetReplicas")
    if target is None or target == decision.replicas or decision.current in (None, decision.replicas):
        return known
    reason = decision.reason[:REASON_CHARACTERS_MAX]
    return {"from": decision.current, "to": decision.replicas, "at": times.to_text(now), "reason": reason}


def _is_near(before: str | int | None, now: str | int | None) -> bool:
    """True if a number has not changed enough to be written to the status."""
    if before is None or now is None or before == now:
        return before == now
    old, new = _stored_number(before), _stored_number(now)
    return old is not None and new is not None and abs(new - old) < DRIFT * max(old, new)


def _stored_number(text: str | int | None) -> float | None:
    """Parse a number in a stored status, which users may edit; None if the operator cannot have written this value."""
    try:
        number = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return number if 0.0 <= number < float("inf") else None


def scaling_active(facts: ConsumerGroupFacts) -> Condition:
    """False while the number of workers does not follow the load."""
    scaling, decision = facts.group.spec.scaling, facts.scale
    kept = decision.memory is not None and bool(decision.memory.count)
    held = f"the fleet keeps the {decision.replicas} workers that its load required, until spec.replicas is edited"
    if scaling is None:
        message = held if kept else "the fleet has spec.replicas workers"
        return Condition(c.SCALING_ACTIVE, "False", c.FIXED_REPLICAS, message)
    if decision.inputs is None:
        reason = decision.limit if decision.limit != limits.NO_LIMIT else c.SUSPENDED
        return Condition(c.SCALING_ACTIVE, "False", reason, "no workers may run now, independent of the load")
    if scaling.paused:
        message = (
            f"spec.scaling.paused is true: the fleet keeps its {decision.replicas} workers until spec.replicas is "
            "edited; status.scaling shows the number that the load needs"
        )
        return Condition(c.SCALING_ACTIVE, "False", limits.PAUSED, message)
    if decision.limit in INACTIVE:
        reason = c.LOAD_UNKNOWN if decision.limit == limits.UNKNOWN else decision.limit
        return Condition(c.SCALING_ACTIVE, "False", reason, decision.reason)
    if decision.proposed is not None:
        count = held if kept else "spec.replicas applies"
        message = f"spec.scaling.dryRun is true: {count}; status.scaling shows the number that the load needs"
        return Condition(c.SCALING_ACTIVE, "False", c.DRY_RUN, message)
    written = facts.group.spec.replicas
    if written not in (None, 1, decision.replicas):
        message = (
            f"the number of workers follows the load; spec.replicas ({written}) counts only for a new fleet, so "
            "kubectl scale and autoscalers that write it have no effect together with spec.scaling"
        )
        return Condition(c.SCALING_ACTIVE, "True", c.SCALE_FIELD_IGNORED, message)
    return Condition(c.SCALING_ACTIVE, "True", c.SCALED_BY_LOAD, "the number of workers follows the load")


def scaling_limited(facts: ConsumerGroupFacts) -> Condition:
    """True while a rule keeps the fleet smaller than its load requires."""
    decision = facts.scale
    if decision.inputs is None or decision.load_unknown:
        return Condition(c.SCALING_LIMITED, "Unknown", c.LOAD_UNKNOWN, "the load is unknown: see ScalingActive")
    if decision.limit not in limits.BOUNDS:
        message = "no limit keeps the fleet below the number of workers that its load needs"
        if decision.limit in limits.HOLDS:
            message = (
                "no limit keeps the fleet too small, but the number of workers does not change now, because "
                f"status.limit is {decision.limit}"
            )
        return Condition(c.SCALING_LIMITED, "False", c.WITHIN_BOUNDS, message)
    return Condition(c.SCALING_LIMITED, "True", decision.limit, f"{decision.reason}; {REMEDIES[decision.limit]}")
