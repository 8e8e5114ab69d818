"""Decisions between reconciles: a group is reconciled when its decision changes, and not at each observation."""

from __future__ import annotations

import random
from dataclasses import replace

from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.status.scaling import entry_of
from fleet_operator.reconcilers.consumergroup.scaling import ScalingWatch
from tests.support.clock import StillClock
from tests.unit.planning.scaling.scenes import Scene

KEY = ("shop", "orders")
SEED = 20_261_126


def looked(scene: Scene, watch: ScalingWatch, clock: StillClock) -> bool:
    """The next look, without a reconcile."""
    scene.pass_time(5)
    clock.now = scene.now - 1_700_000_000.0
    facts = scene.facts()
    assert facts.observed is not None
    assert facts.lag is not None
    return watch.has_news(KEY, facts.observed, facts.lag)


def follow(scene: Scene, watch: ScalingWatch) -> ScaleDecision:
    decision = scene.decide()
    watch.follow(KEY, scene.facts(), decision, scene.trail, entry_of(decision))
    return decision


def test_steady_load_is_no_news() -> None:
    scene, clock = Scene(current=3), StillClock()
    watch = ScalingWatch(clock)
    scene.pass_time(120)
    follow(scene, watch)
    assert not any(looked(scene, watch, clock) for _ in range(40))


def test_first_look_of_a_process_is_no_news() -> None:
    """Rates take a second one, and the status stands until then."""
    scene, clock = Scene(current=3), StillClock()
    watch = ScalingWatch(clock)
    scene.pass_time(120)
    follow(scene, watch)
    assert scene.trail.known_since is not None
    scene.samples = []
    assert not looked(scene, watch, clock)
    trail = watch.trail(KEY)
    assert trail is not None
    assert trail.known_since is None, "samples begin anew after a gap, in which fewer workers may not have been enough"


def test_new_decision_is_news_and_the_trail_is_handed_on() -> None:
    scene, clock = Scene(current=2, handled=120.0), StillClock()
    watch = ScalingWatch(clock)
    scene.pass_time(90)
    follow(scene, watch)
    scene.arrival = 420.0
    news = [looked(scene, watch, clock) for _ in range(4)]
    assert any(news)
    trail = watch.trail(KEY)
    assert trail is not None
    assert trail.rising


def test_noise_between_two_useful_numbers_is_hardly_ever_news() -> None:
    """Each would be a reconcile and perhaps a write of the status."""
    print("seed", SEED)
    chance, scene, clock = random.Random(SEED), Scene(current=4), StillClock()
    watch = ScalingWatch(clock)
    scene.pass_time(400)
    follow(scene, watch)
    news = 0
    for _ in range(720):
        scene.arrival = max(0.0, chance.gauss(155.0, 25.0))
        if looked(scene, watch, clock):
            news += 1
            follow(scene, watch)
    assert news <= 12, "an hour of looks"


def test_fleet_of_a_fixed_size_has_no_news() -> None:
    scene, clock = Scene(current=2), StillClock()
    watch = ScalingWatch(clock)
    watch.follow(KEY, None, ScaleDecision(replicas=2), scene.trail, {})
    assert not looked(scene, watch, clock)
    assert watch.trail(KEY) is None


def test_forgotten_group_has_no_news() -> None:
    scene, clock = Scene(current=2, arrival=600.0, handled=120.0), StillClock()
    watch = ScalingWatch(clock)
    follow(scene, watch)
    watch.forget(KEY)
    assert not looked(scene, watch, clock)


def test_growth_taken_back_between_reconciles_is_taken_back_by_the_reconcile_that_follows() -> None:
    """The decision is made twice, and carried out by the second."""
    scene, clock = Scene(current=2, arrival=600.0, handled=120.0), StillClock()
    watch = ScalingWatch(clock)
    while scene.current == 2:
        scene.pass_time(5)
    while scene.current == 12:
        facts, trail, memory = scene.facts(), scene.trail, scene.memory
        decision = scene.pass_time(5)
    assert decision.limit == limits.DOWNSTREAM
    facts = replace(scene.facts(), current=12, found=12, ready=12, memory=memory, members=facts.members)
    assert facts.observed is not None
    assert facts.lag is not None
    assert memory.growth is not None
    rebalance = replace(facts.observed.transitions[0], at=memory.growth.at)
    observed = replace(facts.observed, transitions=(rebalance,))
    watch.follow(KEY, facts, ScaleDecision(replicas=12, current=12), trail, {})
    clock.now = scene.now - 1_700_000_000.0
    assert watch.has_news(KEY, observed, facts.lag)
    left = watch.trail(KEY)
    assert left is not None
    again, _ = decide(replace(facts, observed=observed), left, scene.now + 0.2)
    assert (again.replicas, again.limit) == (2, limits.DOWNSTREAM)
