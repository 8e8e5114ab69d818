"""Sentences about a load, for the reason of a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleet_operator.planning.scaling.load import Load
from fleet_operator.planning.scaling.rates import Partition

NAMED_MAX: Final = 3


def describe(load: Load) -> str:
    """The load, and the number of workers that it takes."""
    capacity = "unknown" if load.capacity is None else f"{two_digits(load.capacity)} records/s"
    parts = [
        f"arrival {two_digits(load.arrival)} records/s",
        f"lag {load.total_lag}",
        f"capacity of a worker {capacity}",
    ]
    demand = load.shown
    if demand is not None:
        parts.append(f"so {two_digits(demand.wanted)} workers are needed")
    if demand is not None and demand.hot:
        parts.append(f"hot: {name_partitions(demand.hot)}, each with as much as one worker can do")
    if load.stuck:
        parts.append(f"stuck, and not counted: {name_partitions(sorted(load.stuck))}")
    return ", ".join(parts)


def name_partitions(partitions: Sequence[Partition]) -> str:
    """A few partitions by name, and how many more there are."""
    named = ", ".join(f"{topic}-{number}" for topic, number in partitions[:NAMED_MAX])
    more = len(partitions) - NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


def two_digits(value: float) -> str:
    """A number with two significant digits, without an exponent."""
    if value == 0.0:
        return "0"
    return f"{float(f'{value:.2g}'):.10f}".rstrip("0").rstrip(".")
