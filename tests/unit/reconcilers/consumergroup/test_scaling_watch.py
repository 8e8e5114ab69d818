"""Decisions between reconciles: a group is reconciled when its decision changes, and not at each observation."""

from __future__ import annotations

import random
from dataclasses import replace

from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.status.scaling import entry_of
from fleet_operator.reconcilers.consumergroup.session import GroupSession, Load, Memory
from fleet_operator.reconcilers.consumergroup.sizing import needs_reconcile
from tests.unit.planning.scaling.scenes import Scene
from tests.unit.reconcilers.consumergroup.sessions import fresh_session

SEED = 20_261_126


def polled(scene: Scene, session: GroupSession) -> bool:
    """The next poll, without a reconcile."""
    scene.pass_time(5)
    facts = scene.facts()
    assert facts.observed is not None
    assert facts.lag is not None
    return needs_reconcile(session, facts.observed, facts.lag, (), scene.now)


def follow(scene: Scene, session: GroupSession) -> ScaleDecision:
    decision = scene.decide()
    session.memory = Memory(history=scene.history, scale=decision)
    session.load = Load(scene.facts(), entry_of(decision), decision)
    return decision


def test_steady_load_needs_no_reconcile() -> None:
    scene = Scene(current=3)
    session = fresh_session()
    scene.pass_time(120)
    follow(scene, session)
    assert not any(polled(scene, session) for _ in range(40))


def test_first_poll_of_a_process_needs_no_reconcile() -> None:
    """Rates take a second one, and the status stands until then."""
    scene = Scene(current=3)
    session = fresh_session()
    scene.pass_time(120)
    follow(scene, session)
    assert scene.history.known_since is not None
    scene.samples = []
    assert not polled(scene, session)
    assert session.memory.history.known_since is None, (
        "samples begin again after a gap, in which fewer workers may not have been enough"
    )


def test_new_decision_needs_a_reconcile_and_the_history_is_handed_on() -> None:
    scene = Scene(current=2, handled=120.0)
    session = fresh_session()
    scene.pass_time(90)
    follow(scene, session)
    scene.arrival = 420.0
    due = [polled(scene, session) for _ in range(4)]
    assert any(due)
    assert session.memory.history.decided_at == scene.now


def test_noise_between_two_useful_numbers_is_hardly_ever_a_reconcile() -> None:
    """Each would be a reconcile and perhaps a write of the status."""
    print("seed", SEED)
    chance, scene = random.Random(SEED), Scene(current=4)
    session = fresh_session()
    scene.pass_time(400)
    follow(scene, session)
    due = 0
    for _ in range(720):
        scene.arrival = max(0.0, chance.gauss(155.0, 25.0))
        if polled(scene, session):
            due += 1
            follow(scene, session)
    assert due <= 12, "an hour of polls"


def test_fleet_of_a_fixed_size_needs_no_reconcile() -> None:
    scene = Scene(current=2)
    session = fresh_session()
    session.memory = Memory(scale=ScaleDecision(replicas=2))
    assert not polled(scene, session)


def test_group_that_is_not_followed_any_more_needs_no_reconcile() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    session = fresh_session()
    follow(scene, session)
    session.stop_following()
    assert not polled(scene, session)


def test_growth_taken_back_between_reconciles_is_taken_back_by_the_reconcile_that_follows() -> None:
    """The decision is made twice, and carried out by the second."""
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    session = fresh_session()
    while scene.current == 2:
        scene.pass_time(5)
    while scene.current == 12:
        facts, history, memory = scene.facts(), scene.history, scene.memory
        decision = scene.pass_time(5)
    assert decision.limit == limits.DOWNSTREAM
    facts = replace(scene.facts(), current=12, found=12, ready=12, memory=memory, members=facts.members)
    assert facts.observed is not None
    assert facts.lag is not None
    assert memory.growth is not None
    rebalance = replace(facts.observed.transitions[0], at=memory.growth.at)
    observed = replace(facts.observed, transitions=(rebalance,))
    before = ScaleDecision(replicas=12, current=12)
    session.memory, session.load = Memory(history=history, scale=before), Load(facts, {}, before)
    assert needs_reconcile(session, observed, facts.lag, (), scene.now)
    again, _ = decide(replace(facts, observed=observed), session.memory.history, scene.now + 0.2)
    assert (again.replicas, again.limit) == (2, limits.DOWNSTREAM)


def test_begin_of_a_schedule_is_a_reconcile() -> None:
    """The scene begins at 08:00 UTC."""
    schedule = {"cron": "5 8 * * *", "durationSeconds": 3600, "minReplicas": 1}
    scene = Scene(current=3, spec={"schedules": [schedule]})
    session = fresh_session()
    scene.pass_time(120)
    follow(scene, session)
    due = [polled(scene, session) for _ in range(36)]
    assert (any(due[:-1]), due[-1]) == (False, True)


def test_fleet_does_not_shrink_while_its_last_observation_grows_old() -> None:
    """Decisions are checked every half minute. With thousands of groups, polls of one group may be more than a minute
    apart, and fewer workers may no longer be enough."""
    scene = Scene(current=12)
    session = fresh_session()
    scene.pass_time(280)
    follow(scene, session)
    facts = scene.facts()
    assert facts.observed is not None
    assert facts.lag is not None
    assert facts.memory.levels, "fewer have been enough for nearly the whole window"
    for seconds in (35, 65, 95):
        assert not needs_reconcile(session, facts.observed, facts.lag, (), scene.now + seconds)
    assert session.memory.history.known_since is None, "the window begins again"
