"""A reset step by step: what stands in the status, whether workers may run, and what is done in Kafka."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, read_record
from fleet_operator.planning.offsets.reset import Finding
from fleet_operator.planning.problem import Problem
from tests.unit.planning.offsets.reset_world import JAVA, KEYS, World, wanted


def test_reset_stops_the_fleet_commits_and_starts_it_again() -> None:
    world = World()
    seen: list[tuple[str, bool]] = []
    for _ in range(12):
        decision = world.visit()
        if not seen or seen[-1] != (world.phase, decision.stop):
            seen.append((world.phase, decision.stop))
    assert seen == [
        ("StandingDown", False),
        ("StandingDown", True),
        ("Committing", True),
        ("Succeeded", True),
        ("Succeeded", False),
    ]
    assert world.committed == {("orders", 0): 10, ("orders", 1): 10}
    assert world.last["previous"] == {"orders": {"0": 50, "1": 60}}
    assert world.last["offsets"] == {"orders": {"0": 10, "1": 10}}
    assert world.last["partitions"] == 2
    assert world.status["usedIds"] == ["a"]
    assert world.replicas == 2


def test_dry_run_shows_both_and_stops_nothing() -> None:
    world = World(wanted=wanted(dryRun=True))
    assert not any(world.visit().stop for _ in range(6))
    assert world.status["dryRun"]["phase"] == "Succeeded"
    assert world.status["dryRun"]["previous"] == {"orders": {"0": 50, "1": 60}}
    assert world.status["dryRun"]["offsets"] == {"orders": {"0": 10, "1": 10}}
    assert "lastReset" not in world.status
    assert world.commits == 0
    world.wanted = wanted()
    assert world.run().phase == "Succeeded"
    assert world.commits == 2


@pytest.mark.parametrize("how", ["refused", "paused", "removed"])
def test_what_was_noticed_about_the_offsets_is_told_in_the_end_whatever_came_between(how: str) -> None:
    world = World(wanted=wanted(to="Offsets", offsets={"orders": {"0": 5, "1": 70}})).run_to("Committing")
    if how == "refused":
        world.refusals = dict.fromkeys(KEYS, "CoordinatorLoadInProgress")
    elif how == "paused":
        world.obstacle = Problem("PausedByAnnotation", "paused")
    else:
        world.wanted = None
    world.run(3)
    world.refusals, world.obstacle = {}, None
    world.run(4)
    assert world.phase == "Succeeded"
    assert world.last["message"].startswith("1 of 2 offsets were out of range")
    assert not {"note", "reason"} & set(world.last)


def test_input_that_is_refused_never_stops_the_fleet() -> None:
    world = World(wanted=wanted(topics=["other"]))
    assert not any(world.visit().stop for _ in range(6))
    assert (world.phase, world.last["reason"]) == ("Failed", "OffsetsRefused")
    world.wanted = wanted("b")
    assert world.run().phase == "Succeeded"


def test_partition_that_is_missing_is_waited_for_before_the_stop_and_after_it() -> None:
    """After the stop, too: it was there when the reset was checked, so a broker that lags behind is asked."""
    world = World(wanted=wanted(to="Offsets", offsets={"orders": {"1": 20}}), counts={"orders": 1})
    assert not any(world.visit().stop for _ in range(6))
    assert (world.phase, world.last["reason"]) == ("Pending", "PartitionsUnknown")
    world.counts = {"orders": 2}
    world.run_to("StandingDown")
    world.counts = {"orders": 1}
    world.run(4)
    assert (world.phase, world.last["reason"], world.replicas) == ("StandingDown", "PartitionsUnknown", 0)
    world.counts = {"orders": 2}
    world.run()
    assert (world.phase, world.committed[KEYS[1]]) == ("Succeeded", 20)


@pytest.mark.parametrize("gone", [None, "another", "dry"])
def test_reset_that_leaves_the_spec_before_its_commit_is_cancelled(gone: str | None) -> None:
    world = World()
    world.visit()
    world.members = (JAVA,)
    world.visit()
    world.wanted = {None: None, "another": wanted("b", topics=["other"]), "dry": wanted("b", dryRun=True)}[gone]
    world.run(3)
    assert world.phase == ("Failed" if gone == "another" else "Cancelled")
    assert world.replicas == 2, "the fleet runs again"
    assert world.commits == 0


def test_reset_that_leaves_the_spec_in_its_commit_is_finished() -> None:
    world = World().run_to("Committing")
    assert world.phase == "Committing"
    world.wanted = None
    world.run(4)
    assert world.phase == "Succeeded"
    assert world.committed == {("orders", 0): 10, ("orders", 1): 10}


def test_refused_right_that_changed_nothing_lets_the_fleet_start_again() -> None:
    world = World(refusals=dict.fromkeys(KEYS, "AuthorizationFailed"))
    world.run()
    assert (world.phase, world.last["reason"]) == ("Failed", "AuthorizationFailed")
    assert "nothing was changed" in world.last["message"]
    assert world.replicas == 2
    assert world.committed == {("orders", 0): 50, ("orders", 1): 60}


def test_commit_that_is_refused_in_part_keeps_the_fleet_down_and_says_so() -> None:
    world = World(refusals={("orders", 1): "AuthorizationFailed"})
    world.run()
    assert (world.phase, world.last["reason"]) == ("Committing", "AuthorizationFailed")
    assert "orders-1" in world.last["message"]
    assert world.replicas == 0
    world.refusals = {}
    world.run(4)
    assert world.phase == "Succeeded"


def test_commit_that_is_refused_in_part_can_be_given_up() -> None:
    world = World(refusals={("orders", 1): "TopicNotFound"}).run()
    world.wanted = None
    world.run(4)
    assert world.phase == "Failed"
    assert world.replicas == 2


def test_commit_that_only_a_moving_coordinator_refuses_is_not_left_half_done() -> None:
    world = World(refusals={("orders", 1): "NotCoordinator"}).run()
    world.wanted = None
    world.run(4)
    assert (world.phase, world.replicas) == ("Committing", 0)
    world.refusals = {}
    world.run(4)
    assert world.phase == "Succeeded"


def test_commit_that_was_given_up_says_truly_whether_anything_was_changed() -> None:
    world = World(refusals=dict.fromkeys(KEYS, "UnknownMemberId")).run()
    world.wanted = None
    world.run(4)
    assert world.phase == "Failed"
    assert world.last["message"].endswith("the reset was removed from the spec, and nothing was changed")
    partly = World(refusals={("orders", 1): "TopicNotFound"}).run()
    partly.wanted = None
    assert partly.run(4).last["message"].endswith("and the other partitions are set")


@pytest.mark.parametrize(
    ("reason", "phase"), [("AuthorizationFailed", "Failed"), ("CoordinatorNotAvailable", "Committing")]
)
def test_commit_that_the_brokers_let_nobody_read_again_can_be_given_up(reason: str, phase: str) -> None:
    """An operator died behind its commit, and the right to read was taken away: nobody learns what is set."""
    world = World().run_to("Committing")
    world.kill()
    world.broken = Problem(reason, "group 'orders': refused")
    world.run(3)
    assert (world.phase, world.last["reason"]) == ("Committing", reason)
    world.wanted = None
    world.run(4)
    assert world.phase == phase
    assert ("could not be read" in world.last["message"]) is (phase == "Failed")


def test_offsets_that_were_taken_and_are_not_there_afterwards_are_set_again() -> None:
    world = World().run_to("Committing")
    record = read_record(world.last)
    assert record is not None
    world.finding = Finding(id="a", digest=record.digest, phase=ResetPhase.COMMITTING)
    decision = world.decide()
    assert decision.step is not None
    assert decision.last is not None
    assert "had others afterwards" in decision.last.message


@pytest.mark.parametrize("phase", list(ResetPhase))
def test_nothing_is_done_past_an_obstacle(phase: ResetPhase) -> None:
    world = World(obstacle=Problem("PausedByAnnotation", "paused"))
    record = ResetRecord(id="a", to="Earliest", phase=phase, offsets={"orders": {0: 10}})
    world.status = {"lastReset": record.document(), "usedIds": ["a"] if phase is ResetPhase.SUCCEEDED else []}
    decision = world.decide()
    assert decision.step is None
    assert decision.last is not None
    assert decision.last.phase is (ResetPhase.PENDING if phase is ResetPhase.CANCELLED else phase)


def test_fleet_that_never_ran_does_not_start_before_its_reset() -> None:
    """It would handle what the reset leaves out; so also where the reset was refused."""
    world = World(replicas=None, members=(), committed={})
    assert world.visit().stop
    assert world.visit().stop
    refused = World(replicas=None, members=(), wanted=wanted(topics=["other"]))
    assert all(refused.visit().stop for _ in range(5))
    assert refused.phase == "Failed"
    refused.wanted = None
    assert not refused.visit().stop
    forbidden = World(replicas=None, members=(), refusals=dict.fromkeys(KEYS, "AuthorizationFailed"))
    assert all(forbidden.visit().stop for _ in range(12)), "a refused commit has used the id, and changed nothing"
    assert (forbidden.phase, forbidden.status["usedIds"]) == ("Failed", ["a"])
    forbidden.refusals, forbidden.wanted = {}, wanted(id="b")
    forbidden.run()
    assert (forbidden.phase, forbidden.replicas) == ("Succeeded", 2)
    assert not World(replicas=None, members=(), wanted=wanted(dryRun=True)).visit().stop


def test_partitions_without_a_commit_are_absent_from_what_was_before() -> None:
    world = World(replicas=0, members=(), committed={("orders", 1): 60})
    world.run(3)
    assert world.last["previous"] == {"orders": {"1": 60}}


@pytest.mark.parametrize("seed", range(40))
def test_operator_killed_anywhere_finishes_the_reset_once(seed: int) -> None:
    """Killed between any two of: a decision, the fleet's change, the step in Kafka, the write of the status."""
    chance, world = random.Random(seed), World()
    for _ in range(200):
        decision = world.decide()
        for do in (world.scale, world.act):
            if chance.random() < 0.3:
                break
            do(decision)
        else:
            if chance.random() < 0.5:
                world.store(world.decide())
        if chance.random() < 0.3:
            world.kill()
        if world.status.get("lastReset", {}).get("phase") == "Succeeded":
            break
    world.run(3)
    assert world.phase == "Succeeded"
    assert world.last["previous"] == {"orders": {"0": 50, "1": 60}}
    assert world.committed == {("orders", 0): 10, ("orders", 1): 10}
    assert world.replicas == 2
    world.committed[KEYS[0]] = 77
    world.run()
    assert world.committed[KEYS[0]] == 77


def test_status_that_nobody_of_ours_wrote_is_no_record() -> None:
    forgeries: tuple[Any, ...] = (
        "text",
        {},
        {"id": "a"},
        {"id": "a", "to": "Earliest", "phase": "Nonsense"},
        {"phase": []},
    )
    for forged in forgeries:
        assert read_record(forged) is None
    record = ResetRecord(id="a", to="Time", time="t", phase=ResetPhase.COMMITTING, offsets={"orders": {0: 1}})
    assert read_record(record.document()) == record
