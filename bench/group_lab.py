"""Shared parts of the group benchmarks: members of three makes on three brokers, pauses, percentiles.

All makes run in one go on the same brokers, each member in a process of its own, and write down what they hand out in
the same rows; times are the machine's one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.support.recording import RecordedProcess
from tests.support.scene import Scene

__all__ = ["BROKERS", "MAKES", "UNHURRIED", "pauses", "percentiles"]

BROKERS: Final = "three brokers"
"""The setup named in their results."""

UNHURRIED: Final = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "1000"}
"""Kafka's own timeouts of brokers: none is stopped here, and none must be taken for gone on a busy machine."""

MAKES: Final[dict[str, Callable[..., RecordedProcess]]] = {
    "fleet": Scene.process,
    "java": Scene.java,
    "librdkafka": Scene.librdkafka,
}
"""The method of a scene that starts a member of each make."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and max, in the values' unit; nearest rank, so that each is an actual value."""
    ranked = sorted(values)
    if not ranked:
        raise ValueError("nothing was measured")

    def rank(share: float) -> float:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    return {"p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "max": ranked[-1]}


def pauses(processes: Iterable[RecordedProcess], partitions: int, since: float) -> dict[int, list[float]]:
    """The times (seconds) between one record and the next handed out by anybody, for each partition."""
    ranges: dict[int, list[tuple[float, float]]] = {partition: [] for partition in range(partitions)}
    for process in processes:
        for row in process.rows():
            if row[0] == "h" and row[6] >= since:
                ranges[row[1]].append((row[5], row[6]))
    found: dict[int, list[float]] = {}
    for partition, seen in ranges.items():
        seen.sort()
        reached, gaps = since, []
        for began, ended in seen:
            gaps.append(max(0.0, began - reached))
            reached = max(reached, ended)
        found[partition] = gaps
    return found
