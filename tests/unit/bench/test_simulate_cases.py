"""The built-in cases of the simulator, and the oracle with which rules are compared in them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from bench.simulate import page
from bench.simulate.cases import SEED, Case, all_cases
from bench.simulate.comparison import BOUNDED, HELPLESS, UNBOUNDED, Comparison, compare
from bench.simulate.oracle import best_plan
from bench.simulate.run import Figures
from bench.simulate.world import World, constant, even_shares, hot_shares

CASES = {case.name: case for case in all_cases(SEED)}


def oracle(world: World, *, seconds: float = 1800.0, start: int = 1, least: int = 1) -> Figures:
    most = world.partitions
    return best_plan(world, seconds=seconds, start=start, least=least, most=most, acceptable_s=60.0)


def world(rate: float, **changes: Any) -> World:
    settings: dict[str, Any] = {"arrivals": constant(rate), "capacity": constant(60.0), "shares": even_shares(12)}
    return World(**(settings | changes))


def test_cases_have_names_of_their_own_and_say_what_they_show() -> None:
    assert len(CASES) == len(all_cases(SEED)) >= 25
    for case in CASES.values():
        assert re.fullmatch(r"[a-z0-9-]+", case.name)
        assert case.shows.endswith(".")
        assert case.shows.count(". ") == 0


def test_cases_cover_the_kinds_of_loads() -> None:
    groups = Counter(case.group for case in CASES.values())
    least = {"findings": 9, "shapes": 4, "faults": 4, "skewed": 5, "slow": 4, "batches": 3, "sleeping": 3}
    assert all(groups[group] >= count for group, count in least.items())


def test_shares_of_each_case_add_up() -> None:
    for case in CASES.values():
        for at in (0.0, case.seconds / 2):
            assert sum(case.world.shares_of(at)) == pytest.approx(1.0), case.name


def test_same_seed_gives_the_same_table() -> None:
    def table() -> list[str]:
        slow = next(case for case in all_cases(SEED) if case.name == "slow-3-s")
        return list(page.lines([compare(replace(slow, seconds=400.0))], seed=SEED, steps=True))

    once = table()
    assert once == table()
    assert f"seed {SEED}" in once[1]


def test_other_seed_gives_other_arrivals() -> None:
    one, other = (next(case for case in all_cases(seed) if case.name == "noise") for seed in (1, 2))
    assert one.world.arrivals(100.0) != other.world.arrivals(100.0)


@pytest.mark.parametrize("name", ["benchmark-steps", "sleep-and-wake", "skew-hot"])
def test_nobody_has_less_lag_with_fewer_workers_than_the_oracle(name: str) -> None:
    found = compare(replace(CASES[name], seconds=min(CASES[name].seconds, 2400.0)))
    *others, best = found.figures
    for figures in others:
        assert figures.lag_seconds > best.lag_seconds or figures.pod_seconds >= best.pod_seconds, figures.rule


def test_oracle_deals_by_the_assignor_of_the_group() -> None:
    """The partitions would fit on four workers that somebody packs, and the assignor deals each of them three."""
    figures = oracle(world(160.0, shares=hot_shares(12, 0.28)), start=4)
    assert figures.most_pods == 6
    assert not figures.rises


def test_oracle_grows_before_the_load_comes() -> None:
    figures = oracle(world(0.0, arrivals=lambda at: 50.0 if at < 600.0 else 300.0))
    growth = next(step for step in figures.steps if step.after > step.before)
    assert growth.at < 600.0


def test_oracle_sends_no_workers_against_a_slow_database() -> None:
    figures = oracle(world(250.0, downstream=constant(150.0)), start=3)
    assert figures.most_pods == 3


def test_oracle_sleeps_while_nothing_arrives() -> None:
    figures = oracle(world(0.0, arrivals=lambda at: 0.0 if 300.0 < at < 1500.0 else 48.0), least=0)
    assert [step.after for step in figures.steps if step.at < 1600.0][:2] == [0, 1]
    assert figures.most_lag < 48.0 * 60.0


def rising(rule: str, slope: float) -> Figures:
    return Figures(rule, series=[(float(at), 100.0, slope * at, 1) for at in range(5, 3600, 5)])


@pytest.mark.parametrize(
    ("slope", "oracles", "verdict"), [(0.0, 0.0, BOUNDED), (5.0, 0.0, UNBOUNDED), (5.0, 5.0, HELPLESS)]
)
def test_verdict_stands_next_to_the_oracle(slope: float, oracles: float, verdict: str) -> None:
    case: Case = CASES["step"]
    found = Comparison(case, (rising("fleet", slope), rising("oracle", oracles)))
    assert found.verdict(found.figures[0]) == verdict
