"""Figures that the benchmarks of groups compute from logs and histories."""

from __future__ import annotations

import pytest

from bench.group_lab import percentiles
from bench.rebalance import rounds

HEAD = "[group-coordinator-event-processor-1] INFO org.apache.kafka.coordinator.group.GroupMetadataManager - [x] "


def begins(at: str, group: str) -> str:
    return f"2026-01-01T00:00:{at} {HEAD}Preparing to rebalance group {group} in state PreparingRebalance with old gen"


def ends(at: str, group: str) -> str:
    return f"2026-01-01T00:00:{at} {HEAD}Assignment received from leader m-1 for group {group} for generation 2. The"


def test_rounds_are_those_of_the_group_in_the_order_of_time() -> None:
    """Lines come broker by broker; a rebalance that begins again before its end counts from its first beginning."""
    lines = [
        ends("07.000", "g"),
        begins("05.000", "g"),
        begins("01.000", "g"),
        begins("01.500", "other"),
        begins("02.000", "g"),
        "some other line about group g ",
        ends("02.500", "g"),
        ends("02.750", "other"),
    ]
    found = rounds(lines, "g")
    assert [round(end - begin, 3) for begin, end in found] == [1.5, 2.0]


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentiles(values[::-1]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentiles([])
