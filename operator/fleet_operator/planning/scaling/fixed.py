"""The number of main workers that a spec names, and what stops a fleet whatever its spec and its load say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.scaling.decision import NO_LIMIT, OFFSET_RESET, PARTITIONS, SUSPENDED, ScaleDecision
from fleet_operator.planning.scaling.memory import NO_MEMORY, Growth, ScaleMemory


def is_kept(group: ConsumerGroup, memory: ScaleMemory) -> bool:
    """True if the fleet goes on with the number that its load gave it: `spec.replicas` was not edited since. One that
    sleeps would never wake.

    Earlier operators noted no `spec.replicas`, and noted the growth of a fleet that no load sizes like any other.
    """
    edited = memory.growth is not None if memory.replicas is None else memory.replicas != group.spec.replicas
    return bool(memory.count) and not edited


def fixed_count(group: ConsumerGroup, memory: ScaleMemory) -> int:
    """`spec.replicas`, or the number that a load gave the fleet before."""
    return memory.count if memory.count and is_kept(group, memory) else group.spec.replicas


def decide_fixed(
    group: ConsumerGroup,
    partition_counts: Mapping[str, int] | None,
    *,
    found: int | None = None,
    memory: ScaleMemory = NO_MEMORY,
    now: float = 0.0,
) -> ScaleDecision:
    """The number of a fleet that no load sizes; `partition_counts` is None while unknown.

    `found` is the StatefulSet's number, None without one. Growth is remembered, so that its workers join together.
    """
    replicas = fixed_count(group, memory)
    limited = partition_counts is not None and replicas > sum(partition_counts.values())
    growth = memory.growth if memory.growth is not None and memory.growth.after == replicas else None
    if found and replicas > found:
        growth = Growth(before=found, after=replicas, commits=0.0, at=round(now, 1))
    kept: ScaleMemory | None = None
    if is_kept(group, memory):
        kept = replace(memory, replicas=group.spec.replicas, growth=growth)
    elif growth is not None:
        kept = ScaleMemory(count=replicas, growth=growth)
    return ScaleDecision(replicas=replicas, limit=PARTITIONS if limited else NO_LIMIT, memory=kept)


def decide_stopped(
    group: ConsumerGroup, *, stopped: bool, resetting: bool, memory: ScaleMemory | None = None
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
