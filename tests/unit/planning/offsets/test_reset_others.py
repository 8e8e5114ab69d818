"""A reset of a group in which other programs are members and commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_operator.api.v1alpha1 import OffsetReset
from fleet_operator.api.v1alpha1.model import ObjectMeta
from fleet_operator.planning.offsets.records import Committed, is_outdated, marker_of
from fleet_operator.planning.offsets.targets import Member
from tests.unit.planning.offsets.reset_world import DYNAMIC, FLEET, JAVA, KEYS, OURS, World, offset_reset, places


def test_members_of_other_programs_keep_the_fleet_running_and_are_named() -> None:
    world = World(members=(OURS, JAVA))
    assert world.runs_on()
    assert world.shown == ("Pending", "ForeignMembers")
    assert "consumer-orders-1" in world.facts["message"]
    world.members = (OURS,)
    assert world.run().phase == "Succeeded"


def test_long_names_of_members_fit_into_the_status() -> None:
    """Else the API server would refuse the whole status, and the record would never equal the stored one."""
    world = World(members=(Member(None, "x" * 30_000),))
    world.run(3)
    assert len(world.facts["message"]) == 1024
    assert not world.decide().advanced


def test_member_that_joins_after_the_stop_is_waited_for() -> None:
    world = World()
    world.visit()
    assert world.phase == "StoppingWorkers"
    world.members = (JAVA,)
    assert world.run(4).phase == "StoppingWorkers"
    assert world.facts["reason"] == "ForeignMembers"
    assert world.commits == 0
    world.members = ()
    assert world.run().phase == "Succeeded"


def test_workers_that_do_not_leave_are_named_and_shown_after_a_while() -> None:
    world = World().run_to("StoppingWorkers")
    world.scale()
    world.members = (DYNAMIC, OURS, replace(DYNAMIC, client_id=f"{FLEET}-2"), replace(DYNAMIC, client_id=f"{FLEET}-3"))
    stuck = {"replicas": 0, "members": world.members}
    for waited_s, reason in ((80.0, "StoppingWorkers"), (90.0, "WorkersRemain")):
        world.waited_s = waited_s
        world.finding = None
        world.act(world.decide())
        world.store(world.decide())
        assert world.shown == ("StoppingWorkers", reason)
        assert f"{FLEET}-1, {FLEET}-2, {FLEET}-3 and 1 more" in world.facts["message"]
    assert stuck == {"replicas": world.replicas, "members": world.members}
    world.members = ()
    assert world.run().phase == "Succeeded"


def test_members_of_a_group_type_without_a_description_are_waited_for() -> None:
    """DescribeGroups says Dead of a KIP-848 group, which would seem empty."""
    world = World(members=(), group_type="consumer")
    assert world.runs_on()
    assert world.shown == ("Pending", "ForeignMembers")
    assert "consumer" in world.facts["message"]
    world.group_type = ""
    assert world.run().phase == "Succeeded"
    late = World().run_to("StoppingWorkers")
    late.group_type = "consumer"
    assert late.run(4).facts["reason"] == "ForeignMembers"
    assert late.commits == 0


def test_commit_of_another_program_after_the_offsets_were_read_is_not_overwritten_unseen() -> None:
    """It would stand nowhere, so nothing could bring it back."""
    world = World().run_to("Committing")
    world.committed["orders", 0] = 58
    world.visit()
    assert (world.phase, world.commits) == ("StoppingWorkers", 0)
    assert "previous" not in world.facts
    world.run()
    assert world.phase == "Succeeded"
    assert world.facts["previous"] == places(58, 60)
    assert world.committed == {("orders", 0): 10, ("orders", 1): 10}


def test_reset_whose_offsets_were_outdated_can_still_be_deleted() -> None:
    world = World().run_to("Committing")
    world.committed["orders", 0] = 58
    world.visit()
    world.deleted = True
    world.run(3)
    assert (world.phase, world.replicas, world.commits) == ("Cancelled", 2, 0)


@pytest.mark.parametrize("deleted", [False, True])
def test_reset_that_may_have_been_done_before_another_program_committed_is_not_done_again(deleted: bool) -> None:
    """The operator died behind the commit; Java has moved every partition since, so no marker is left."""
    world = World().run_to("Committing")
    world.act(world.decide())
    assert world.commits == 2
    world.kill()
    world.java_commits(55, 66)
    world.deleted = deleted
    world.run()
    assert (*world.shown, world.replicas) == ("Failed", "OffsetsOvertaken", 2)
    assert "may have set the new offsets" in world.facts["message"]
    assert world.facts["previous"] == places(50, 60), "it stands nowhere else"
    assert world.committed == {KEYS[0]: 55, KEYS[1]: 66}


def test_next_operator_finishes_a_commit_that_another_program_has_overtaken_in_part() -> None:
    world = World().run_to("Committing")
    world.act(world.decide())
    world.kill()
    world.committed[KEYS[0]] = 55
    del world.markers[KEYS[0]]
    world.run()
    assert (world.phase, world.committed[KEYS[0]]) == ("Succeeded", 10)


def test_offset_of_another_program_that_happens_to_be_the_wanted_one_hides_nothing() -> None:
    """Latest on an idle partition: the end, which another program commits as well."""
    world = World(reset=offset_reset(to="Latest"), committed=dict(zip(KEYS, (80, 60), strict=True))).run_to(
        "Committing"
    )
    world.members = (JAVA,)
    world.visit()
    assert world.commits == 0
    world.java_commits(90, 5000)
    world.members = ()
    world.run()
    assert world.phase == "Succeeded"
    assert world.facts["previous"] == places(90, 5000)


SET, ANOTHER = "fleet-reset=a", "fleet-reset=b"


@pytest.mark.parametrize(
    ("committed", "outdated"),
    [
        ({0: (50, ""), 1: (60, "fleet-replay-epoch=60")}, False),
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
    new, old = {("orders", number): 10 for number in range(3)}, dict(zip(KEYS, (50, 60), strict=True))
    assert is_outdated(found, wanted=new, previous=old, marker=SET) is outdated


def test_marker_is_of_one_reset_of_one_namespace_and_short() -> None:
    resets = [offset_reset("a" * 63), offset_reset("b"), offset_reset("b", to="Latest")]
    elsewhere = [each.model_copy(update={"metadata": replace_namespace(each)}) for each in resets]
    markers = {marker_of(each) for each in (*resets, *elsewhere)}
    assert len(markers) == 6
    assert {len(marker) for marker in markers} == {28}
    assert marker_of(offset_reset(notAfter="2027-01-01T00:00:00Z")) == marker_of(offset_reset()), "that may be changed"


def replace_namespace(reset: OffsetReset) -> ObjectMeta:
    return reset.metadata.model_copy(update={"namespace": "other"})
