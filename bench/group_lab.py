"""Shared parts of the group benchmarks: members of three clients on three brokers, pauses and percentiles.

All clients run on the same brokers in one run, each member in a separate process, and record handed-out records in the
same format; times are of the machine's monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.support.recording import RecordedProcess
from tests.support.scene import Scene

__all__ = ["BROKERS", "MAKES", "UNHURRIED", "pauses", "percentiles"]

BROKERS: Final = "three brokers"
"""The setup, as named in results."""

UNHURRIED: Final = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "1000"}
"""Kafka's default broker timeouts: no broker is stopped here, and none must be fenced on a busy machine."""

MAKES: Final[dict[str, Callable[..., RecordedProcess]]] = {
    "fleet": Scene.process,
    "java": Scene.java,
    "librdkafka": Scene.librdkafka,
}
"""The scene method that starts a member of each client."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and max, in the values' unit; nearest rank, so that each is an actual value."""
    ranked = sorted(values)
    if not ranked:
        raise ValueError("nothing was measured")

    def rank(share: float) -> float:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    return {"p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "max": ranked[-1]}


def pauses(processes: Iterable[RecordedProcess], partitions: int, since: float) -> dict[int, list[float]]:
    """Seconds between consecutive records of a partition, handed out by any member, by partition."""
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
