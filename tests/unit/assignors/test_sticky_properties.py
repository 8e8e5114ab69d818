"""Properties of every plan of the sticky assignors, on random groups with random pasts.

The counts, the distances and the moves are compared with the best there are, which an oracle finds by other means; the
oracle is itself compared with all plans of small groups. Hypothesis prints the seed of what fails.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_consumer.assignors import Assignment, ClusterView, Subscription, load
from tests.support.sticky_oracle import Partition, Question, cheapest_by_trying, cheapest_flow

RACKS = ("a", "b", "c")
GENERATION = 7
COOPERATIVE_ONES = pytest.mark.parametrize("name", ["cooperative-sticky", "cooperative-weighted"])
"""Without rates the weighted one makes the same plans."""


@dataclass(frozen=True)
class Group:
    """A cluster, members that reported their partitions, and the undisputed ones among these."""

    cluster: ClusterView
    members: Mapping[str, Subscription]
    owner: Mapping[Partition, str]

    def question(self) -> Question:
        """The same for the oracle."""
        partitions = [(t, number) for t, count in self.cluster.partitions.items() for number in range(count)]
        may = {spot: tuple(m for m, told in self.members.items() if spot[0] in told.topics) for spot in partitions}
        may = {spot: takers for spot, takers in may.items() if takers}
        racks = self.cluster.racks or {}
        spots = [racks[topic][number] for topic, number in may] if racks else []
        everywhere = frozenset[str]().union(*spots)
        told_racks = {told.rack for told in self.members.values() if told.rack}
        matter = bool(everywhere & told_racks) and any(spot != everywhere for spot in spots)
        far = frozenset(
            ((topic, number), member)
            for (topic, number), takers in may.items()
            for member in takers
            if matter and (rack := self.members[member].rack) and rack not in racks[topic][number]
        )
        return Question(may, self.owner, far, tuple(self.members))


def random_group(chance: random.Random, *, largest: int, topics: int, members: int) -> Group:
    """Half of the groups have racks, a third equal subscriptions; owners favour one member at times."""
    counts = {f"t{number}": chance.randint(1, largest) for number in range(chance.randint(1, topics))}
    names = [f"m{number}" for number in range(chance.randint(1, members))]
    wanted = sorted(counts)
    same, with_racks, density = chance.random() < 0.3, chance.random() < 0.5, chance.choice([0.0, 0.5, 1.0, 1.0])
    subscribed = {name: wanted if same else chance.sample(wanted, chance.randint(0, len(wanted))) for name in names}
    known = chance.randint(1, len(RACKS))
    racks = {
        t: [frozenset(chance.sample(RACKS, chance.randint(1, known))) for _ in range(n)] for t, n in counts.items()
    }
    owner: dict[Partition, str] = {}
    favourite = chance.choice(names)
    for topic, count in counts.items():
        takers = [name for name in names if topic in subscribed[name]]
        for number in range(count):
            if takers and chance.random() < density:
                favoured = favourite in takers and chance.random() < 0.4
                owner[topic, number] = favourite if favoured else chance.choice(takers)
    owned: dict[str, dict[str, list[int]]] = {name: {} for name in names}
    for (topic, number), name in owner.items():
        owned[name].setdefault(topic, []).append(number)
    told = {
        name: Subscription(
            topics=subscribed[name],
            owned=owned[name],
            generation=GENERATION,
            rack=chance.choice([*RACKS, None]) if with_racks else None,
        )
        for name in names
    }
    return Group(ClusterView(counts, racks if with_racks else None), told, owner)


def flat(plan: Mapping[str, Assignment]) -> dict[Partition, str]:
    """Owner of each partition; asserts that nothing is given twice."""
    pairs = [
        ((topic, number), member)
        for member, share in plan.items()
        for topic, numbers in share.partitions.items()
        for number in numbers
    ]
    assert len({spot for spot, _ in pairs}) == len(pairs)
    return dict(pairs)


def after(group: Group, plan: Mapping[str, Assignment]) -> dict[str, Subscription]:
    """Members of the next rebalance: they own what the plan gave them."""
    return {
        name: Subscription(topics=t.topics, owned=plan[name].partitions, generation=GENERATION + 1, rack=t.rack)
        for name, t in group.members.items()
    }


seeds = st.integers(0, 2**32 - 1)
"""Groups are made from seeds and not drawn, as a group takes hundreds of choices; what fails is named by its seed."""


def group_of(seed: int) -> Group:
    return random_group(random.Random(seed), largest=6, topics=8, members=7)


@settings(deadline=None)
@given(seed=seeds)
def test_oracle_finds_the_best_of_all_plans(seed: int) -> None:
    question = random_group(random.Random(seed), largest=2, topics=3, members=3).question()
    assert cheapest_flow(question) == cheapest_by_trying(question)


@settings(max_examples=300, deadline=None)
@given(seed=seeds)
def test_sticky_is_complete_and_nothing_is_evener_nearer_or_moves_less(seed: int) -> None:
    group = group_of(seed)
    question = group.question()
    plan = load("sticky").assign(group.cluster, group.members)
    owners = flat(plan)
    assert plan.keys() == group.members.keys()
    assert owners.keys() == question.may.keys()
    assert all(member in question.may[spot] for spot, member in owners.items())
    assert all(numbers for share in plan.values() for numbers in share.partitions.values())
    assert question.value(owners) == cheapest_flow(question)


@settings(max_examples=300, deadline=None)
@given(seed=seeds)
@COOPERATIVE_ONES
def test_cooperative_one_never_transfers_directly_and_ends_in_two_rounds(name: str, seed: int) -> None:
    group = group_of(seed)
    assignor, question = load(name), group.question()
    first = assignor.assign(group.cluster, group.members)
    assert all(group.owner.get(spot, member) == member for spot, member in flat(first).items())
    second = assignor.assign(group.cluster, after(group, first))
    owners = flat(second)
    assert owners.keys() == question.may.keys()
    assert flat(first).items() <= owners.items()
    assert question.value(owners) == cheapest_flow(question)
    assert flat(assignor.assign(group.cluster, after(group, second))) == owners


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "cooperative-weighted"])
def test_order_of_members_changes_nothing(name: str, seed: int) -> None:
    group = group_of(seed)
    listed = list(group.members.items())
    random.Random(seed).shuffle(listed)
    assert load(name).assign(group.cluster, dict(listed)) == load(name).assign(group.cluster, group.members)


claims = st.dictionaries(
    st.sampled_from(["t0", "t1", "t2", "gone", "unwanted"]), st.lists(st.integers(-1, 9), max_size=9), max_size=5
)
liars = st.builds(
    lambda topics, owned, generation: Subscription(topics=topics, owned=owned, generation=generation),
    st.lists(st.sampled_from(["t0", "t1", "t2", "gone"]), max_size=5),
    claims,
    st.integers(-1, 3),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    counts=st.dictionaries(st.sampled_from(["t0", "t1", "t2", "unwanted"]), st.integers(0, 6)),
    members=st.dictionaries(st.sampled_from("abcdefg"), liars, max_size=6),
)
@COOPERATIVE_ONES
def test_any_claims_give_a_complete_plan_and_a_final_second(
    name: str, counts: Mapping[str, int], members: Mapping[str, Subscription]
) -> None:
    """Stale, doubled, impossible claims; in the first round nobody gets what somebody with equal right claims."""
    cluster, assignor = ClusterView(counts), load(name)
    wanted = {topic for told in members.values() for topic in told.topics}
    there = {(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}
    assert flat(load("sticky").assign(cluster, members)).keys() == there
    first = assignor.assign(cluster, members)
    for (topic, number), member in flat(first).items():
        rivals = [told for rival, told in members.items() if rival != member and number in told.owned.get(topic, ())]
        assert all(told.generation < members[member].generation for told in rivals)
        assert not rivals or number in members[member].owned.get(topic, ())
    second = assignor.assign(cluster, after(Group(cluster, members, {}), first))
    assert flat(second).keys() == there
    assert flat(first).items() <= flat(second).items()


def counts_of(plan: Mapping[str, Assignment]) -> Sequence[int]:
    return [sum(map(len, share.partitions.values())) for share in plan.values()]


@COOPERATIVE_ONES
def test_members_come_and_go_with_random_subscriptions(name: str) -> None:
    """Two hundred rounds of change, each planned in two rounds and each plan as even as a fresh one."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    assignor = load(name)
    counts = {f"t{number:02}": chance.randint(1, 12) for number in range(20)}
    members: dict[str, Subscription] = {}
    for change in range(200):
        if members and chance.random() < 0.4:
            for gone in chance.sample(sorted(members), chance.randint(1, len(members))):
                del members[gone]
        for newcomer in range(chance.randint(0, 4)):
            wanted = chance.sample(sorted(counts), chance.randint(1, len(counts)))
            members[f"m{change:03}-{newcomer}"] = Subscription(topics=wanted)
        counts[chance.choice(sorted(counts))] += chance.randint(0, 2)
        cluster = ClusterView(counts)
        group = Group(cluster, members, {})
        first = assignor.assign(cluster, members)
        second = assignor.assign(cluster, after(group, first))
        assert flat(first).items() <= flat(second).items()
        fresh = load("sticky").assign(
            cluster, {each: Subscription(topics=told.topics) for each, told in members.items()}
        )
        assert sorted(counts_of(second)) == sorted(counts_of(fresh))
        members = after(group, second)
