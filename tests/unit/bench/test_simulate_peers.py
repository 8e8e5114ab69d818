"""The rules of others as they are published: KEDA with its HPA, and Flink's autoscaler."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bench.simulate.flink import FlinkRule
from bench.simulate.keda import COOLDOWN_S, DOWN_S, SYNC_PHASE_S, SYNC_S, KedaRule
from bench.simulate.model import Group
from bench.simulate.rules import Rule
from bench.simulate.run import Step, simulate
from bench.simulate.sight import Sight
from bench.simulate.world import Curve, World, constant, even_shares


def group_with(lag: int, workers: int, *, partitions: int = 12) -> Group:
    group = Group(World(arrivals=constant(0.0), capacity=constant(60.0), shares=even_shares(partitions)))
    group.pods = [0.0] * workers
    group.work.ends[0] = float(lag)
    return group


def synced(rule: KedaRule, group: Group, turns: Iterable[int]) -> list[int]:
    """The numbers that the HPA wants at its syncs, with a lag for each."""
    found = []
    for turn, lag in enumerate(turns):
        group.now, group.work.ends[0] = SYNC_PHASE_S + SYNC_S * turn, float(lag)
        count = rule.choose(Sight(group)).workers
        found.append(count)
        group.scale(count)
    return found


def steps_of(rule: Rule, arrivals: Curve, seconds: float, *, start: int = 1, capacity: float = 60.0) -> list[Step]:
    of = World(arrivals=arrivals, capacity=constant(capacity), shares=even_shares(12))
    return simulate(rule, of, seconds=seconds, start=start, acceptable_s=60.0).steps


@pytest.mark.parametrize(
    ("lag", "workers", "wanted"),
    [
        (250, 2, 3),  # rounded up
        (215, 2, 2),  # within a tenth of two thresholds
        (221, 2, 3),
        (1_000_000, 10, 12),  # capped at the partitions
        (1_000_000, 2, 6),  # four more
        (1_000_000, 5, 10),  # or twice as many
    ],
)
def test_hpa_wants_the_lag_by_the_threshold(lag: int, workers: int, wanted: int) -> None:
    assert synced(KedaRule(100, 1, 12), group_with(lag, workers), [lag]) == [wanted]


def test_hpa_takes_fewer_only_to_the_largest_number_of_five_minutes() -> None:
    window = round(DOWN_S / SYNC_S)
    counts = synced(KedaRule(100, 1, 12), group_with(600, 6), [600, *[100] * window, 100])
    assert counts[window - 1] == 6
    assert counts[-1] == 1


def test_keda_wakes_at_a_poll_and_sleeps_after_the_cooldown() -> None:
    steps = steps_of(KedaRule(100, 0, 12), lambda at: 0.0 if at < 600.0 else 20.0, 700.0)
    assert [(step.before, step.after) for step in steps[:2]] == [(1, 0), (0, 1)]
    asleep, awake = steps[:2]
    assert COOLDOWN_S <= asleep.at <= COOLDOWN_S + 60.0
    assert 600.0 < awake.at <= 630.0


def test_flink_changes_nothing_between_forty_percent_and_full_use() -> None:
    assert steps_of(FlinkRule(1, 12), constant(100.0), 7200.0, start=3) == []


def test_flink_grows_to_seventy_percent_of_use_and_a_divisor_of_the_partitions() -> None:
    """300/s by 0.7 are 7.1 workers of 60/s, and the lag and the restart make some more: 12 is the next divisor."""
    steps = steps_of(FlinkRule(1, 12), constant(300.0), 2000.0, start=3)
    assert [(step.before, step.after) for step in steps] == [(3, 12)]


def test_flink_decides_nothing_before_its_window_is_full() -> None:
    steps = steps_of(FlinkRule(1, 12), constant(300.0), 4000.0, start=2)
    assert min(step.at for step in steps) >= 300.0 + 900.0


def test_flink_takes_fewer_after_an_hour_and_the_largest_number_of_it() -> None:
    """40/s need two workers in the end, and three by the first windows, which still have some of the 100/s."""
    steps = steps_of(FlinkRule(1, 12), lambda at: 40.0 if at >= 1500.0 else 100.0, 6000.0, start=4)
    assert [(step.before, step.after) for step in steps] == [(4, 3)]
    assert steps[0].at >= 1500.0 + 3600.0


def test_flink_measures_the_busiest_subtask() -> None:
    """One partition with 28 % makes its worker busy, and the job needs more subtasks though most are not."""
    of = World(arrivals=constant(160.0), capacity=constant(60.0), shares=(0.28, *(0.72 / 11,) * 11))
    assert simulate(FlinkRule(1, 12), of, seconds=3000.0, start=4, acceptable_s=60.0).steps
