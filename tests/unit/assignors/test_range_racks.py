"""Range near replicas, case by case, along the lines of Kafka's `RangeAssignorTest`; parity itself is asked of Java."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors import ClusterView, Subscription, load

Spots = Mapping[str, Sequence[str]]


def plan(spots: Spots, members: Mapping[str, tuple[str | None, Sequence[str]]]) -> dict[str, dict[str, Sequence[int]]]:
    """`spots` has a text of racks for each partition, `members` a rack and topics for each."""
    cluster = ClusterView(
        {topic: len(each) for topic, each in spots.items()},
        {topic: [frozenset(racks) for racks in each] for topic, each in spots.items()},
    )
    told = {name: Subscription(topics=topics, rack=rack) for name, (rack, topics) in members.items()}
    return {name: dict(share.partitions) for name, share in load("range").assign(cluster, told).items()}


def test_each_member_first_takes_partitions_in_its_rack() -> None:
    members = {"C0": ("a", ["t"]), "C1": ("b", ["t"])}
    assert plan({"t": ["b", "b", "a", "a"]}, members) == {"C0": {"t": [2, 3]}, "C1": {"t": [0, 1]}}


def test_quotas_equal_range_for_any_racks() -> None:
    members = {"C0": ("a", ["t"]), "C1": ("b", ["t"])}
    assert plan({"t": ["b", "b", "b", "a", "b"]}, members) == {"C0": {"t": [3, 4]}, "C1": {"t": [0, 1, 2]}}


def test_racks_play_no_part_where_every_partition_is_in_all_of_them() -> None:
    members = {"C0": ("a", ["t"]), "C1": ("b", ["t"])}
    assert plan({"t": ["ab", "ab", "ba"]}, members) == {"C0": {"t": [0, 1]}, "C1": {"t": [2]}}


def test_racks_play_no_part_where_members_have_none_of_them() -> None:
    members = {"C0": ("x", ["t"]), "C1": (None, ["t"])}
    assert plan({"t": ["a", "b", "a"]}, members) == {"C0": {"t": [0, 1]}, "C1": {"t": [2]}}


def test_topics_with_the_same_members_and_counts_stay_together() -> None:
    """t0p0 and t1p0 lie in different racks: they go to one member all the same, as co-partitioning comes first."""
    members = {"C0": ("a", ["t0", "t1"]), "C1": ("b", ["t0", "t1"])}
    shares = plan({"t0": ["b", "b", "a", "a"], "t1": ["a", "b", "a", "b"]}, members)
    assert shares["C0"]["t0"] == shares["C0"]["t1"] == [0, 2]
    assert shares["C1"]["t0"] == shares["C1"]["t1"] == [1, 3]


def test_member_without_a_rack_is_near_everything() -> None:
    members = {"C0": (None, ["t"]), "C1": ("b", ["t"])}
    assert plan({"t": ["a", "b", "b", "a"]}, members) == {"C0": {"t": [0, 1]}, "C1": {"t": [2, 3]}}


def test_topics_without_rack_metadata_are_split_as_without_racks() -> None:
    members = {"C0": ("a", ["t", "u"]), "C1": ("b", ["t", "u"])}
    shares = plan({"t": ["b", "a"], "u": ["", "", ""]}, members)
    assert shares == {"C0": {"t": [1], "u": [0, 1]}, "C1": {"t": [0], "u": [2]}}
