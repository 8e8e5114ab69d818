"""A reset step by step: what stands in the status, whether workers may run, and what is done in Kafka."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.consumergroup import OffsetReset
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, is_outdated, read_record
from fleet_operator.planning.offsets.reset import Finding, ResetDecision, ResetFacts, ResetStep, decide_reset
from fleet_operator.planning.offsets.targets import GroupOffsets, Member
from fleet_operator.planning.problem import Problem

NOW = 1_800_000_000.0
OURS = Member("shop.orders.0a1b2c3d-0", "orders-0")
DYNAMIC = Member(None, "orders-1")
JAVA = Member(None, "consumer-orders-1")
KEYS = [("orders", 0), ("orders", 1)]


def wanted(id_: str = "a", **fields: Any) -> OffsetReset:
    return OffsetReset.model_validate({"id": id_, "to": "Earliest", **fields})


@dataclass
class World:
    """The status, the fleet and Kafka, which outlive the operator; and its memory, which does not."""

    wanted: OffsetReset | None = field(default_factory=wanted)
    status: dict[str, Any] = field(default_factory=dict)
    replicas: int | None = 2
    members: tuple[Member, ...] = (OURS, DYNAMIC)
    committed: dict[tuple[str, int], int] = field(default_factory=lambda: {("orders", 0): 50, ("orders", 1): 60})
    obstacle: Problem | None = None
    refusals: dict[tuple[str, int], str] = field(default_factory=dict)
    finding: Finding | None = None
    group_type: str = ""
    commits: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"orders": 2})

    def facts(self) -> ResetFacts:
        return ResetFacts(
            wanted=self.wanted,
            last=read_record(self.status.get("lastReset")),
            dry=read_record(self.status.get("dryRun")),
            used=tuple(self.status.get("usedIds") or ()),
            obstacle=self.obstacle,
            sources=("orders",),
            down=not self.replicas,
            begun=self.replicas is not None,
            own_prefix="shop.orders.0a1b2c3d-",
            own_name="orders",
            finding=self.finding,
        )

    def decide(self) -> ResetDecision:
        return decide_reset(self.facts(), NOW)

    def store(self, decision: ResetDecision) -> None:
        records = {"lastReset": decision.last, "dryRun": decision.dry}
        self.status = {key: record.document() for key, record in records.items() if record is not None}
        self.status["usedIds"] = list(decision.used)
        if decision.advanced:
            self.finding = None

    def scale(self, decision: ResetDecision) -> None:
        """The fleet follows; workers that stop leave the group."""
        if decision.stop:
            self.replicas = None if self.replicas is None else 0
            self.members = tuple(member for member in self.members if member is JAVA)
        else:
            self.replicas = 2
            if not self.members:
                self.members = (OURS, DYNAMIC)

    def act(self, decision: ResetDecision) -> None:
        record = decision.step_for
        if record is None:
            return
        found = Finding(id=record.id, digest=record.digest, phase=record.phase)
        if decision.step is ResetStep.READ:
            read = GroupOffsets(
                state="Stable" if self.members or self.group_type else "Empty",
                group_type=self.group_type,
                members=self.members,
                counts=self.counts,
                committed=dict(self.committed),
                starts=dict.fromkeys(KEYS, 10),
                ends=dict.fromkeys(KEYS, 90),
            )
            self.finding = replace(found, read=read)
            return
        assert self.status["lastReset"]["phase"] == "Committing", "what was before stands in the status first"
        if is_outdated(self.committed, wanted=record.offsets, previous=record.previous):
            self.finding = replace(found, outdated=True)
            return
        refusals = dict.fromkeys(KEYS, "UnknownMemberId") if self.members else self.refusals
        for topic, offsets in record.offsets.items():
            for number, offset in offsets.items():
                if (topic, number) not in refusals:
                    self.committed[topic, number] = offset
                    self.commits += 1
        after = {key: self.committed[key] for key in KEYS}
        wanted = {(topic, n): offset for topic, of in record.offsets.items() for n, offset in of.items()}
        before = {(topic, n): offset for topic, of in record.previous.items() for n, offset in of.items()}
        self.finding = replace(
            found, committed=after == wanted and not refusals, untouched=after == before, refusals=refusals
        )

    def visit(self) -> ResetDecision:
        decision = self.decide()
        self.scale(decision)
        self.act(decision)
        self.store(self.decide())
        return decision

    def run(self, visits: int = 12) -> World:
        for _ in range(visits):
            self.visit()
        return self

    def run_to(self, phase: str) -> World:
        while self.phase != phase:
            self.visit()
        return self

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status.get("lastReset", {})
        return found

    @property
    def phase(self) -> str:
        return str(self.last.get("phase"))


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


def test_same_id_never_acts_twice_whatever_came_between() -> None:
    world = World().run()
    world.committed = {("orders", 0): 55, ("orders", 1): 66}
    for each in (wanted("a"), None, wanted("a", dryRun=True), wanted("a")):
        world.wanted = each
        world.run()
    assert world.committed == {("orders", 0): 55, ("orders", 1): 66}
    world.wanted = wanted("b")
    world.run()
    assert world.last["id"] == "b"
    assert world.commits == 4
    world.committed = {("orders", 0): 55, ("orders", 1): 66}
    world.wanted = wanted("a")  # a manifest that was set back
    world.run()
    assert world.committed == {("orders", 0): 55, ("orders", 1): 66}


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


def test_input_that_is_refused_never_stops_the_fleet() -> None:
    world = World(wanted=wanted(topics=["other"]))
    assert not any(world.visit().stop for _ in range(6))
    assert (world.phase, world.last["reason"]) == ("Failed", "OffsetsRefused")
    world.wanted = wanted("b")
    assert world.run().phase == "Succeeded"


def test_members_of_other_programs_keep_the_fleet_running_and_are_named() -> None:
    world = World(members=(OURS, JAVA))
    assert not any(world.visit().stop for _ in range(6))
    assert (world.phase, world.last["reason"]) == ("Pending", "ForeignMembers")
    assert "consumer-orders-1" in world.last["message"]
    world.members = (OURS,)
    assert world.run().phase == "Succeeded"


def test_long_names_of_members_fit_into_the_status() -> None:
    """Else the API server would refuse the whole status, and the record would never equal the stored one."""
    world = World(members=(Member(None, "x" * 30_000),), wanted=wanted(dryRun=False))
    world.run(3)
    assert len(world.last["message"]) == 1024
    assert not world.decide().advanced


def test_member_that_joins_after_the_stop_is_waited_for() -> None:
    world = World()
    world.visit()
    assert world.phase == "StandingDown"
    world.members = (JAVA,)
    assert world.run(4).phase == "StandingDown"
    assert world.last["reason"] == "ForeignMembers"
    assert world.commits == 0
    world.members = ()
    assert world.run().phase == "Succeeded"


def test_members_of_a_group_type_without_a_description_are_waited_for() -> None:
    """DescribeGroups says Dead of a KIP-848 group, which would look empty."""
    world = World(members=(), group_type="consumer")
    assert not any(world.visit().stop for _ in range(6))
    assert (world.phase, world.last["reason"]) == ("Pending", "ForeignMembers")
    assert "consumer" in world.last["message"]
    world.group_type = ""
    assert world.run().phase == "Succeeded"
    late = World().run_to("StandingDown")
    late.group_type = "consumer"
    assert late.run(4).last["reason"] == "ForeignMembers"
    assert late.commits == 0


def test_commit_of_another_program_after_the_offsets_were_read_is_not_overwritten_unseen() -> None:
    """It would stand nowhere, so nothing could bring it back."""
    world = World().run_to("Committing")
    world.committed["orders", 0] = 58
    world.visit()
    assert (world.phase, world.status["usedIds"], world.commits) == ("StandingDown", [], 0)
    assert "previous" not in world.last
    world.run()
    assert world.phase == "Succeeded"
    assert world.last["previous"] == {"orders": {"0": 58, "1": 60}}
    assert world.committed == {("orders", 0): 10, ("orders", 1): 10}


def test_reset_whose_offsets_were_outdated_can_still_be_removed() -> None:
    world = World().run_to("Committing")
    world.committed["orders", 0] = 58
    world.visit()
    world.wanted = None
    world.run(3)
    assert (world.phase, world.replicas, world.commits) == ("Cancelled", 2, 0)
    world.wanted = wanted()
    assert world.run().phase == "Succeeded", "its id was not used"


@pytest.mark.parametrize(
    ("committed", "outdated"),
    [
        ({0: 50, 1: 60}, False),
        ({0: 10, 1: 10}, False),
        ({0: 10, 1: 60}, False),
        ({0: 51, 1: 60}, True),
        ({0: 50}, True),
        ({0: 50, 1: 60, 2: 7}, True),
        ({0: 10, 1: 61}, False),
    ],
)
def test_offsets_are_outdated_if_another_program_committed_before_anything_was_set(
    committed: dict[int, int], outdated: bool
) -> None:
    found = {("orders", number): offset for number, offset in committed.items()}
    new, old = {"orders": {0: 10, 1: 10, 2: 10}}, {"orders": {0: 50, 1: 60}}
    assert is_outdated(found, wanted=new, previous=old) is outdated


def test_id_that_comes_back_with_other_content_is_another_reset_until_it_was_done() -> None:
    """The API server compares only with what stood there before; an id that was removed is new to it."""
    world = World().run_to("StandingDown")
    world.members = (JAVA,)
    world.wanted = wanted(to="Latest")
    world.run(2)
    assert (world.last["to"], world.replicas) == ("Latest", 2)
    world.members = (OURS,)
    world.run()
    assert world.committed == {("orders", 0): 90, ("orders", 1): 90}
    world.wanted = wanted(to="Earliest")
    world.run()
    assert world.committed == {("orders", 0): 90, ("orders", 1): 90}, "once for each id"


def test_refused_id_with_other_content_is_tried() -> None:
    world = World(wanted=wanted(topics=["other"])).run()
    assert world.phase == "Failed"
    world.wanted = wanted()
    assert world.run().phase == "Succeeded"


def test_dry_run_is_of_what_the_spec_says_now_and_tells_that_its_id_was_used() -> None:
    world = World().run()
    world.wanted = wanted(to="Latest", dryRun=True)
    world.run()
    assert world.status["dryRun"]["offsets"] == {"orders": {"0": 90, "1": 90}}
    assert "only another id" in world.status["dryRun"]["message"]
    world.wanted = wanted(dryRun=True)
    world.run()
    assert world.status["dryRun"]["offsets"] == {"orders": {"0": 10, "1": 10}}
    assert world.commits == 2


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


def test_another_id_waits_for_the_commit_of_the_one_before() -> None:
    world = World().run_to("Committing")
    world.wanted = wanted("b", to="Latest")
    world.run()
    assert world.last["id"] == "b"
    assert world.last["previous"] == {"orders": {"0": 10, "1": 10}}, "the first one was finished"
    assert world.status["usedIds"] == ["a", "b"]


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
            world.finding = None
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
