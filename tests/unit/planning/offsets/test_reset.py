"""A reset step by step: what is remembered of it, whether workers may run, and what is done in Kafka."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, read_record
from fleet_operator.planning.offsets.reset import Finding
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.runs import RunState, digest_of
from tests.unit.planning.offsets.reset_world import JAVA, KEYS, World, offset_reset, places


@pytest.mark.parametrize("how", ["refused", "paused", "deleted"])
def test_what_was_noticed_about_the_offsets_is_told_in_the_end_whatever_came_between(how: str) -> None:
    world = World(reset=offset_reset(to="Offsets", offsets=places(5, 70))).run_to("Committing")
    if how == "refused":
        world.refusals = dict.fromkeys(KEYS, "CoordinatorLoadInProgress")
    elif how == "paused":
        world.obstacle = Problem("PausedByAnnotation", "paused")
    else:
        world.deleted = True
    world.run(3)
    world.refusals, world.obstacle = {}, None
    world.run(4)
    assert world.shown == ("Succeeded", "")
    assert world.facts["message"].startswith("1 of 2 offsets were out of range")
    assert "note" not in world.facts


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"topics": ["other"]}, "topic 'other' is not a source topic"),
        ({"to": "Time", "time": "yesterday"}, "spec.time: 'yesterday' is not a time (RFC 3339)"),
        ({"notAfter": "tomorrow"}, "spec.notAfter: 'tomorrow' is not a time (RFC 3339)"),
        ({"to": "Offsets", "offsets": places(5, 6) + places(7)}, "spec.offsets lists orders-0 more than once"),
    ],
)
def test_input_that_is_refused_never_stops_the_fleet(spec: dict[str, Any], words: str) -> None:
    world = World(reset=offset_reset(**spec))
    assert world.runs_on()
    assert world.shown == ("Failed", "OffsetsRefused")
    assert words in world.facts["message"]


def test_partition_that_is_missing_is_waited_for_before_the_stop_and_after_it() -> None:
    """After the stop, too: it was there when the reset was checked, so a broker that lags behind is asked."""
    world = World(reset=offset_reset(to="Offsets", offsets=places(15, 20)[1:]), counts={"orders": 1})
    assert world.runs_on()
    assert world.shown == ("Pending", "PartitionsUnknown")
    world.counts = {"orders": 2}
    world.run_to("StoppingWorkers")
    world.counts = {"orders": 1}
    world.run(4)
    assert (*world.shown, world.replicas) == ("StoppingWorkers", "PartitionsUnknown", 0)
    world.counts = {"orders": 2}
    world.run()
    assert (world.phase, world.committed[KEYS[1]]) == ("Succeeded", 20)


def test_reset_that_is_deleted_before_its_commit_is_cancelled() -> None:
    world = World()
    world.visit()
    world.members = (JAVA,)
    world.visit()
    world.deleted = True
    world.run(3)
    assert world.shown == ("Cancelled", "OffsetResetCancelled")
    assert (world.replicas, world.commits) == (2, 0), "the fleet runs again"


def test_reset_that_is_deleted_while_nothing_is_remembered_waits_for_nothing() -> None:
    """Its finalizer would keep the object."""
    world = World(deleted=True, memory_gap=Problem("MemoryLost", "it may be older"))
    world.run(3)
    assert (world.phase, world.commits) == ("Cancelled", 0)


def test_reset_that_is_deleted_in_its_commit_is_finished() -> None:
    world = World().run_to("Committing")
    world.deleted = True
    world.run(4)
    assert world.phase == "Succeeded"
    assert world.committed == dict.fromkeys(KEYS, 10)


def test_refused_right_that_changed_nothing_lets_the_fleet_start_again() -> None:
    world = World(refusals=dict.fromkeys(KEYS, "AuthorizationFailed"))
    world.run()
    assert world.shown == ("Failed", "AuthorizationFailed")
    assert "nothing was changed" in world.facts["message"]
    assert world.replicas == 2
    assert world.committed == dict(zip(KEYS, (50, 60), strict=True))


def test_commit_that_is_refused_in_part_keeps_the_fleet_down_and_says_so() -> None:
    world = World(refusals={("orders", 1): "AuthorizationFailed"})
    world.run()
    assert world.shown == ("Committing", "AuthorizationFailed")
    assert "orders-1" in world.facts["message"]
    assert world.replicas == 0
    world.refusals = {}
    world.run(4)
    assert world.phase == "Succeeded"


def test_commit_that_only_a_moving_coordinator_refuses_is_not_left_half_done() -> None:
    world = World(refusals={("orders", 1): "NotCoordinator"}).run()
    world.deleted = True
    world.run(4)
    assert (world.phase, world.replicas) == ("Committing", 0)
    world.refusals = {}
    world.run(4)
    assert world.phase == "Succeeded"


@pytest.mark.parametrize(
    ("refusals", "words"),
    [
        (dict.fromkeys(KEYS, "UnknownMemberId"), "the OffsetReset was deleted, and nothing was changed"),
        ({KEYS[1]: "TopicNotFound"}, "and the other partitions are set"),
    ],
)
def test_commit_that_was_given_up_says_truly_whether_anything_was_changed(
    refusals: dict[tuple[str, int], str], words: str
) -> None:
    world = World(refusals=refusals).run()
    world.deleted = True
    world.run(4)
    assert (world.phase, world.replicas) == ("Failed", 2)
    assert world.facts["message"].endswith(words)


@pytest.mark.parametrize(
    ("reason", "phase"), [("AuthorizationFailed", "Failed"), ("CoordinatorNotAvailable", "Committing")]
)
def test_commit_that_the_brokers_let_nobody_read_again_can_be_given_up(reason: str, phase: str) -> None:
    """An operator died behind its commit, and the right to read was taken away: nobody learns what is set."""
    world = World().run_to("Committing")
    world.kill()
    world.broken = Problem(reason, "group 'orders': refused")
    world.run(3)
    assert world.shown == ("Committing", reason)
    world.deleted = True
    world.run(4)
    assert world.phase == phase
    assert ("it is unknown whether" in world.facts["message"]) is (phase == "Failed")


def test_offsets_that_were_taken_and_are_not_there_afterwards_are_set_again() -> None:
    world = World().run_to("Committing")
    world.finding = Finding(phase=ResetPhase.COMMITTING)
    decision = world.decide()
    assert decision.step is not None
    assert "returned other offsets afterwards" in decision.message


@pytest.mark.parametrize("phase", [phase for phase in ResetPhase if phase not in FINAL_PHASES])
def test_nothing_is_done_past_an_obstacle(phase: ResetPhase) -> None:
    world = World(obstacle=Problem("PausedByAnnotation", "paused"))
    world.facts = {"phase": phase.value, "resolved": places(10)}
    decision = world.decide()
    assert (decision.step, decision.phase, decision.reason) == (None, phase.value, "PausedByAnnotation")


def test_fleet_that_never_ran_does_not_start_before_its_reset() -> None:
    """It would handle what the reset leaves out; so also where the reset was refused."""
    world = World(replicas=None, members=(), committed={})
    assert world.stopped
    world.run()
    assert (world.phase, world.replicas) == ("Succeeded", 2)
    refused = World(replicas=None, members=(), reset=offset_reset(topics=["other"])).run()
    assert (refused.phase, refused.stopped) == ("Failed", True)
    forbidden = World(replicas=None, members=(), refusals=dict.fromkeys(KEYS, "AuthorizationFailed")).run()
    assert (forbidden.phase, forbidden.stopped) == ("Failed", True), "it changed nothing"
    late = World(replicas=None, members=(), reset=offset_reset(notAfter="2001-01-01T00:00:00Z")).run()
    assert (*late.shown, late.replicas) == ("Failed", "NotAfterPassed", 2), "it may be one of long ago"
    assert not World(replicas=None, members=(), reset=offset_reset(dryRun=True)).stopped


def test_partitions_without_a_commit_are_absent_from_what_was_before() -> None:
    world = World(replicas=0, members=(), committed={("orders", 1): 60})
    world.run_to("Committing")
    assert world.facts["previous"] == places(50, 60)[1:]


@pytest.mark.parametrize("seed", range(40))
def test_operator_killed_anywhere_finishes_the_reset_once(seed: int) -> None:
    """Killed between any two of: the fleet's change, the step in Kafka, the write of the record."""
    chance, world = random.Random(seed), World()
    for _ in range(200):
        if chance.random() < 0.7:
            world.scale()
            if chance.random() < 0.7:
                world.act(world.decide())
                if chance.random() < 0.5:
                    world.store(world.decide())
        if chance.random() < 0.3:
            world.kill()
        if world.phase == "Succeeded":
            break
    world.run(3)
    assert world.phase == "Succeeded"
    assert world.facts["previous"] == places(50, 60)
    assert world.committed == dict.fromkeys(KEYS, 10)
    assert world.replicas == 2


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"phase": "Nonsense"},
        {"phase": []},
        {"phase": "Pending", "previous": "text"},
        {"phase": "Pending", "resolved": [{"topic": "orders"}]},
    ],
)
def test_state_that_nobody_of_ours_wrote_is_no_record(forged: dict[str, Any]) -> None:
    reset = offset_reset()
    assert read_record(RunState(digest=digest_of(reset), facts=forged), reset) is None


def test_record_is_read_as_it_was_remembered() -> None:
    world = World(committed={KEYS[0]: 50}).run_to("Committing")
    record = world.decide().record
    assert record == ResetRecord(
        phase=ResetPhase.COMMITTING,
        started_at="2027-01-15T08:00:00Z",
        previous={KEYS[0]: 50},
        offsets=dict.fromkeys(KEYS, 10),
    )
