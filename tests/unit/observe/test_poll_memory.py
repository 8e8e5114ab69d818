"""Polls with a memory find the same as polls without one, and ask no more than they must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.contract import naming
from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.wire.groups import ListGroupsRequest
from fleet_consumer.wire.topics import ListOffsetsRequest
from fleet_operator.observe.poll import CALL_SECONDS, HANGING_CALL_SECONDS, HANGING_SECONDS
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.observation import ClusterObservation
from tests.support.clock import StillClock
from tests.unit.observe.scripted_cluster import ScriptedCluster
from tests.unit.observe.watched import Watched

NODES = 2
FAILED, SHORT, LONG = naming.failed_topic("g"), naming.retry_topic("g", "5s"), naming.retry_topic("g", "1m")
REDRIVE = naming.redrive_topic("g")
SUBSCRIPTIONS = {
    "g": GroupSubscription(
        group_id="g", topics=("orders",), failed_topic=FAILED, retry=retry_subscription("g", ["5s", "1m"])
    ),
    "two": GroupSubscription(group_id="two", topics=("orders", "payments"), failed_topic=naming.failed_topic("two")),
    "committed": GroupSubscription(group_id="committed", topics=("orders",), read_committed=True),
    "pattern": GroupSubscription(group_id="pattern", pattern=compile_pattern("orders|pay.*")),
    "any": GroupSubscription(group_id="any"),
}
TOPICS = ("orders", "payments", FAILED, SHORT, LONG, REDRIVE, naming.failed_topic("two"))
GROUPS = (*SUBSCRIPTIONS, naming.retry_group("g"))
MEMBERS = ("a", "b")


def cluster() -> ScriptedCluster:
    return ScriptedCluster(
        NODES,
        {(topic, number): [] for topic in TOPICS for number in range(2)},
        commits={group: {} for group in GROUPS},
        configs={"max.message.bytes": "1048588"},
    )


def one_group(topic: str = "orders", **more: Any) -> Watched:
    subscription = GroupSubscription(group_id="g", topics=(topic,), **more)
    return Watched(ScriptedCluster(1, {(topic, 0): []}, commits={"g": {}}), {"g": subscription})


def settle(watched: Watched) -> ClusterObservation:
    """Poll until nothing is new: the history of a log's ends grows by one when they are found unchanged."""
    for _ in range(3):
        seen = watched.poll()
    return seen


Step = Callable[[ScriptedCluster, int], None]


def write(of: ScriptedCluster, topic: str, number: int, count: int, now_ms: int) -> None:
    log = of.logs.get((topic, number))
    if log is not None:
        log += [now_ms] * count


def commit(of: ScriptedCluster, group: str, topic: str, number: int, back: int) -> None:
    if (topic, number) in of.logs:
        of.commits[group][topic, number] = max(0, len(of.logs[topic, number]) - back)


def cut(of: ScriptedCluster, topic: str, number: int) -> None:
    if (topic, number) in of.logs:
        of.starts[topic, number] = len(of.logs[topic, number])


def remove(of: ScriptedCluster, topic: str) -> None:
    for key in [key for key in of.logs if key[0] == topic]:
        del of.logs[key]
        of.starts.pop(key, None)
        for commits in of.commits.values():
            commits.pop(key, None)


def add_partition(of: ScriptedCluster, topic: str) -> None:
    count = sum(name == topic for name, _ in of.logs)
    if count < 4:
        of.logs[topic, count] = []


def toggle(items: set[Any], item: Any) -> None:
    items.symmetric_difference_update({item})


topics, numbers, groups = st.sampled_from(TOPICS), st.integers(0, 1), st.sampled_from(GROUPS)
states = st.sampled_from(("Stable", "PreparingRebalance", "Empty", "Dead"))
steps = st.one_of(
    st.builds(lambda t, n, count: lambda c, now: write(c, t, n, count, now), topics, numbers, st.integers(1, 3)),
    st.builds(lambda *a: lambda c, _: commit(c, *a), groups, topics, numbers, st.integers(0, 2)),
    st.builds(lambda t, n: lambda c, now: cut(c, t, n), topics, numbers),
    st.builds(lambda topic: lambda c, _: remove(c, topic), topics),
    st.builds(lambda topic: lambda c, _: add_partition(c, topic), topics),
    st.builds(lambda node: lambda c, _: toggle(c.silent, node), st.integers(0, NODES - 1)),
    st.builds(lambda *key: lambda c, _: toggle(c.leaderless, key), topics, numbers),
    st.builds(
        lambda group, state, members: (
            lambda c, _: c.groups.update({group: (state, tuple(c.member(each, orders=(0,)) for each in members))})
        ),
        groups,
        states,
        st.lists(st.sampled_from(MEMBERS), unique=True),
    ),
    st.builds(lambda size: lambda c, _: c.configs.update({"max.message.bytes": size}), st.sampled_from(("1", "2"))),
)
"""One thing that happens in the cluster."""
rounds = st.lists(
    st.tuples(st.lists(steps, max_size=3), st.sampled_from((1.0, 5.0, 70.0)), st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=15,
)
"""Rounds: things that happen, the pause before the next poll, the number of polls that find the same, and True for a
state poll after them."""


def comparable(seen: ClusterObservation) -> ClusterObservation:
    """All but the history of ends, which `test_log_ends` compares."""
    return replace(seen, groups={name: replace(group, end_history={}) for name, group in seen.groups.items()})


@settings(max_examples=80, deadline=None, print_blob=True)
@given(rounds)
def test_poll_with_a_memory_finds_the_same_as_one_without(played: list[tuple[list[Step], float, int, bool]]) -> None:
    clock, world = StillClock(), cluster()
    remembering = Watched(world, SUBSCRIPTIONS, clock)
    forgetful = Watched(world, SUBSCRIPTIONS, clock, forgetful=True)
    for happens, pause_s, polls, states in played:
        for step in happens:
            step(world, int(clock.wall() * 1000))
        for _ in range(polls):
            assert comparable(remembering.poll(pause_s)) == comparable(forgetful.poll(0.0))
        if states:
            assert comparable(remembering.poll_states()) == comparable(forgetful.poll_states())


def test_group_that_is_as_before_is_found_as_before() -> None:
    watched = Watched(cluster(), SUBSCRIPTIONS)
    before, after = settle(watched), watched.poll()
    assert {name: replace(group, observed_at=0.0, retry=None) for name, group in after.groups.items()} == {
        name: replace(group, observed_at=0.0, retry=None) for name, group in before.groups.items()
    }


def test_state_that_a_state_poll_saw_in_between_has_passed_with_the_next_poll() -> None:
    """The poll's answer has the bytes of the poll before: nothing but the state poll has seen the other state."""
    watched = one_group()
    watched.cluster.groups["g"] = ("Stable", (watched.cluster.member("a", orders=(0,)),))
    settle(watched)
    watched.cluster.groups["g"] = ("PreparingRebalance", ())
    assert watched.poll_states().groups["g"].state == "PreparingRebalance"
    watched.cluster.groups["g"] = ("Stable", (watched.cluster.member("a", orders=(0,)),))
    found = watched.group("g")
    assert (found.state, [member.member_id for member in found.members]) == ("Stable", ["a"])
    assert [(t.before, t.after) for t in found.transitions] == [
        ("Unknown", "Stable"),
        ("Stable", "PreparingRebalance"),
        ("PreparingRebalance", "Stable"),
    ]
    assert watched.group("g").transitions == found.transitions


def test_member_that_a_state_poll_saw_and_that_left_again_is_gone_with_the_next_poll() -> None:
    """The state is the one of the poll before and of the state poll: only the members differ."""
    watched = one_group()
    alone = ("Stable", (watched.cluster.member("a", orders=(0,)),))
    watched.cluster.groups["g"] = alone
    settle(watched)
    watched.cluster.groups["g"] = ("PreparingRebalance", ())
    watched.poll_states()
    watched.cluster.groups["g"] = ("Stable", (watched.cluster.member("a"), watched.cluster.member("b", orders=(0,))))
    assert [member.member_id for member in watched.poll_states().groups["g"].members] == ["a", "b"]
    watched.cluster.groups["g"] = alone
    found = watched.group("g")
    assert [(member.member_id, member.partitions) for member in found.members] == [("a", {"orders": (0,)})]
    assert [name.member_id for name in found.transitions[-1].left] == ["b"]


def test_failed_topic_that_grew_is_not_counted_before_every_partition_answers() -> None:
    watched = one_group(failed_topic="failed")
    watched.cluster.logs["failed", 0] = [1, 2]
    for _ in range(3):
        assert watched.group("g").failed_records == 2
    watched.cluster.logs["failed", 1] = [1]
    watched.cluster.leaderless.add(("failed", 1))
    assert watched.group("g").failed_records is None
    watched.cluster.leaderless.clear()
    assert watched.group("g").failed_records == 3


def test_new_failed_topic_is_counted_as_soon_as_its_last_partition_has_a_leader() -> None:
    """The other partitions have answered already, so nothing but the gap says that starts are to be asked for."""
    watched = one_group(failed_topic="failed")
    watched.cluster.logs |= {("failed", 0): [1] * 40, ("failed", 1): []}
    watched.cluster.leaderless.add(("failed", 1))
    assert watched.group("g").failed_records is None
    watched.cluster.leaderless.clear()
    seen = [watched.group("g").failed_records for _ in range(2)]
    assert seen[-1] == 40, f"known at the second poll, not after a minute: {seen}"


def test_coordinators_are_looked_up_once() -> None:
    watched = Watched(cluster(), SUBSCRIPTIONS)
    for _ in range(5):
        watched.poll()
    assert dict(watched.cluster.looked_up) == dict.fromkeys(GROUPS, 1)


def test_coordinator_that_moved_is_looked_up_again_and_the_group_is_unconfirmed_for_one_poll() -> None:
    watched = Watched(ScriptedCluster(2, {("orders", 0): []}, commits={"g": {}}), {"g": SUBSCRIPTIONS["committed"]})
    watched.subscriptions = {"g": GroupSubscription(group_id="g", topics=("orders",))}
    old = watched.group("g").coordinator_id
    watched.cluster.coordinators["g"] = 1 - (old or 0)
    moving = watched.group("g")
    assert (moving.error, moving.unconfirmed, moving.state) == ("NotCoordinator", True, "Empty")
    found = watched.group("g")
    assert (found.error, found.coordinator_id) == (None, 1 - (old or 0))
    assert watched.cluster.looked_up["g"] == 2


def test_coordinator_that_does_not_answer_is_looked_up_again() -> None:
    """Its groups may have moved to another broker, which nobody tells us but that lookup."""
    watched = Watched(ScriptedCluster(2, {("orders", 0): []}, commits={"g": {}}), {})
    watched.subscriptions = {"g": GroupSubscription(group_id="g", topics=("orders",))}
    old = watched.group("g").coordinator_id or 0
    watched.cluster.silent.add(old)
    assert watched.group("g").error == "Disconnected"
    watched.cluster.coordinators["g"] = 1 - old
    assert watched.group("g").error is None


def test_coordinator_that_left_the_cluster_is_looked_up_again() -> None:
    watched = Watched(ScriptedCluster(2, {("orders", 0): []}, commits={"g": {}}, coordinators={"g": 1}), {})
    watched.subscriptions = {"g": GroupSubscription(group_id="g", topics=("orders",))}
    watched.poll()
    watched.cluster.nodes, watched.cluster.coordinators["g"] = 1, 0
    found = watched.group("g")
    assert (found.error, found.coordinator_id) == (None, 0), "without a failed poll in between"


def test_group_that_was_deleted_and_made_again_is_followed() -> None:
    watched = one_group()
    stable = ("Stable", (watched.cluster.member("a", orders=(0,)),))
    watched.cluster.groups["g"], watched.cluster.commits["g"] = stable, {("orders", 0): 0}
    watched.poll()
    watched.cluster.groups["g"], watched.cluster.commits["g"] = ("Dead", ()), {}
    gone = watched.group("g")
    assert (gone.state, gone.members, gone.committed) == ("Dead", (), {})
    watched.cluster.groups["g"], watched.cluster.commits["g"] = stable, {("orders", 0): 0}
    back = watched.group("g")
    assert (back.state, len(back.members), back.committed) == ("Stable", 1, {("orders", 0): 0})
    assert [t.after for t in back.transitions] == ["Stable", "Dead", "Stable"]


def test_topic_that_was_deleted_and_made_again_is_followed() -> None:
    watched = one_group(other_topics=("out",))
    watched.cluster.logs["orders", 0] = [1] * 7
    for _ in range(3):
        assert watched.group("g").end_offsets == {("orders", 0): 7}
    del watched.cluster.logs["orders", 0]
    seen = watched.poll()
    assert (seen.topics["orders"].error, seen.groups["g"].end_offsets) == ("TopicNotFound", {})
    watched.cluster.logs["orders", 0] = [1, 2]
    seen = watched.poll()
    found = seen.groups["g"]
    assert (seen.topics["orders"].error, found.end_offsets, found.log_starts) == (
        None,
        {("orders", 0): 2},
        {("orders", 0): 0},
    )
    assert found.end_history["orders", 0] == ((watched.clock.wall(), 2),), "the old topic's ends say nothing of it"


def test_quiet_flow_costs_no_more_than_its_ends_and_is_found_when_something_waits() -> None:
    watched = Watched(cluster(), {"g": SUBSCRIPTIONS["g"]})
    watched.poll()
    watched.cluster.asked.clear()
    quiet = watched.group("g").retry
    assert quiet
    assert (quiet.waiting, quiet.due_lag, quiet.observed_at) == (0, 0, watched.clock.wall())
    asked = watched.cluster.asked[0, ListOffsetsRequest.__name__]
    write(watched.cluster, LONG, 0, 2, int(watched.clock.wall() * 1000))
    found = watched.group("g").retry
    assert found
    assert (found.waiting, found.topics[LONG].waiting, found.due_lag) == (2, 2, 0)
    assert watched.cluster.asked[0, ListOffsetsRequest.__name__] == 2 * asked + 1


def test_broker_that_answers_for_groups_nobody_asked_for_is_no_trouble() -> None:
    watched = one_group()
    answer = watched.cluster._describe

    def describe(node: int, name: str) -> Any:
        return replace(answer(node, name), group_id="other")

    watched.cluster._describe = describe  # type: ignore[method-assign]
    assert watched.group("g").error == "NotObserved"


def test_broker_that_hangs_is_waited_for_by_one_poll_and_not_by_each() -> None:
    """There is a poll for each part: the others would all be late."""
    first = Watched(cluster(), {"g": SUBSCRIPTIONS["g"]})
    second = Watched(first.cluster, {"two": SUBSCRIPTIONS["two"]}, first.clock, first.memory)
    first.cluster.hanging.add(1)
    first.poll()
    assert first.cluster.patience == {0: CALL_SECONDS, 1: CALL_SECONDS}
    for watched in (second, first, second):
        watched.poll()
        assert first.cluster.patience == {0: CALL_SECONDS, 1: HANGING_CALL_SECONDS}
    first.poll(after_s=HANGING_SECONDS)
    assert first.cluster.patience[1] == CALL_SECONDS, "it may be slow only"
    second.poll()
    assert first.cluster.patience[1] == HANGING_CALL_SECONDS
    first.cluster.hanging.clear()
    second.poll()
    assert first.poll().groups["g"].error is None
    assert first.cluster.patience[1] == CALL_SECONDS


def test_broker_that_left_the_cluster_is_not_remembered_as_hanging() -> None:
    watched = Watched(cluster(), {"g": SUBSCRIPTIONS["g"]})
    watched.cluster.hanging.add(1)
    watched.poll()
    assert [address.port for address in watched.memory.hanging] == [1]
    watched.cluster.nodes = 1
    watched.poll()
    assert watched.memory.hanging == {}


def test_settings_that_changed_are_found_in_a_quiet_flow() -> None:
    watched = Watched(cluster(), {"g": SUBSCRIPTIONS["g"]})
    settle(watched)
    watched.cluster.configs["max.message.bytes"] = "7"
    found = watched.group("g", after_s=60.0).retry
    assert found
    assert (found.topics[SHORT].configs, found.source_max_message_bytes) == ({"max.message.bytes": "7"}, 7)


def test_topic_of_a_quiet_flow_that_is_missing_is_reported() -> None:
    watched = Watched(cluster(), {"g": SUBSCRIPTIONS["g"]})
    settle(watched)
    remove(watched.cluster, LONG)
    found = watched.group("g").retry
    assert found
    assert (found.topics[LONG].error, found.waiting) == ("TopicNotFound", None)


def test_group_that_another_protocol_takes_over_between_surveys_is_not_dead() -> None:
    """Only a survey lists all groups; a group that seems to be gone is looked for at once, and then no more."""
    watched = one_group()
    watched.cluster.groups["g"] = ("Stable", (watched.cluster.member("a", orders=(0,)),))
    settle(watched)
    watched.survey = False
    watched.cluster.asked.clear()
    watched.cluster.group_types["g"] = "Consumer"
    found = watched.group("g")
    assert (found.error, found.state, len(found.transitions)) == ("GroupProtocolNotClassic", "Stable", 1)
    assert watched.group("g").error == "GroupProtocolNotClassic"
    watched.cluster.group_types.clear()
    watched.survey = True
    assert watched.group("g").error is None
    watched.survey = False
    watched.cluster.groups["g"] = ("Dead", ())
    assert (watched.group("g").state, watched.group("g").error) == ("Dead", None)
    assert watched.cluster.asked[0, ListGroupsRequest.__name__] == 3


@pytest.mark.parametrize("survey", [True, False])
def test_group_that_seems_to_be_gone_is_not_known_while_its_coordinator_lists_nothing(survey: bool) -> None:
    watched = one_group()
    watched.cluster.groups["g"] = ("Stable", ())
    settle(watched)
    watched.survey = survey
    watched.cluster.groups["g"] = ("Dead", ())
    watched.cluster.unanswered.add(ListGroupsRequest)
    found = watched.group("g")
    assert (found.state, found.error) == ("Stable", "Disconnected")
    watched.cluster.unanswered.clear()
    assert watched.group("g").state == "Dead"


def test_list_of_a_broker_that_left_says_nothing_of_groups() -> None:
    watched = Watched(ScriptedCluster(2, {("orders", 0): []}, commits={"g": {}}, coordinators={"g": 1}), {})
    watched.subscriptions = {"g": GroupSubscription(group_id="g", topics=("orders",))}
    watched.cluster.group_types["g"] = "Consumer"
    assert watched.group("g").error == "GroupProtocolNotClassic"
    watched.cluster.nodes, watched.cluster.coordinators["g"] = 1, 0
    watched.cluster.group_types.clear()
    assert watched.group("g").error is None
