"""The rules of scaling over whole curves, on the model of a group, compared with those of an HPA with KEDA's lag
metric."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.simulate.curves import read_csv
from bench.simulate.keda import KedaRule
from bench.simulate.rules import FleetRule
from bench.simulate.run import Figures, simulate
from bench.simulate.world import Curve, World, constant, even_shares, hot_shares
from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.scaling import decision as limits

ROOT = Path(__file__).parents[3]
SEED = 20_261_126


def world(arrivals: Curve, **changes: Any) -> World:
    settings: dict[str, Any] = {"capacity": constant(60.0), "shares": even_shares(12)}
    return World(arrivals=arrivals, **(settings | changes))


def run(of: World, *, seconds: float = 3600.0, start: int = 1, **spec: Any) -> tuple[Figures, FleetRule]:
    rule = FleetRule(Scaling.model_validate({"catchUpSeconds": 120, **spec}))
    return simulate(rule, of, seconds=seconds, start=start, acceptable_s=60.0), rule


def lag_rule(of: World, *, seconds: float = 3600.0, start: int = 1, threshold: int = 600) -> Figures:
    return simulate(KedaRule(threshold, 1, 12), of, seconds=seconds, start=start, acceptable_s=60.0)


def load_steps(at: float) -> float:
    return 300.0 if 600.0 <= at < 1500.0 else 50.0


def test_load_step_up_and_down_is_one_step_each_with_the_backlog_worked_off_in_time() -> None:
    figures, _ = run(world(load_steps))
    assert [(step.before, step.after) for step in figures.steps] == [(1, 12), (12, 2)]
    late = [at for at, arrival, lag, _ in figures.series if lag > 10 * max(arrival, 1.0)]
    assert late[-1] - figures.steps[0].at <= 120.0
    baseline = lag_rule(world(load_steps))
    assert baseline.rebalances >= 3 * figures.rebalances
    assert baseline.lag_seconds > figures.lag_seconds


def test_noise_moves_nothing() -> None:
    print("seed", SEED)
    chance = random.Random(SEED)
    bursts = [max(0.0, chance.gauss(1.0, 0.35)) for _ in range(2000)]
    noisy = world(lambda at: 200.0 * bursts[int(at) // 7])
    figures, _ = run(noisy, seconds=7200.0, start=4)
    assert figures.reversals == 0
    assert len(figures.steps) <= 1
    assert lag_rule(noisy, seconds=7200.0, start=4).reversals >= 10


def test_outage_shrinks_nothing_and_its_end_costs_one_growth() -> None:
    """Producers send at four times their rate what they kept for two minutes."""
    figures, rule = run(world(lambda at: 150.0, unseen=((900.0, 1020.0),)), start=4)
    assert [(step.before, step.after) for step in figures.steps] == [(4, 12), (12, 4)]
    assert figures.steps[0].at > 1020.0
    assert limits.UNKNOWN in {decision.limit for _, decision in rule.decisions}


def test_hot_partition_is_not_chased() -> None:
    of = world(lambda at: 160.0, shares=hot_shares(12, 0.5))
    figures, rule = run(of, start=4)
    assert figures.steps == []
    assert rule.decisions[-1][1].limit == limits.HOT_PARTITION
    assert lag_rule(of, start=4).most_pods == 12


def test_stuck_partition_is_not_chased() -> None:
    of = world(lambda at: 200.0, stuck={3: 300.0})
    figures, rule = run(of, start=4)
    assert figures.most_pods == 4
    assert rule.decisions[-1][1].limit == limits.STUCK_PARTITION
    assert lag_rule(of, start=4).most_pods == 12


def test_slow_database_takes_growth_back_and_tries_it_again_ever_more_rarely() -> None:
    """All workers together handle 150 records a second, however many they are."""
    of = world(lambda at: 100.0 if at < 600.0 else 250.0, downstream=constant(150.0))
    figures, rule = run(of, start=2)
    assert [(step.before, step.after) for step in figures.steps][:3] == [(2, 6), (6, 12), (12, 3)]
    tries = [step.at for step in figures.steps if (step.before, step.after) == (3, 12)]
    waits = [after - before for before, after in pairwise(tries)]
    assert len(waits) >= 3
    assert all(later > 1.7 * earlier for earlier, later in pairwise(waits)), waits
    assert rule.decisions[-1][1].limit == limits.DOWNSTREAM
    baseline = lag_rule(of, start=2)
    assert (baseline.most_pods, baseline.steps[-1].after) == (12, 12)
    assert baseline.last_lag == pytest.approx(figures.last_lag, rel=0.1), "nine workers more handle nothing more"


def test_idle_fleet_sleeps_and_wakes() -> None:
    figures, _ = run(world(lambda at: 0.0 if 600.0 < at < 2000.0 else 48.0), start=1, minReplicas=0)
    assert [step.after for step in figures.steps] == [0, 1]
    assert figures.steps[1].at <= 2005.0


def test_recorded_curve_with_noise_costs_a_third_of_the_rebalances_of_the_lag_rule_and_fewer_workers() -> None:
    curve = read_csv(ROOT / "examples" / "scaling" / "shop.csv").arrivals
    of = world(curve, capacity=constant(40.0), shares=even_shares(24))
    rule = FleetRule(Scaling())
    figures = simulate(rule, of, seconds=curve.seconds, start=1, acceptable_s=60.0)
    baseline = simulate(KedaRule(400, 1, 24), of, seconds=curve.seconds, start=1, acceptable_s=60.0)
    assert 3 * figures.rebalances < baseline.rebalances
    assert figures.lag_seconds < 1.1 * baseline.lag_seconds
    assert figures.pod_seconds < 0.9 * baseline.pod_seconds


def test_daily_curve_of_a_shop_costs_few_rebalances() -> None:
    """A slow rise and fall: growth in steps that each last."""
    figures, _ = run(
        world(lambda at: 40.0 + 260.0 * max(0.0, 1.0 - abs(at - 7200.0) / 5400.0)), seconds=14_400.0, start=1
    )
    assert figures.reversals <= 1
    assert figures.rebalances <= 12
    assert figures.late_seconds == 0
