"""The decision about the number of workers of one part of a fleet, main or retry.

This module decides for main workers that are not scaled by load, and for fleets that must have no workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.state.sizing import Growth, SizingState

NO_LIMIT: Final = "None"
SUSPENDED: Final = "Suspended"
PAUSED: Final = "Paused"
"""`spec.scaling.paused` is true, so the number of workers does not change."""
OFFSET_RESET: Final = "OffsetReset"
PARTITIONS: Final = "Partitions"
"""Additional workers would own no partition."""
MIN_REPLICAS: Final = "MinReplicas"
MAX_REPLICAS: Final = "MaxReplicas"
UNKNOWN: Final = "Unknown"
"""Lag or rates are unknown, so the fleet does not shrink. It may grow for the known part of the load."""
STARTING: Final = "Starting"
"""Some workers of the last decision have not joined the group yet."""
REBALANCING: Final = "Rebalancing"
ROLLOUT: Final = "Rollout"
BREAKER_OPEN: Final = "BreakerOpen"
GROUP_SHARED: Final = "GroupShared"
LEARNING: Final = "Learning"
"""The capacity of a worker is not known yet."""
SETTLING: Final = "Settling"
"""It is too early to see the effect of the last step, or the rate is still rising."""
COOLDOWN: Final = "Cooldown"
"""Fewer workers are enough now, but have not been enough for the whole stabilization window."""
REBALANCE_BUDGET: Final = "RebalanceBudget"
DOWNSTREAM: Final = "DownstreamBound"
"""More workers did not raise the commit rate, because a system that they depend on is the limit."""
HOT_PARTITION: Final = "HotPartition"
STUCK_PARTITION: Final = "StuckPartition"
OFFSETS_MISSING: Final = "OffsetsMissing"
"""A partition has no commit, so it is unknown at which offset an empty group would start there."""
LAGGING: Final = "Lagging"
"""Workers cannot catch up with their backlog, and no other limit explains why the fleet cannot grow."""
SCALED_TO_ZERO: Final = "ScaledToZero"

HOLDS: Final = frozenset({UNKNOWN, REBALANCING, ROLLOUT, BREAKER_OPEN, GROUP_SHARED, STARTING, PAUSED})
"""Limits under which the fleet does not shrink, whatever the load."""
PENDING: Final = frozenset({LEARNING, SETTLING, COOLDOWN})
"""Limits under which the number of workers may change, but only later."""
BOUNDS: Final = frozenset(
    {PARTITIONS, MAX_REPLICAS, DOWNSTREAM, REBALANCE_BUDGET, HOT_PARTITION, STUCK_PARTITION, LAGGING}
)
"""Limits that keep a fleet smaller than its load requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInputs:
    """Inputs of a decision; each is None while unknown.

    - `arrival`: records that arrive per second in all partitions.
    - `capacity`: records per second that one worker can handle.
    - `raw`: the number of workers needed for the arriving records, not rounded.
    - `useful`: the smallest number of workers within the bounds at which no worker is overloaded.
    """

    arrival: float | None = None
    capacity: float | None = None
    raw: float | None = None
    useful: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """A decision about the number of workers.

    - `current`: the number before the decision.
    - `limit`: the rule that limited the decision, as in `status.limit`. `reason`: a sentence that explains the number.
    - `proposed`: the number that would apply without the dry run or the pause.
    - `inputs`: None if the number does not depend on the load.
    - `memory`: state to store for later decisions; None if there is nothing to store.
    - `requeue_after`: seconds until the next decision; None to wait for an event.
    """

    replicas: int
    current: int | None = None
    limit: str = NO_LIMIT
    reason: str = ""
    proposed: int | None = None
    inputs: ScaleInputs | None = None
    memory: SizingState | None = None
    requeue_after: float | None = None

    @property
    def load_unknown(self) -> bool:
        """True if the load is unknown or partly unknown. For a paused fleet, True only if the whole load is unknown."""
        return self.limit == UNKNOWN or self.inputs == ScaleInputs()

    @property
    def verb(self) -> str:
        """The decision in one word, such as `Grow`. For a dry run or a paused fleet, the proposed decision."""
        wanted = self.replicas if self.proposed is None else self.proposed
        before = wanted if self.current is None else self.current
        if wanted > before:
            return "Wake" if before == 0 else "Grow"
        if wanted < before:
            return "Sleep" if wanted == 0 else "Shrink"
        return "Hold" if self.limit in HOLDS or self.limit in PENDING else "Keep"


def asked_count(group: ConsumerGroup, memory: SizingState, found: int | None) -> int:
    """Return `spec.replicas` or, if the field is absent, its last value, so that removing the field from a manifest
    does not scale a fleet. If the last value is unknown too, return the StatefulSet's number of replicas (`found`), or
    1 for a new fleet. `found` is None without a StatefulSet."""
    if group.spec.replicas is not None:
        return group.spec.replicas
    return memory.replicas if memory.replicas is not None else found or 1


def kept_count(asked: int, memory: SizingState, *, paused: bool = False) -> int | None:
    """Return the last number of workers computed by load-based scaling, or None if `spec.replicas` was edited since. A
    fleet keeps this number while its scaling is paused, and after scaling is turned off. Zero is kept only while
    scaling is paused, because otherwise nothing would start workers again."""
    return memory.count if (memory.count or paused) and memory.replicas in (None, asked) else None


def as_asked(asked: int, memory: SizingState, *, paused: bool = False) -> SizingState:
    """Return the memory of a fleet that is not scaled by load. If `kept_count` returns None, only the last scale-up is
    kept of the memory. `asked`: the number from `asked_count`, stored in the memory."""
    kept = memory if kept_count(asked, memory, paused=paused) is not None else SizingState(growth=memory.growth)
    return replace(kept, replicas=asked)


def decide_fixed(
    group: ConsumerGroup,
    partition_counts: Mapping[str, int] | None,
    *,
    found: int | None,
    memory: SizingState,
    now: float,
) -> ScaleDecision:
    """Decide for a fleet that is not scaled by load. `found`: the StatefulSet's number of replicas; None without a
    StatefulSet. A scale-up is recorded in the memory, so that the added workers join the group together."""
    kept = as_asked(asked_count(group, memory, found), memory)
    assert kept.replicas is not None, "recorded above"
    replicas = kept.count or kept.replicas
    limited = partition_counts is not None and replicas > sum(partition_counts.values())
    growth = kept.growth if kept.growth is not None and kept.growth.after == replicas else None
    if found and replicas > found and (growth is None or growth.before != found):
        growth = Growth(before=found, after=replicas, commits=0.0, at=round(now, 1))
    memory = replace(kept, growth=growth)
    return ScaleDecision(replicas=replicas, limit=PARTITIONS if limited else NO_LIMIT, memory=memory)


def decide_stopped(
    group: ConsumerGroup, *, stopped: bool, resetting: bool, memory: SizingState | None = None
) -> ScaleDecision | None:
    """Decide for a fleet that must have no workers; None for a fleet that may run. A fleet is `stopped` while another
    Kafka cluster answers, or while an older ConsumerGroup owns the Kafka group: two fleets in one group would process
    each other's records. A fleet that is scaled by load later continues with its `memory`."""
    if group.spec.suspend:
        return ScaleDecision(replicas=0, limit=SUSPENDED, memory=memory)
    if resetting:
        return ScaleDecision(replicas=0, limit=OFFSET_RESET, memory=memory)
    return ScaleDecision(replicas=0, memory=memory) if stopped else None
