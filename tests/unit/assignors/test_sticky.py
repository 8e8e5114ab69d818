"""Sticky assignors' behaviours one by one, along the lines of Kafka's `AbstractStickyAssignorTest` and its children."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

import pytest

from fleet_consumer.assignors import Assignment, ClusterView, Subscription, load
from fleet_consumer.assignors.sticky import (
    NOTHING,
    StickyReader,
    decode_generation,
    encode_sticky,
)
from fleet_consumer.assignors.sticky_plan import Claim

Owned = Mapping[str, Sequence[int]]
ALL = pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "cooperative-weighted"])
"""Without rates the weighted one makes the same plans."""


def member(
    topics: Sequence[str], owned: Owned | None = None, generation: int = 1, rack: str | None = None
) -> Subscription:
    return Subscription(topics=topics, owned=owned or {}, generation=generation if owned else -1, rack=rack)


def shares(name: str, counts: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, Owned]:
    plan = load(name).assign(ClusterView(counts), members)
    return {who: dict(sorted(share.partitions.items())) for who, share in plan.items()}


def sizes(plan: Mapping[str, Owned]) -> list[int]:
    return [sum(map(len, share.values())) for share in plan.values()]


@ALL
def test_alone_a_member_gets_everything_and_in_order(name: str) -> None:
    assert shares(name, {"t0": 3, "t1": 2}, {"a": member(["t1", "t0"])}) == {"a": {"t0": [0, 1, 2], "t1": [0, 1]}}


@ALL
def test_fresh_plan_deals_topics_by_name_and_partitions_by_number(name: str) -> None:
    plan = shares(name, {"t1": 2, "t0": 3}, {who: member(["t0", "t1"]) for who in ("b", "a")})
    assert plan == {"a": {"t0": [0, 2], "t1": [1]}, "b": {"t0": [1], "t1": [0]}}


@ALL
def test_unchanged_group_keeps_everything(name: str) -> None:
    owned: dict[str, Owned] = {"a": {"t0": [1, 2]}, "b": {"t0": [0]}}
    assert shares(name, {"t0": 3}, {who: member(["t0"], had) for who, had in owned.items()}) == owned


@ALL
def test_larger_share_stays_where_it_was(name: str) -> None:
    """Seven partitions of two members are three and four: the one that has four keeps them, whatever its name."""
    owned: dict[str, Owned] = {"a": {"t0": [0, 1, 2]}, "b": {"t0": [3, 4, 5, 6]}}
    assert shares(name, {"t0": 7}, {who: member(["t0"], had) for who, had in owned.items()}) == owned


def test_newcomer_takes_from_each_no_more_than_it_must() -> None:
    owned: dict[str, Owned] = {"a": {"t0": [0, 1, 2]}, "b": {"t0": [3, 4, 5]}}
    members = {who: member(["t0"], had) for who, had in owned.items()} | {"c": member(["t0"])}
    assert shares("sticky", {"t0": 6}, members) == {"a": {"t0": [0, 1]}, "b": {"t0": [3, 4]}, "c": {"t0": [2, 5]}}


def test_cooperative_newcomer_waits_until_the_owners_have_let_go() -> None:
    owned: dict[str, Owned] = {"a": {"t0": [0, 1, 2]}, "b": {"t0": [3, 4, 5]}}
    members = {who: member(["t0"], had) for who, had in owned.items()} | {"c": member(["t0"])}
    first = shares("cooperative-sticky", {"t0": 6}, members)
    assert first == {"a": {"t0": [0, 1]}, "b": {"t0": [3, 4]}, "c": {}}
    second = shares("cooperative-sticky", {"t0": 6}, {who: member(["t0"], had, 2) for who, had in first.items()})
    assert second == {"a": {"t0": [0, 1]}, "b": {"t0": [3, 4]}, "c": {"t0": [2, 5]}}


def test_cooperative_assigns_unowned_partitions_at_once() -> None:
    """The partition of a leaver does not wait for the one that changes hands."""
    members = {"a": member(["t0"], {"t0": [0, 1, 2]}), "c": member(["t0"])}
    assert shares("cooperative-sticky", {"t0": 4}, members) == {"a": {"t0": [0, 1]}, "c": {"t0": [3]}}


@ALL
def test_grown_topic_gives_its_new_partitions_to_those_with_fewest(name: str) -> None:
    members = {"a": member(["t0"], {"t0": [0, 1]}), "b": member(["t0"], {"t0": [2]})}
    assert shares(name, {"t0": 5}, members) == {"a": {"t0": [0, 1, 4]}, "b": {"t0": [2, 3]}}


@ALL
def test_shrunk_and_deleted_topics_leave_no_trace(name: str) -> None:
    members = {
        "a": member(["t0", "gone"], {"t0": [0, 7], "gone": [0, 1]}),
        "b": member(["t0", "gone"], {"t0": [1, 2, -1], "gone": [2]}),
    }
    assert shares(name, {"t0": 3}, members) == {"a": {"t0": [0]}, "b": {"t0": [1, 2]}}


@ALL
def test_topic_that_a_member_gave_up_moves_on(name: str) -> None:
    members = {"a": member(["t1"], {"t1": [0]}), "b": member(["t0", "t1"], {"t0": [0, 1]})}
    assert shares(name, {"t0": 2, "t1": 1}, members) == {"a": {"t1": [0]}, "b": {"t0": [0, 1]}}


def test_cooperative_keeps_partitions_claimed_by_an_unsubscribed_member() -> None:
    members = {"a": member(["t1"], {"t0": [0]}), "b": member(["t0"])}
    assert shares("cooperative-sticky", {"t0": 2, "t1": 1}, members) == {"a": {"t1": [0]}, "b": {"t0": [1]}}


@ALL
def test_of_two_claims_the_newer_generation_stands(name: str) -> None:
    members = {"a": member(["t0"], {"t0": [0, 1]}, 4), "b": member(["t0"], {"t0": [0, 2]}, 5)}
    assert shares(name, {"t0": 4}, members) == {"a": {"t0": [1, 3]}, "b": {"t0": [0, 2]}}


@ALL
def test_undisputed_stale_claim_holds(name: str) -> None:
    members = {"a": member(["t0"], {"t0": [2]}, 1), "b": member(["t0"], {"t0": [0, 1]}, 9)}
    assert shares(name, {"t0": 4}, members) == {"a": {"t0": [2, 3]}, "b": {"t0": [0, 1]}}


def test_equal_claims_give_the_partition_to_neither() -> None:
    members = {"a": member(["t0"], {"t0": [0, 1]}), "b": member(["t0"], {"t0": [1, 2]})}
    first = shares("cooperative-sticky", {"t0": 3}, members)
    assert first == {"a": {"t0": [0]}, "b": {"t0": [2]}}
    second = shares("cooperative-sticky", {"t0": 3}, {who: member(["t0"], had, 2) for who, had in first.items()})
    assert sizes(second) == [2, 1]
    assert sorted(number for share in second.values() for number in share["t0"]) == [0, 1, 2]


@ALL
def test_third_claim_of_a_newer_generation_ends_a_dispute(name: str) -> None:
    """Three claims to one partition, in each order of generations; Java's uniform assignor raises on some of them."""
    claim = {"t0": [0]}
    members = {
        "a": member(["t0"], claim, 5),
        "b": member(["t0"], claim, 6),
        "c": member(["t0"], claim, 7),
        "d": member(["t0"], claim, 5),
    }
    assert shares(name, {"t0": 1}, members) == {"a": {}, "b": {}, "c": {"t0": [0]}, "d": {}}


def test_member_with_fewer_topics_gets_its_share_of_them() -> None:
    counts = {f"t{number}": 4 for number in range(5)}
    everything = list(counts)
    plan = shares("sticky", counts, {"a": member(everything), "b": member(everything), "c": member(["t0"])})
    assert sizes(plan) == [8, 8, 4]
    assert plan["c"] == {"t0": [0, 1, 2, 3]}


def test_chain_of_moves_is_found_where_no_direct_one_helps() -> None:
    """c may have only t1, which b holds; a holds what only b could take instead."""
    owned: dict[str, Owned] = {"a": {"t0": [0, 1, 2]}, "b": {"t1": [0, 1]}}
    members = {
        "a": member(["t0"], owned["a"]),
        "b": member(["t0", "t1"], owned["b"]),
        "c": member(["t1"]),
    }
    plan = shares("sticky", {"t0": 3, "t1": 2}, members)
    assert sorted(sizes(plan)) == [1, 2, 2]
    assert plan["a"].items() <= {"t0": [0, 1]}.items()


def test_members_without_a_rack_are_near_everything() -> None:
    cluster = ClusterView({"t0": 4}, {"t0": [frozenset("a"), frozenset("b"), frozenset("a"), frozenset("b")]})
    members = {"x": member(["t0"], rack="a"), "y": member(["t0"])}
    plan = load("sticky").assign(cluster, members)
    assert plan["x"].partitions == {"t0": [0, 2]}


def test_partition_in_the_wrong_rack_is_given_back_when_that_brings_it_nearer() -> None:
    cluster = ClusterView({"t0": 2}, {"t0": [frozenset("a"), frozenset("b")]})
    crossed = {"x": member(["t0"], {"t0": [1]}, rack="a"), "y": member(["t0"], {"t0": [0]}, rack="b")}
    plan = load("sticky").assign(cluster, crossed)
    assert {who: share.partitions for who, share in plan.items()} == {"x": {"t0": [0]}, "y": {"t0": [1]}}
    waiting = load("cooperative-sticky").assign(cluster, crossed)
    assert {who: share.partitions for who, share in waiting.items()} == {"x": {}, "y": {}}


@ALL
def test_plans_share_no_list_with_their_input(name: str) -> None:
    """Plans are their receivers' own: changing one changes neither the question nor another plan."""
    owned = {"t0": [0, 1]}
    plan = load(name).assign(ClusterView({"t0": 2}), {"a": member(["t0"], owned)})
    assert plan["a"].partitions["t0"] is not owned["t0"]
    assert isinstance(plan["a"].partitions["t0"], list)


def test_sticky_remembers_its_assignment_in_user_data() -> None:
    assignor = load("sticky")
    assert assignor.subscription_user_data(["t0"]) is None
    assignor.on_assignment(Assignment({"t0": [4, 1]}), 17)
    data = assignor.subscription_user_data(["t0"])
    assert data == struct.pack(">ih2siiii", 1, 2, b"t0", 2, 4, 1, 17)
    assert StickyReader().parse(data) == Claim({"t0": (4, 1)}, 17)


def test_sticky_reads_user_data_of_the_version_without_a_generation() -> None:
    old = encode_sticky({"t0": [0, 1]}, 3)[:-4]
    assert StickyReader().parse(old) == Claim({"t0": (0, 1)}, -1)
    new = encode_sticky({"t0": [1]}, 0)
    members = {"a": Subscription(["t0"], user_data=old), "b": Subscription(["t0"], user_data=new)}
    assert shares("sticky", {"t0": 2}, members) == {"a": {"t0": [0]}, "b": {"t0": [1]}}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\x00",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        struct.pack(">ih", 1, -1),
        struct.pack(">ih2si", 1, 2, b"t0", 1 << 30),
        struct.pack(">ih2si", 1, 2, b"t0", -5),
        struct.pack(">ih2si", 1, 2, b"\xff\xfe", 0),
        struct.pack(">ih", 1, 30000) + b"t",
    ],
)
def test_user_data_that_cannot_be_read_counts_as_nothing_held(data: bytes | None) -> None:
    assert StickyReader().parse(data) == NOTHING
    assert load("sticky").assign(ClusterView({"t": 1}), {"a": Subscription(["t"], user_data=data)})["a"].partitions == {
        "t": [0]
    }


def test_cooperative_sticky_carries_its_generation() -> None:
    assignor = load("cooperative-sticky")
    assert assignor.subscription_user_data([]) == struct.pack(">i", -1)
    assignor.on_assignment(Assignment({"t0": [0]}), 9)
    data = assignor.subscription_user_data([])
    assert data == struct.pack(">i", 9)
    assert [decode_generation(bad) for bad in (None, b"", b"\x00\x01")] == [-1, -1, -1]


def test_cooperative_generation_comes_from_user_data_where_the_subscription_has_none() -> None:
    older = struct.pack(">i", 4)
    members = {
        "a": Subscription(["t0"], user_data=older, owned={"t0": [0]}),
        "b": Subscription(["t0"], user_data=older, owned={"t0": [0, 1]}, generation=5),
    }
    plan = shares("cooperative-sticky", {"t0": 4}, members)
    assert plan == {"a": {"t0": [2, 3]}, "b": {"t0": [0, 1]}}


def test_reading_many_members_is_reading_each() -> None:
    """Data of the same form are taken apart in one step; those of the same length and another form must not be."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topics = ["t0", "t1", "tt", "ü"]
    reader = StickyReader()
    for _ in range(2000):
        wanted = chance.sample(topics, chance.randint(0, 3))
        owned = {topic: tuple(chance.choices(range(100), k=chance.choice([1, 1, 1, 2]))) for topic in wanted}
        generation = chance.randint(0, 5)
        data = encode_sticky(owned, generation)
        assert reader.parse(data) == StickyReader().parse(data) == Claim(owned, generation)
        shortened = data[: chance.randint(0, len(data))]
        assert reader.parse(shortened) == StickyReader().parse(shortened)
