"""Decisions between reconciles: a group is reconciled when its decision changes, and not at each observation."""

from __future__ import annotations

import random
from dataclasses import replace

from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.status.scaling import entry_of
from fleet_operator.reconcilers.consumergroup.session import GroupSession, Load, Memory
from fleet_operator.reconcilers.consumergroup.sizing import has_news
from tests.unit.planning.scaling.scenes import Scene
from tests.unit.reconcilers.consumergroup.sessions import fresh_session

SEED = 20_261_126


def looked(scene: Scene, session: GroupSession) -> bool:
    """The next look, without a reconcile."""
    scene.pass_time(5)
    facts = scene.facts()
    assert facts.observed is not None
    assert facts.lag is not None
    return has_news(session, facts.observed, facts.lag, (), scene.now)


def follow(scene: Scene, session: GroupSession) -> ScaleDecision:
    decision = scene.decide()
    session.memory = Memory(trail=scene.trail, scale=decision)
    session.load = Load(scene.facts(), entry_of(decision), decision)
    return decision


def test_steady_load_is_no_news() -> None:
    scene = Scene(current=3)
    session = fresh_session()
    scene.pass_time(120)
    follow(scene, session)
    assert not any(looked(scene, session) for _ in range(40))


def test_first_look_of_a_process_is_no_news() -> None:
    """Rates take a second one, and the status stands until then."""
    scene = Scene(current=3)
    session = fresh_session()
    scene.pass_time(120)
    follow(scene, session)
    assert scene.trail.known_since is not None
    scene.samples = []
    assert not looked(scene, session)
    assert session.memory.trail.known_since is None, (
        "samples begin anew after a gap, in which fewer workers may not have been enough"
    )


def test_new_decision_is_news_and_the_trail_is_handed_on() -> None:
    scene = Scene(current=2, handled=120.0)
    session = fresh_session()
    scene.pass_time(90)
    follow(scene, session)
    scene.arrival = 420.0
    news = [looked(scene, session) for _ in range(4)]
    assert any(news)
    assert session.memory.trail.decided_at == scene.now


def test_noise_between_two_useful_numbers_is_hardly_ever_news() -> None:
    """Each would be a reconcile and perhaps a write of the status."""
    print("seed", SEED)
    chance, scene = random.Random(SEED), Scene(current=4)
    session = fresh_session()
    scene.pass_time(400)
    follow(scene, session)
    news = 0
    for _ in range(720):
        scene.arrival = max(0.0, chance.gauss(155.0, 25.0))
        if looked(scene, session):
            news += 1
            follow(scene, session)
    assert news <= 12, "an hour of looks"


def test_fleet_of_a_fixed_size_has_no_news() -> None:
    scene = Scene(current=2)
    session = fresh_session()
    session.memory = Memory(scale=ScaleDecision(replicas=2))
    assert not looked(scene, session)


def test_group_that_is_not_followed_any_more_has_no_news() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    session = fresh_session()
    follow(scene, session)
    session.stop_following()
    assert not looked(scene, session)


def test_growth_taken_back_between_reconciles_is_taken_back_by_the_reconcile_that_follows() -> None:
    """The decision is made twice, and carried out by the second."""
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    session = fresh_session()
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
    before = ScaleDecision(replicas=12, current=12)
    session.memory, session.load = Memory(trail=trail, scale=before), Load(facts, {}, before)
    assert has_news(session, observed, facts.lag, (), scene.now)
    again, _ = decide(replace(facts, observed=observed), session.memory.trail, scene.now + 0.2)
    assert (again.replicas, again.limit) == (2, limits.DOWNSTREAM)


def test_begin_of_a_schedule_is_news() -> None:
    """The scene begins at 08:00 UTC."""
    schedule = {"cron": "5 8 * * *", "durationSeconds": 3600, "minReplicas": 1}
    scene = Scene(current=3, spec={"schedules": [schedule]})
    session = fresh_session()
    scene.pass_time(120)
    follow(scene, session)
    news = [looked(scene, session) for _ in range(36)]
    assert (any(news[:-1]), news[-1]) == (False, True)
