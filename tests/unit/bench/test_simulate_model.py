"""The model of a group that rules of scaling are compared on: records, lag in flight, dealing, and what rules see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

import pytest

from bench.simulate.dealing import deal
from bench.simulate.flink import FlinkRule
from bench.simulate.keda import KedaRule
from bench.simulate.model import Group
from bench.simulate.rules import Choice, FleetRule, Rule
from bench.simulate.run import Figures, drive, simulate
from bench.simulate.sight import Sight
from bench.simulate.world import Curve, World, constant, even_shares, hot_shares
from fleet_operator.api.v1alpha1.consumergroup import Scaling

SEED = 20_261_126
RULES: list[Callable[[], Rule]] = [
    lambda: FleetRule(Scaling(min_replicas=0)),
    lambda: KedaRule(10, 0, 12),
    lambda: FlinkRule(0, 12),
]


def world(arrivals: Curve, **changes: Any) -> World:
    settings: dict[str, Any] = {"capacity": constant(60.0), "shares": even_shares(12)}
    return World(arrivals=arrivals, **(settings | changes))


def fixed(of: World, workers: int, seconds: float) -> Figures:
    return drive(
        lambda group: Choice(workers), Group(of), Figures("fixed"), seconds=seconds, start=workers, acceptable_s=60.0
    )


def to_and_fro(group: Group) -> Choice:
    """Workers come and go each minute, from none to five."""
    return Choice(int(group.now // 60) % 6)


WORLDS = [
    world(constant(100.0), unseen=((200.0, 260.0),), stuck={3: 400.0}, leaderless={5: 300.0}),
    world(constant(100.0), shares=hot_shares(12, 0.5), downstream=constant(80.0), cold_s=30.0, cold_share=0.2),
    world(constant(0.5), record_s=constant(20.0), slots=2, seed=SEED),
    world(constant(100.0), record_s=constant(1 / 60.0), batch=600),
    world(constant(100.0), assignor="range"),
]


@pytest.mark.parametrize("of", WORLDS)
def test_records_that_arrived_are_handled_or_wait(of: World) -> None:
    """Those that are handled and not committed are lag as well."""
    group = Group(of)
    figures = drive(to_and_fro, group, Figures("x"), seconds=900.0, start=1, acceptable_s=60.0)
    waits = [group.work.left(number) for number in range(of.partitions)]
    assert figures.arrived == pytest.approx(figures.handled + sum(waits))
    assert min(waits) >= -1e-6
    assert all(done <= handled + 1e-6 for done, handled in zip(group.committed, group.work.handled, strict=True))
    assert figures.handled > 0.0


def test_arrivals_are_those_of_the_curve_with_what_was_kept_during_an_outage() -> None:
    figures = fixed(world(constant(100.0), unseen=((200.0, 260.0),)), 4, 900.0)
    assert figures.arrived == pytest.approx(90_000.0)


def test_single_arrivals_come_at_the_rate() -> None:
    print("seed", SEED)
    figures = fixed(world(constant(2.0), seed=SEED), 4, 7200.0)
    assert figures.arrived == pytest.approx(14_400.0, rel=0.05)
    assert figures.arrived == int(figures.arrived)


@pytest.mark.parametrize("commit_s", [10.0, 60.0])
@pytest.mark.parametrize("record_s", [0.0, 8.0])
def test_lag_in_flight_is_half_a_commit_interval_and_the_handling_of_records(commit_s: float, record_s: float) -> None:
    """Each partition has a worker of its own, and records come so rarely that hardly any waits for another one."""
    slow: dict[str, Any] = {"record_s": constant(record_s), "seed": SEED} if record_s else {}
    rate, partitions = (0.3, 60) if record_s else (60.0, 12)
    print("seed", SEED)
    figures = fixed(
        world(constant(rate), commit_s=commit_s, shares=even_shares(partitions), **slow), partitions, 3000.0
    )
    mean = fmean(lag for at, _, lag, _ in figures.series if at > 600.0)
    assert mean == pytest.approx(rate * (commit_s / 2 + record_s), rel=0.15)


def test_poll_sees_records_that_are_not_committed_yet() -> None:
    group = Group(world(constant(120.0)))
    group.pods = [0.0] * 4
    seen = set()
    for _ in range(300):
        group.advance()
        if group.now > 60.0 and Sight(group).polls and group.observed is not None:
            observed = group.observed
            seen.add(sum(observed.end_offsets[key] - observed.committed[key] for key in group.keys))
    assert min(seen) >= 120.0


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_assignor_of_the_group_deals_each_partition_once(name: str) -> None:
    owned = deal(name, 12, (), 4)
    for count in (5, 3, 12, 1):
        owned = deal(name, 12, owned, count)
        assert sorted(number for numbers in owned for number in numbers) == list(range(12))
        assert len(owned) == count


def test_sticky_assignor_moves_only_what_has_to_move() -> None:
    before = deal("cooperative-sticky", 12, (), 3)
    after = deal("cooperative-sticky", 12, before, 4)
    assert all(set(now) <= set(then) for now, then in zip(after[:3], before, strict=True))


def test_slow_database_is_shared_by_busy_workers() -> None:
    figures = fixed(world(constant(300.0), downstream=constant(90.0)), 6, 600.0)
    assert figures.handled == pytest.approx(90.0 * 600.0, rel=0.02)


def test_cold_worker_does_its_part() -> None:
    figures = fixed(world(constant(100.0), cold_s=150.0, cold_share=0.2), 1, 150.0)
    assert figures.handled == pytest.approx(0.2 * 60.0 * 150.0, rel=0.1)


def test_one_partition_is_handled_by_one_slot_at_a_time() -> None:
    of = world(constant(10.0), shares=hot_shares(12, 1.0), record_s=constant(10.0), slots=8, seed=SEED)
    assert fixed(of, 2, 600.0).handled <= 60.0


@pytest.mark.parametrize("rule", RULES)
def test_rule_decides_the_same_until_what_is_still_to_come_differs(rule: Callable[[], Rule]) -> None:
    """Curves that part at a time: until then, no rule may tell them apart."""
    parts_at = 2400.0

    def curve(later: float) -> Curve:
        return lambda at: later if at >= parts_at else 40.0 if at < 600.0 else 200.0

    def until(later: float, capacity: float) -> list[Any]:
        of = world(curve(later), capacity=lambda at: capacity if at >= parts_at else 60.0)
        steps = simulate(rule(), of, seconds=3000.0, start=1, acceptable_s=60.0).steps
        return [step for step in steps if step.at < parts_at]

    assert until(0.0, 60.0) == until(500.0, 20.0)


@pytest.mark.parametrize("rule", RULES)
def test_rule_changes_nothing_while_no_broker_answers(rule: Callable[[], Rule]) -> None:
    of = world(constant(150.0), unseen=((600.0, 1500.0),))
    figures = simulate(rule(), of, seconds=1500.0, start=4, acceptable_s=60.0)
    assert [step for step in figures.steps if 600.0 <= step.at < 1500.0] == []


def test_sight_of_a_rule_has_no_curves() -> None:
    """Rules know the world by observation only, but for settings of the group and its rollout."""
    known = {"partitions", "assignor", "commit_s"}
    public = {name for name in dir(Sight) if not name.startswith("_")}
    assert public & {field.name for field in fields(World)} <= known
    assert not public & {"world", "work", "workers", "group"}


def test_offsets_of_a_topic_with_a_leaderless_partition_are_not_told() -> None:
    group = Group(world(constant(100.0), leaderless={3: 20.0}))
    group.pods = [0.0] * 2
    told = []
    for _ in range(40):
        group.advance()
        told.append(Sight(group).offsets() is not None)
    assert told == [True] * 19 + [False] * 21
    assert group.observed is not None
    assert ("records", 3) not in group.observed.end_offsets


def test_figures_say_whether_lag_rises() -> None:
    assert fixed(world(constant(150.0)), 2, 1200.0).rises
    assert not fixed(world(constant(150.0)), 3, 1200.0).rises
    assert not fixed(replace(world(constant(150.0)), stuck={3: 2000.0}), 3, 1200.0).rises
