"""Rollouts as a whole: whatever the revisions do, and wherever the operator is killed, the fleet ends where it should.

Invariants, checked after every turn:
- a fleet that works never loses more than one ready worker to a new revision, and none to one that fails its check;
- the StatefulSet never gets a revision whose check has not passed;
- once nothing changes any more, the operator writes nothing.
"""

from __future__ import annotations

from hypothesis import given, note, settings
from hypothesis import strategies as st

from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.state.group import RevisionState
from tests.unit.planning.rollout_world import Kind, World

OLD, NEW = "a" * 10, "b" * 10
TURN_S = 5.0
QUIET_TURNS = 150

kills = st.lists(st.none() | st.integers(0, 4), min_size=0, max_size=60)


def turn(world: World, *, cut_after: int | None = None) -> RolloutDecision:
    decision = world.visit(cut_after=cut_after)
    world.controllers(TURN_S)
    world.now += TURN_S
    world.tick += TURN_S
    return decision


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
    unchecked = kind in (Kind.FAILS_CHECK, Kind.HANGS)
    lost_at_most = 0 if unchecked else 1
    for cut in cuts + [None] * QUIET_TURNS:
        turn(world, cut_after=cut)
        note(f"{world.now}: template={world.template} pods={world.pods}")
        assert ready(world) >= replicas - lost_at_most
        assert world.template == OLD or not unchecked
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
    assert world.checks_run - checks <= (2 if kind is Kind.FAILS_CHECK else 0)
    # Two repeated checks: each is recorded, removed and created again.
    assert world.writes - writes <= (9 if kind in (Kind.FAILS_CHECK, Kind.HANGS) else 0)


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


counted = st.tuples(
    st.integers(1, 4) | st.just(30),  # turns: some within the start of a pod, some longer than any deadline
    st.booleans(),  # the cluster is slow
    st.sampled_from((0.0, 86_400.0, -86_400.0)),  # the wall clock jumps, or another leader's clock differs
    st.sampled_from((0.0, 86_400.0)),  # the machine was suspended, or nobody checked
    st.sampled_from((None, None, None, 0, 1, 2)),  # the operator is killed
)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.lists(counted, max_size=8), st.booleans())
def test_slow_cluster_and_wrong_clocks_refuse_nothing(
    replicas: int, course: list[tuple[int, bool, float, float, int | None]], first: bool
) -> None:
    """Whatever happens outside, in whatever order: the revision is never refused, and runs once it can."""
    if first:
        world = World(kinds={NEW: Kind.WORKS}, wanted=NEW, replicas=replicas)
    else:
        world = running_world(Kind.WORKS, replicas)
    for count, slow, wall_jump, steady_jump, cut in course:
        world.slow = slow
        world.now += wall_jump
        world.tick += steady_jump
        for number in range(count):
            decision = turn(world, cut_after=None if number else cut)
            assert (decision.phase is RolloutPhase.REFUSED, decision.cause) == (False, None)
            assert all(record.reason == "" for record in world.records.values())
    world.slow = False
    settle(world)
    assert (world.template, ready(world)) == (NEW, replicas)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from((Kind.FAILS_CHECK, Kind.HANGS, Kind.NEVER_READY)), st.booleans(), kills)
def test_every_refusal_is_tried_again_when_asked_for(kind: Kind, first: bool, cuts: list[int | None]) -> None:
    """The cause is corrected outside: another request brings the refused revision to the workers, first one or not."""
    world = World(kinds={NEW: kind}, wanted=NEW, replicas=2) if first else running_world(kind, 2)
    for cut in cuts:
        turn(world, cut_after=cut)
    settle(world)
    assert world.template == (OLD if not first else NEW if kind is Kind.NEVER_READY else None)
    world.kinds[NEW] = Kind.WORKS
    world.request = "r2"
    for _ in range(24):  # two minutes, less than the pause after which checks are repeated automatically
        turn(world)
    assert (world.template, ready(world)) == (NEW, 2)
    assert turn(world).phase is RolloutPhase.SETTLED


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((Kind.NEVER_READY, Kind.WORKS)), st.integers(1, 4), st.integers(0, 40), st.integers(1, 4), kills)
def test_rest_amid_a_rollout_brings_no_second_worker_to_the_unproven_revision(
    kind: Kind, replicas: int, before: int, rest: int, cuts: list[int | None]
) -> None:
    """Suspended at any moment and for any time: afterwards the workers are made at the good one, and change singly."""
    world = running_world(kind, replicas)
    for _ in range(before):
        turn(world)
    world.replicas = 0
    for _ in range(rest):
        turn(world)
    world.replicas = replicas
    for cut in cuts + [None] * QUIET_TURNS:
        turn(world, cut_after=cut)
        note(f"{world.now}: template={world.template} pods={world.pods}")
        unready = [pod for pod in world.pods.values() if pod.revision == NEW and not pod.ready]
        good = world.records[NEW].state is RevisionState.GOOD if NEW in world.records else False
        assert good or len(unready) <= 1
    expected = NEW if kind is Kind.WORKS else OLD
    assert (world.template, ready(world)) == (expected, replicas)


def test_first_revision_that_is_late_gets_its_time_again_when_asked_for() -> None:
    world = World(kinds={NEW: Kind.NEVER_READY}, wanted=NEW, replicas=1)
    settle(world)
    assert world.visit().cause is not None
    world.request = "r2"
    assert world.visit().cause is None
    settle(world)
    assert world.visit().cause is not None


def test_slow_cluster_keeps_what_was_counted_before() -> None:
    """A worker that never gets ready is refused after its deadline, however often its node is silent meanwhile."""
    world = running_world(Kind.NEVER_READY, 1)
    for number in range(60):
        world.slow = number % 2 == 1
        turn(world)
    assert world.template == OLD


def test_third_revision_repairs_a_broken_second() -> None:
    fixed = "c" * 10
    world = running_world(Kind.NEVER_READY, 3)
    settle(world)
    assert (world.template, ready(world)) == (OLD, 3)
    world.kinds[fixed] = Kind.WORKS
    world.wanted = fixed
    settle(world)
    assert world.template == fixed
    assert set(world.records) == {OLD, fixed}


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
