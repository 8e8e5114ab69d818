"""The effect of a growth: where more workers handle no more records, something behind them is the limit."""

from __future__ import annotations

from typing import Final

from fleet_operator.planning.scaling.capacity import Measurement
from fleet_operator.planning.scaling.load import Load
from fleet_operator.planning.scaling.memory import Growth

BRAKE_S: Final = 900.0
"""Time within which a growth is judged; after that other things have changed, too."""
GAIN_LEAST: Final = 0.25
"""Least part of the expected rise: below it the growth did not help. Flink's autoscaler asks for a tenth; a database at
its limit still gains that much from more connections."""


def can_judge(growth: Growth, measured: Measurement) -> bool:
    """True if a measurement says something about a growth: its workers are busy, so that the arrival is not what limits
    the rate. What limits them may feed some and starve others, so half of them are enough."""
    return measured.mostly_busy and growth.before > 0 and growth.commits > 0.0


def count_without_effect(growth: Growth, measured: Measurement, load: Load) -> int | None:
    """The number to go back to after a growth without effect: the smallest that handles what was reached. None where
    the growth helped, and where the topics are gone since."""
    counts = load.counts
    if not counts.partitions:
        return None
    expected = growth.commits * (counts.load(growth.before) / counts.load(growth.after) - 1.0)
    if measured.commits - growth.commits >= GAIN_LEAST * expected:
        return None
    enough = counts.snap(measured.commits / load.capacity) if load.capacity else growth.before
    back = max(growth.before, enough)
    return back if back < growth.after else None
