"""Partitions as the group's own assignor deals them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from fleet_consumer.assignors import ClusterView, Subscription, load
from fleet_consumer.assignors.interface import TakesRates
from fleet_operator.planning.scaling.dealing import dealing_of

TOPIC: Final = "records"
Owned = tuple[tuple[int, ...], ...]
"""The partitions of each worker, by ordinal."""


def worker_name(ordinal: int) -> str:
    """A worker's name, which sorts as its ordinal does."""
    return f"worker-{ordinal:04}"


def deal(assignor: str, partitions: int, owned: Owned, count: int, rates: Sequence[float] = ()) -> Owned:
    """The partitions of each of `count` workers, after these owned those.

    A cooperative assignor takes two rebalances for what moves: in the first, partitions that are given up have no
    owner. The outcome is that of both. `rates` are those that the workers report of each partition, to an assignor that
    weighs them; none as long as they know none. Raises AssignorUnknown, AssignorInvalid.
    """
    if rates and isinstance(load(assignor), TakesRates):
        named = tuple(tuple((TOPIC, number) for number in numbers) for numbers in owned)
        reported = {(TOPIC, number): rate for number, rate in enumerate(rates)}
        dealt = dealing_of({TOPIC: partitions}, assignor, named, reported).at(count)
        return tuple(tuple(sorted(number for _, number in each)) for each in dealt)
    return _deal(assignor, partitions, owned, count)


@lru_cache(maxsize=4096)
def _deal(assignor: str, partitions: int, owned: Owned, count: int) -> Owned:
    names = [worker_name(ordinal) for ordinal in range(count)]
    held = {name: owned[ordinal] if ordinal < len(owned) else () for ordinal, name in enumerate(names)}
    plan = _assign(assignor, partitions, held, generation=1)
    if sum(map(len, plan.values())) < partitions:
        plan = _assign(assignor, partitions, plan, generation=2)
    return tuple(plan[name] for name in names)


def _assign(
    assignor: str, partitions: int, held: dict[str, tuple[int, ...]], generation: int
) -> dict[str, tuple[int, ...]]:
    subscriptions = {
        name: Subscription((TOPIC,), owned={TOPIC: numbers} if numbers else {}, generation=generation)
        for name, numbers in held.items()
    }
    plan = load(assignor).assign(ClusterView({TOPIC: partitions}), subscriptions)
    return {name: tuple(sorted(plan[name].partitions.get(TOPIC, ()))) for name in held}
