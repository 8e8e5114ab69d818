"""The worked examples of how the assignors share partitions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from fleet_consumer.assignors import COOPERATIVE, EAGER, Assignment, ClusterView, Subscription, load

STICKY = ("sticky", "cooperative-sticky", "cooperative-weighted")


def plan(assignor: str, topics: Mapping[str, int], members: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Member to its partitions as `t0p0 t0p1`."""
    subscriptions = {member: Subscription(topics=wanted) for member, wanted in members.items()}
    return written(load(assignor).assign(ClusterView(partitions=topics), subscriptions))


def written(plans: Mapping[str, Assignment]) -> dict[str, str]:
    return {
        member: " ".join(
            f"{topic}p{number}" for topic, numbers in sorted(plan.partitions.items()) for number in numbers
        )
        for member, plan in plans.items()
    }


def holding(plans: Mapping[str, Assignment], members: Mapping[str, Sequence[str]]) -> dict[str, Subscription]:
    """The subscriptions of `members` once they hold what `plans` gave them."""
    return {
        name: Subscription(topics=topics, owned=plans[name].partitions, generation=1)
        for name, topics in members.items()
    }


def test_m6_range_gives_each_of_two_members_two_of_four() -> None:
    both = ["t0", "t1"]
    assert plan("range", {"t0": 4, "t1": 4}, {"C0": both, "C1": both}) == {
        "C0": "t0p0 t0p1 t1p0 t1p1",
        "C1": "t0p2 t0p3 t1p2 t1p3",
    }


def test_m7_range_gives_the_remainder_of_every_topic_to_the_first() -> None:
    both = ["t0", "t1"]
    assert plan("range", {"t0": 3, "t1": 3}, {"C0": both, "C1": both}) == {
        "C0": "t0p0 t0p1 t1p0 t1p1",
        "C1": "t0p2 t1p2",
    }


def test_m8_range_of_seven_over_three_is_three_two_two() -> None:
    shares = plan("range", {"t0": 7}, {f"C{number}": ["t0"] for number in range(3)})
    assert [len(share.split()) for share in shares.values()] == [3, 2, 2]


def test_m8_range_of_seven_over_eight_leaves_the_eighth_without() -> None:
    shares = plan("range", {"t0": 7}, {f"C{number}": ["t0"] for number in range(8)})
    assert [len(share.split()) for share in shares.values()] == [1] * 7 + [0]
    assert "C7" in shares


def test_m9_roundrobin_deals_on_where_the_first_topic_ended() -> None:
    both = ["t0", "t1"]
    assert plan("roundrobin", {"t0": 3, "t1": 3}, {"C0": both, "C1": both}) == {
        "C0": "t0p0 t0p2 t1p1",
        "C1": "t0p1 t1p0 t1p2",
    }


def test_m10_roundrobin_skips_members_that_do_not_subscribe() -> None:
    members = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
    assert plan("roundrobin", {"t0": 1, "t1": 2, "t2": 3}, members) == {
        "C0": "t0p0",
        "C1": "t1p0",
        "C2": "t1p1 t2p0 t2p1 t2p2",
    }


@pytest.mark.parametrize("name", STICKY)
def test_m11_sticky_keeps_the_partitions_of_remaining_members(name: str) -> None:
    topics = {f"t{number}": 2 for number in range(4)}
    members = {f"C{number}": list(topics) for number in range(3)}
    sticky, cluster = load(name), ClusterView(topics)
    before = sticky.assign(cluster, {member: Subscription(topics=wanted) for member, wanted in members.items()})
    assert [len(share.split()) for share in written(before).values()] == [3, 3, 2]

    del members["C1"]
    after = written(sticky.assign(cluster, holding(before, members)))
    had = {member: set(share.split()) for member, share in written(before).items()}
    has = {member: set(share.split()) for member, share in after.items()}
    assert all(has[member] > had[member] and len(has[member]) == 4 for member in members)
    lost = sum(len(had[member] - set(share.split())) for member, share in plan("roundrobin", topics, members).items())
    assert lost > 0, "round robin moves what it need not move"


@pytest.mark.parametrize("name", STICKY)
def test_m12_sticky_is_evener_than_roundrobin_and_moves_only_freed_partitions(name: str) -> None:
    topics = {"t0": 1, "t1": 2, "t2": 3}
    members = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
    sticky, cluster = load(name), ClusterView(topics)
    before = sticky.assign(cluster, {member: Subscription(topics=wanted) for member, wanted in members.items()})
    assert written(before) == {"C0": "t0p0", "C1": "t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}

    del members["C0"]
    assert written(sticky.assign(cluster, holding(before, members))) == {
        "C1": "t0p0 t1p0 t1p1",
        "C2": "t2p0 t2p1 t2p2",
    }


@pytest.mark.parametrize("name", ["range", *STICKY])
def test_m14_members_get_partitions_with_a_replica_in_their_rack(name: str) -> None:
    """Three racks, two replicas of each partition, so every rack lacks a third of them."""
    pairs = [frozenset("ab"), frozenset("bc"), frozenset("ca")]
    cluster = ClusterView(
        {"t0": 6, "t1": 6}, {topic: [pairs[number % 3] for number in range(6)] for topic in ("t0", "t1")}
    )
    members = {f"C{rack}": Subscription(topics=["t0", "t1"], rack=rack) for rack in "abc"}
    plans = load(name).assign(cluster, members)
    assert [sum(map(len, share.partitions.values())) for share in plans.values()] == [4, 4, 4]
    for member, share in plans.items():
        assert all(member[1] in pairs[number % 3] for numbers in share.partitions.values() for number in numbers), plans


@pytest.mark.parametrize("name", ["range", *STICKY])
def test_m14_counts_come_before_racks(name: str) -> None:
    """Everything is in rack a: the member there gets no more than its half."""
    cluster = ClusterView({"t0": 3, "t1": 1}, {"t0": [frozenset("a")] * 3, "t1": [frozenset("b")]})
    members = {"Ca": Subscription(topics=["t0"], rack="a"), "Cb": Subscription(topics=["t0"], rack="z")}
    plans = load(name).assign(cluster, members)
    assert sorted(sum(map(len, share.partitions.values())) for share in plans.values()) == [1, 2]


def test_static_members_come_first_and_in_order_of_their_instance_ids() -> None:
    """A static member that comes back under another member id gets the same share."""
    before = {
        "a-dynamic": Subscription(topics=["t"]),
        "zz": Subscription(topics=["t"], instance_id="0"),
        "aa": Subscription(topics=["t"], instance_id="1"),
    }
    after = {"a-dynamic": before["a-dynamic"], "bb": before["zz"], "aa": before["aa"]}
    for name in ("range", "roundrobin"):
        cluster = ClusterView(partitions={"t": 3})
        first, second = load(name).assign(cluster, before), load(name).assign(cluster, after)
        assert first["zz"] == second["bb"] == Assignment({"t": [0]})
        assert first["aa"] == second["aa"] == Assignment({"t": [1]})
        assert first["a-dynamic"] == second["a-dynamic"] == Assignment({"t": [2]})


@pytest.mark.parametrize("name", ["range", "roundrobin", *STICKY])
def test_topic_that_does_not_exist_is_left_out(name: str) -> None:
    assert plan(name, {"t0": 1}, {"C0": ["t0", "gone"]}) == {"C0": "t0p0"}


@pytest.mark.parametrize("name", ["range", "roundrobin", *STICKY])
def test_topic_listed_twice_counts_once(name: str) -> None:
    shares = plan(name, {"t0": 4}, {"C0": ["t0", "t0"], "C1": ["t0"]})
    assert sorted(len(share.split()) for share in shares.values()) == [2, 2]


@pytest.mark.parametrize("name", ["range", "roundrobin", *STICKY])
def test_group_without_topics_gets_empty_shares(name: str) -> None:
    assert plan(name, {}, {"C0": [], "C1": []}) == {"C0": "", "C1": ""}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_built_in_assignors_are_eager_and_carry_no_user_data(name: str) -> None:
    assignor = load(name)
    assert (assignor.name, assignor.protocol) == (name, EAGER)
    assert assignor.protocol is not COOPERATIVE
    assert assignor.subscription_user_data(["t0"]) is None
