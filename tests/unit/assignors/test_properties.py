"""Properties of every plan of range and round robin, on random clusters.

- complete: every partition of a topic that somebody wants is given away, once;
- wanted: nobody gets a partition of a topic it did not subscribe to;
- range: within a topic the shares are contiguous, in member order, and differ by at most one;
- round robin: with equal subscriptions all members' totals differ by at most one;
- the order in which members are listed changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.assignors import ClusterView, Subscription, load
from fleet_consumer.assignors.plans import sorted_members

TOPICS = tuple(f"t{number}" for number in range(6))
Members = Mapping[str, Subscription]


def subscriptions(topics: st.SearchStrategy[list[str]]) -> st.SearchStrategy[Subscription]:
    return st.builds(lambda wanted, static: Subscription(topics=wanted, instance_id=static), topics, st.none())


clusters = st.builds(ClusterView, st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12)))
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
mixed = st.dictionaries(names, subscriptions(st.lists(st.sampled_from(TOPICS), unique=True)), min_size=1, max_size=9)


def with_instances(members: Members, chosen: set[str]) -> Members:
    return {
        name: Subscription(topics=member.topics, instance_id=f"i-{name}" if name in chosen else None)
        for name, member in members.items()
    }


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@given(cluster=clusters, members=mixed, data=st.data())
def test_every_subscribed_partition_has_one_subscribed_owner(
    name: str, cluster: ClusterView, members: Members, data: st.DataObject
) -> None:
    members = with_instances(members, data.draw(st.sets(st.sampled_from(sorted(members)))))
    plans = load(name).assign(cluster, members)
    assert set(plans) == set(members)
    given_away = Counter(
        (topic, number) for plan in plans.values() for topic, numbers in plan.partitions.items() for number in numbers
    )
    wanted = {topic for member in members.values() for topic in member.topics}
    assert given_away == Counter((t, p) for t in wanted for p in range(cluster.partitions.get(t, 0)))
    assert all(set(plan.partitions) <= set(members[member].topics) for member, plan in plans.items())
    assert all(numbers for plan in plans.values() for numbers in plan.partitions.values())

    shuffled = dict(data.draw(st.permutations(list(members.items()))))
    assert load(name).assign(cluster, shuffled) == plans


@given(cluster=clusters, members=mixed)
def test_range_cuts_each_topic_into_even_pieces_in_member_order(cluster: ClusterView, members: Members) -> None:
    plans = load("range").assign(cluster, members)
    for topic, count in cluster.partitions.items():
        owners = [name for name in sorted_members(members, members) if topic in members[name].topics]
        pieces = [list(plans[name].partitions.get(topic, ())) for name in owners]
        if owners:
            assert [number for piece in pieces for number in piece] == list(range(count))
            assert [len(piece) for piece in pieces] == sorted((len(piece) for piece in pieces), reverse=True)
            assert len(pieces[0]) - len(pieces[-1]) <= 1


@given(cluster=clusters, members=st.sets(names, min_size=1, max_size=9))
def test_roundrobin_with_equal_subscriptions_is_even_over_all_topics(cluster: ClusterView, members: set[str]) -> None:
    plans = load("roundrobin").assign(cluster, {name: Subscription(topics=TOPICS) for name in members})
    totals = [sum(len(numbers) for numbers in plan.partitions.values()) for plan in plans.values()]
    assert max(totals) - min(totals) <= 1


@given(cluster=clusters, members=mixed)
def test_roundrobin_agrees_with_dealing_one_card_at_a_time(cluster: ClusterView, members: Members) -> None:
    """The oracle walks partition by partition, as the definition reads."""
    order = sorted_members(members, members)
    hands: dict[str, list[tuple[str, int]]] = {name: [] for name in members}
    cursor = 0
    for topic in TOPICS:
        if any(topic in member.topics for member in members.values()):
            for number in range(cluster.partitions.get(topic, 0)):
                while topic not in members[order[cursor % len(order)]].topics:
                    cursor += 1
                hands[order[cursor % len(order)]].append((topic, number))
                cursor += 1
    plans = load("roundrobin").assign(cluster, members)
    dealt = {
        name: sorted((topic, number) for topic, numbers in plan.partitions.items() for number in numbers)
        for name, plan in plans.items()
    }
    assert dealt == {name: sorted(hand) for name, hand in hands.items()}


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=6))
def test_members_are_ordered_by_utf16_code_units(ids: list[str]) -> None:
    """U+FF5E comes before U+1F600 by code point and after it in Java, where the latter begins with a surrogate."""
    members = {member: Subscription(topics=[]) for member in {*ids, "～", "\U0001f600"}}
    ordered = sorted_members(members, members)
    assert ordered.index("\U0001f600") < ordered.index("～")
    units = [
        [text.encode("utf-16-be")[i : i + 2] for i in range(0, len(text.encode("utf-16-be")), 2)] for text in ordered
    ]
    assert units == sorted(units)
