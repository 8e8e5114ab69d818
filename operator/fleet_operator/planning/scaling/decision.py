"""The decision about the number of workers of one part of a fleet, main or retry.

That of main workers which no load sizes is made here, and what stops a fleet whatever its spec and its load say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.state.sizing import Growth, SizingState

NO_LIMIT: Final = "None"
SUSPENDED: Final = "Suspended"
PAUSED: Final = "Paused"
"""`spec.scaling.paused`: the number of workers stays."""
OFFSET_RESET: Final = "OffsetReset"
PARTITIONS: Final = "Partitions"
"""More workers could own no partition."""
MIN_REPLICAS: Final = "MinReplicas"
MAX_REPLICAS: Final = "MaxReplicas"
UNKNOWN: Final = "Unknown"
"""Lag or rates are unknown, so the count stays."""
STARTING: Final = "Starting"
"""Workers of the last step have not joined yet."""
REBALANCING: Final = "Rebalancing"
ROLLOUT: Final = "Rollout"
BREAKER_OPEN: Final = "BreakerOpen"
GROUP_SHARED: Final = "GroupShared"
LEARNING: Final = "Learning"
"""The capacity of a worker is not known yet."""
SETTLING: Final = "Settling"
"""The last step has not shown its effect yet, or the rate is still rising."""
COOLDOWN: Final = "Cooldown"
"""Fewer workers have not been enough for the whole stabilization window yet."""
REBALANCE_BUDGET: Final = "RebalanceBudget"
DOWNSTREAM: Final = "DownstreamBound"
"""More workers did not handle more records."""
HOT_PARTITION: Final = "HotPartition"
STUCK_PARTITION: Final = "StuckPartition"
OFFSETS_MISSING: Final = "OffsetsMissing"
"""A partition has no commit: where an empty group would go on there is not sure."""
LAGGING: Final = "Lagging"
"""Workers are behind, and none of the other bounds says why the fleet cannot grow."""
SCALED_TO_ZERO: Final = "ScaledToZero"

NOTHING_DECIDED: Final = SizingState()

HOLDS: Final = frozenset({UNKNOWN, REBALANCING, ROLLOUT, BREAKER_OPEN, GROUP_SHARED, STARTING, PAUSED})
"""Limits under which the count stays, whatever the load."""
PENDING: Final = frozenset({LEARNING, SETTLING, COOLDOWN})
"""Limits under which a change is wanted, or may be, and has to wait for time."""
BOUNDS: Final = frozenset(
    {PARTITIONS, MAX_REPLICAS, DOWNSTREAM, REBALANCE_BUDGET, HOT_PARTITION, STUCK_PARTITION, LAGGING}
)
"""Limits that keep a fleet smaller than its load asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInputs:
    """Inputs of a decision, as far as they are known; rates in records per second.

    `arrival` is that of all samples. `raw` is the number of workers that the load takes, `useful` the one that shares
    the partitions so that the busiest worker can do its part.
    """

    arrival: float | None = None
    capacity: float | None = None
    raw: float | None = None
    useful: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """The wanted number of workers.

    - `current`: the number before.
    - `limit`: the word of `status.limit`, the rule that bound the decision; `reason` a sentence.
    - `proposed`: the number that a dry run, or a paused fleet, would have; None where decisions are carried out.
    - `inputs`: None for a count that does not follow the load.
    - `memory`: the past that later decisions need, None where nothing is to be kept.
    - `requeue_after`: seconds until the next decision, None for one at the next change.
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
        """True for a decision about a load of which nothing, or not all, is known; of a paused fleet: nothing."""
        return self.limit == UNKNOWN or self.inputs == ScaleInputs()

    @property
    def verb(self) -> str:
        """The decision in one word; that of a dry run is what it would do."""
        wanted = self.replicas if self.proposed is None else self.proposed
        before = wanted if self.current is None else self.current
        if wanted > before:
            return "Wake" if before == 0 else "Grow"
        if wanted < before:
            return "Sleep" if wanted == 0 else "Shrink"
        return "Hold" if self.limit in HOLDS or self.limit in PENDING else "Keep"


def asked_count(group: ConsumerGroup, memory: SizingState, found: int | None) -> int:
    """`spec.replicas`; while it is absent the last one that was given, or else the number that runs, and 1 for a new
    fleet: leaving the field out of a manifest scales nothing.

    `found` is the StatefulSet's number, None without one.
    """
    if group.spec.replicas is not None:
        return group.spec.replicas
    return memory.replicas if memory.replicas is not None else found or 1


def kept_count(asked: int, memory: SizingState, *, paused: bool = False) -> int | None:
    """The number that its load gave a fleet which no load sizes any more, while `spec.replicas` is not edited.

    A fleet that sleeps keeps its number only while scaling is paused: otherwise nothing would wake it.
    """
    return memory.count if (memory.count or paused) and memory.replicas in (None, asked) else None


def as_asked(asked: int, memory: SizingState, *, paused: bool = False) -> SizingState:
    """The memory of a fleet that no load sizes: without the past of a load if `spec.replicas` was edited since."""
    kept = memory if kept_count(asked, memory, paused=paused) is not None else SizingState(growth=memory.growth)
    return replace(kept, replicas=asked)


def decide_fixed(
    group: ConsumerGroup,
    partition_counts: Mapping[str, int] | None,
    *,
    found: int | None = None,
    memory: SizingState = NOTHING_DECIDED,
    now: float = 0.0,
) -> ScaleDecision:
    """The number of a fleet that no load sizes; `partition_counts` is None while unknown.

    `found` is the StatefulSet's number, None without one. Growth is remembered, so that its workers join together.
    """
    kept = as_asked(asked_count(group, memory, found), memory)
    assert kept.replicas is not None, "noted above"
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
    """No workers while suspended, `stopped`, or `resetting` its offsets; None for a fleet that runs.

    A fleet is stopped while another Kafka cluster answers, and while an older ConsumerGroup owns the Kafka group: two
    fleets in one group would process each other's records. `memory` is what a scaled fleet comes back to.
    """
    if group.spec.suspend:
        return ScaleDecision(replicas=0, limit=SUSPENDED, memory=memory)
    if resetting:
        return ScaleDecision(replicas=0, limit=OFFSET_RESET, memory=memory)
    return ScaleDecision(replicas=0, memory=memory) if stopped else None
