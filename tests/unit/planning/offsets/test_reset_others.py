"""A reset beside members and commits of other programs, and beside other resets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_operator.planning.offsets.records import Committed, is_outdated, mark_of, new_record
from fleet_operator.planning.offsets.targets import Member
from tests.unit.planning.offsets.reset_world import DYNAMIC, JAVA, KEYS, NOW, OURS, World, wanted


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


def test_workers_that_do_not_leave_are_named_and_shown_after_a_while() -> None:
    world = World().run_to("StandingDown")
    world.visit()
    world.members = (DYNAMIC, OURS, replace(DYNAMIC, client_id="orders-2"), replace(DYNAMIC, client_id="orders-3"))
    stuck = {"replicas": 0, "members": world.members}
    for waited_s, reason in ((80.0, "StoppingWorkers"), (90.0, "WorkersRemain")):
        world.waited_s = waited_s
        world.finding = None
        world.act(world.decide())
        world.store(world.decide())
        assert (world.phase, world.last["reason"]) == ("StandingDown", reason)
        assert "orders-1, orders-2, orders-3 and 1 more" in world.last["message"]
    assert stuck == {"replicas": world.replicas, "members": world.members}
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


@pytest.mark.parametrize("removed", [False, True])
def test_reset_that_may_have_been_done_before_another_program_committed_is_not_done_again(removed: bool) -> None:
    """The operator died behind the commit; Java has moved every partition since, so no mark is left."""
    world = World().run_to("Committing")
    world.act(world.decide())
    assert world.commits == 2
    world.kill()
    world.java_commits(55, 66)
    if removed:
        world.wanted = None
    world.run()
    assert (world.phase, world.last["reason"], world.replicas) == ("Failed", "OffsetsOvertaken", 2)
    assert "may have set them" in world.last["message"]
    assert world.last["previous"] == {"orders": {"0": 50, "1": 60}}, "it stands nowhere else"
    assert (world.committed, world.status["usedIds"]) == ({KEYS[0]: 55, KEYS[1]: 66}, ["a"])


def test_next_operator_finishes_a_commit_that_another_program_has_overtaken_in_part() -> None:
    world = World().run_to("Committing")
    world.act(world.decide())
    world.kill()
    world.committed[KEYS[0]] = 55
    del world.marks[KEYS[0]]
    world.run()
    assert (world.phase, world.committed[KEYS[0]]) == ("Succeeded", 10)


def test_offset_of_another_program_that_happens_to_be_the_wanted_one_hides_nothing() -> None:
    """Latest on an idle partition: the end, which another program commits as well."""
    world = World(wanted=wanted(to="Latest"), committed=dict(zip(KEYS, (80, 60), strict=True))).run_to("Committing")
    world.members = (JAVA,)
    world.visit()
    assert world.commits == 0
    world.java_commits(90, 5000)
    world.members = ()
    world.run()
    assert world.phase == "Succeeded"
    assert world.last["previous"] == {"orders": {"0": 90, "1": 5000}}


SET, ANOTHER = "fleet-reset=a", "fleet-reset=b"


@pytest.mark.parametrize(
    ("committed", "outdated"),
    [
        ({0: (50, ""), 1: (60, "fleet-reading=60")}, False),
        ({0: (10, SET), 1: (10, SET), 2: (10, SET)}, False),
        ({0: (10, SET), 1: (60, "")}, False),
        ({0: (10, SET), 1: (61, "")}, False),
        ({0: (51, ""), 1: (60, "")}, True),
        ({0: (50, "")}, True),
        ({0: (50, ""), 1: (60, ""), 2: (7, "")}, True),
        ({0: (10, ""), 1: (61, "")}, True),
        ({0: (10, ANOTHER), 1: (60, "")}, True),
        ({0: (12, SET), 1: (60, "")}, True),
    ],
)
def test_offsets_are_outdated_if_another_program_committed_before_anything_was_set(
    committed: dict[int, tuple[int, str]], outdated: bool
) -> None:
    found = {("orders", number): Committed(*each) for number, each in committed.items()}
    new, old = {"orders": {0: 10, 1: 10, 2: 10}}, {"orders": {0: 50, 1: 60}}
    assert is_outdated(found, wanted=new, previous=old, mark=SET) is outdated


def test_mark_is_of_one_reset_of_one_group_and_short() -> None:
    records = [new_record(each, NOW) for each in (wanted("a" * 63), wanted("b"), wanted("b", to="Latest"))]
    marks = {mark_of(record, uid) for record in records for uid in ("u", "v")}
    assert len(marks) == 6
    assert {len(mark) for mark in marks} == {28}


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


def test_another_id_waits_for_the_commit_of_the_one_before() -> None:
    world = World().run_to("Committing")
    world.wanted = wanted("b", to="Latest")
    world.run()
    assert world.last["id"] == "b"
    assert world.last["previous"] == {"orders": {"0": 10, "1": 10}}, "the first one was finished"
    assert world.status["usedIds"] == ["a", "b"]
