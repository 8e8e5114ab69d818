"""Rollouts as a whole: whatever the revisions do, and wherever the operator is killed, the fleet ends where it should.

Invariants, checked after every turn:
- a fleet that works never loses more than one ready worker to a new revision, and none to one that fails its check;
- the StatefulSet never gets a revision whose check has not passed;
- once nothing changes any more, the operator writes nothing.
"""

from __future__ import annotations

from hypothesis import given, note, settings
from hypothesis import strategies as st

from fleet_operator.planning.fleet.rollout import RolloutPhase
from tests.unit.planning.rollout_world import Kind, World

OLD, NEW = "a" * 10, "b" * 10
TURN_S = 5.0
QUIET_TURNS = 150

kills = st.lists(st.none() | st.integers(0, 4), min_size=0, max_size=60)


def turn(world: World, *, cut_after: int | None = None) -> None:
    world.visit(cut_after=cut_after)
    world.controllers()
    world.now += TURN_S


def settle(world: World) -> None:
    for _ in range(QUIET_TURNS):
        turn(world)


def running_world(kind: Kind, replicas: int) -> World:
    """Revision OLD works and is good; then NEW is wanted."""
    world = World(kinds={OLD: Kind.WORKS, NEW: kind}, wanted=OLD, replicas=replicas)
    settle(world)
    assert world.visit().phase is RolloutPhase.SETTLED
    world.wanted = NEW
    return world


def ready(world: World) -> int:
    return sum(pod.ready for pod in world.pods.values())


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(Kind), st.integers(1, 4), kills)
def test_fleet_ends_where_it_should_wherever_the_operator_is_killed(
    kind: Kind, replicas: int, cuts: list[int | None]
) -> None:
    world = running_world(kind, replicas)
    lost_at_most = 0 if kind is Kind.FAILS_CHECK else 1
    for cut in cuts + [None] * QUIET_TURNS:
        turn(world, cut_after=cut)
        note(f"{world.now}: template={world.template} pods={world.pods}")
        assert ready(world) >= replicas - lost_at_most
        assert world.template == OLD or kind is not Kind.FAILS_CHECK
    expected = NEW if kind is Kind.WORKS else OLD
    assert world.template == expected
    assert {pod.revision for pod in world.pods.values()} == {expected}
    assert ready(world) == replicas


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(Kind), st.integers(1, 3), kills)
def test_nothing_is_written_once_all_is_quiet(kind: Kind, replicas: int, cuts: list[int | None]) -> None:
    """A refused revision is checked again every ten minutes; between, and in all other cases, there is silence."""
    world = running_world(kind, replicas)
    for cut in cuts + [None] * QUIET_TURNS:
        turn(world, cut_after=cut)
    checks, writes = world.checks_run, world.writes
    for _ in range(QUIET_TURNS):
        turn(world)
    repeated = world.checks_run - checks
    assert repeated <= (2 if kind is Kind.FAILS_CHECK else 0)
    assert world.writes - writes <= 3 * (repeated + 1) if kind is Kind.FAILS_CHECK else world.writes == writes


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40))
def test_fleet_starts_by_itself_when_external_causes_are_resolved(replicas: int, broken_turns: int) -> None:
    """Brokers away at first: no worker starts, one check a minute at most, and then everything goes its way."""
    world = World(kinds={NEW: Kind.WORKS}, wanted=NEW, replicas=replicas, outside_broken=True)
    for _ in range(broken_turns):
        turn(world)
        assert world.template is None
    assert world.checks_run <= 1 + broken_turns * TURN_S / 60
    world.outside_broken = False
    settle(world)
    assert world.template == NEW
    assert ready(world) == replicas


def test_third_revision_repairs_a_broken_second() -> None:
    mended = "c" * 10
    world = running_world(Kind.NEVER_READY, 3)
    settle(world)
    assert (world.template, ready(world)) == (OLD, 3)
    world.kinds[mended] = Kind.WORKS
    world.wanted = mended
    settle(world)
    assert world.template == mended
    assert set(world.records) == {OLD, mended}


def test_user_may_go_back_to_the_revision_before() -> None:
    world = running_world(Kind.WORKS, 2)
    settle(world)
    assert world.template == NEW
    world.wanted = OLD
    checks = world.checks_run
    settle(world)
    assert (world.template, world.checks_run) == (OLD, checks)


def test_size_changes_in_the_middle_of_a_rollout() -> None:
    world = running_world(Kind.WORKS, 2)
    for _ in range(4):
        turn(world)
    world.replicas = 4
    settle(world)
    assert world.template == NEW
    assert ready(world) == 4
