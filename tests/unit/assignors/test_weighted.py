"""Plans by load: groups whose members report rates, through joins, leaves, noise and damaged reports.

Random groups are made from seeds; a failure names its seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from itertools import product

import pytest

from fleet_consumer.assignors import Assignment, Assignor, ClusterView, Subscription, TakesRates, load
from fleet_consumer.assignors.loads import fair_share
from fleet_consumer.assignors.reported_rates import Report, decode_report, encode_report
from fleet_consumer.assignors.weighted import KEEPERS, WEIGHED_MAX
from fleet_consumer.group.classic.planning import plan as checked_plan

WEIGHTED = "cooperative-weighted"
SEEDS = pytest.mark.parametrize("seed", range(60))
Partition = tuple[str, int]


class Group:
    """Members with an assignor each, that own what plans gave them; `rates` are those of all partitions."""

    def __init__(self, counts: Mapping[str, int], rates: Mapping[Partition, float], name: str = WEIGHTED) -> None:
        self.cluster = ClusterView(counts)
        self.rates = dict(rates)
        self.name = name
        self.assignors: dict[str, Assignor] = {}
        self.owned: dict[str, Mapping[str, Sequence[int]]] = {}
        self.topics: dict[str, Sequence[str]] = {}
        self.generation = 0

    def join(self, *members: str, topics: Sequence[str] | None = None) -> Group:
        for member in members:
            self.assignors[member] = load(self.name)
            self.owned[member] = {}
            self.topics[member] = sorted(self.cluster.partitions) if topics is None else topics
        return self

    def leave(self, member: str) -> None:
        del self.assignors[member], self.owned[member], self.topics[member]

    def subscriptions(self, chance: random.Random | None = None) -> dict[str, Subscription]:
        """Subscriptions of all members; with `chance` they measured 20 % too much or too little."""
        told = {}
        for member, assignor in self.assignors.items():
            owned, topics = self.owned[member], self.topics[member]
            if isinstance(assignor, TakesRates):
                noise = chance.uniform if chance else lambda low, high: 1.0
                assignor.on_rates(
                    {
                        topic: {number: self.rates[topic, number] * noise(0.8, 1.2) for number in numbers}
                        for topic, numbers in owned.items()
                    }
                )
            told[member] = Subscription(topics, assignor.subscription_user_data(topics), owned, self.generation or -1)
        return told

    def plan(self, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        """One plan, under the leader's check."""
        leader = next(iter(self.assignors.values()))
        checked_plan(leader, self.cluster, subscriptions, cooperative=True)
        return leader.assign(self.cluster, subscriptions)

    def rebalance(self, chance: random.Random | None = None) -> int:
        """One rebalance; the number of partitions given up."""
        return self.take(self.plan(self.subscriptions(chance)))

    def take(self, plan: Mapping[str, Assignment]) -> int:
        before, self.generation = self.owners(), self.generation + 1
        for member, assignor in self.assignors.items():
            self.owned[member] = plan[member].partitions
            assignor.on_assignment(plan[member], self.generation)
        after = self.owners()
        assert sum(len(numbers) for owned in self.owned.values() for numbers in owned.values()) == len(after)
        return sum(after.get(partition) != member for partition, member in before.items())

    def settle(self) -> int:
        """Rebalance until nobody gives anything up, at most twice; the number of partitions that moved."""
        moved = self.rebalance()
        if moved:
            assert self.rebalance() == 0
        wanted = {topic for topics in self.topics.values() for topic in topics}
        every = {(t, number) for t, count in self.cluster.partitions.items() if t in wanted for number in range(count)}
        assert self.owners().keys() == every
        return moved

    def owners(self) -> dict[Partition, str]:
        return {
            (topic, number): member
            for member, owned in self.owned.items()
            for topic, numbers in owned.items()
            for number in numbers
        }

    def loads(self) -> dict[str, float]:
        loads = dict.fromkeys(self.assignors, 0.0)
        for partition, member in self.owners().items():
            loads[member] += self.rates[partition]
        return loads


def skewed(chance: random.Random, counts: Mapping[str, int], spread: float = 1.2) -> dict[Partition, float]:
    return {(t, number): chance.lognormvariate(3, spread) for t, count in counts.items() for number in range(count)}


def random_group(seed: int) -> Group:
    """A group that has settled: two to nine members, some with one topic of two only."""
    chance = random.Random(seed)
    counts = {"a": chance.randint(1, 30), "b": chance.randint(1, 30)}
    group = Group(counts, skewed(chance, counts))
    for number in range(chance.randint(2, 9)):
        group.join(f"m{number}", topics=chance.choice([["a", "b"], ["a", "b"], ["a"], ["b"]]))
    group.join("all")
    group.settle()
    group.settle()
    return group


def busy_partitions() -> Group:
    """36 partitions of which three are busy, the worst with 28 % of all records; six members, settled by number."""
    rates = {("orders", number): 10.0 for number in range(36)}
    rates |= {("orders", 0): 280.0, ("orders", 6): 200.0, ("orders", 12): 190.0}
    group = Group({"orders": 36}, rates).join(*(f"m{number}" for number in range(6)))
    group.settle()
    return group


def test_busy_partitions_that_met_at_one_member_are_parted() -> None:
    group = busy_partitions()
    assert max(group.loads().values()) == 700.0, "without rates they are dealt by number"
    moved = group.settle()
    assert max(group.loads().values()) <= 300.0
    assert moved <= 8, "two busy ones, and a few to make room"


def test_weighted_fleet_needs_fewer_members_than_a_sticky_one() -> None:
    """A worker carries 300 records a second: the fleet has to be so large that no member has more."""

    def needed(name: str) -> int:
        rates = busy_partitions().rates
        for count in range(1, 37):
            group = Group({"orders": 36}, rates, name).join(*(f"m{number:02}" for number in range(count)))
            group.settle()
            group.settle()
            if max(group.loads().values()) <= 300.0:
                return count
        return 37

    assert needed(WEIGHTED) == 4
    assert needed("cooperative-sticky") >= 7


@SEEDS
def test_settled_group_moves_nothing_more(seed: int) -> None:
    group = random_group(seed)
    assert [group.rebalance() for _ in range(3)] == [0, 0, 0]


@SEEDS
def test_noise_of_twenty_per_cent_moves_nothing(seed: int) -> None:
    group, chance = random_group(seed), random.Random(seed)
    owners = group.owners()
    for _ in range(5):
        assert group.rebalance(chance) == 0
    assert group.owners() == owners


@SEEDS
def test_members_that_come_and_go_leave_loads_level_within_two_rebalances(seed: int) -> None:
    group, chance = random_group(seed), random.Random(seed)
    for change in range(4):
        if chance.random() < 0.5 and len(group.assignors) > 2:
            group.leave(chance.choice(sorted(set(group.assignors) - {"all"})))
        else:
            group.join(f"n{change}")
        group.settle()
        assert all(set(owned) <= set(group.topics[member]) for member, owned in group.owned.items())


@SEEDS
def test_order_of_members_changes_nothing(seed: int) -> None:
    group = random_group(seed)
    told = list(group.join("new").subscriptions().items())
    random.Random(seed).shuffle(told)
    assert group.plan(dict(told)) == group.plan(group.subscriptions())


@SEEDS
def test_largest_load_is_near_the_least_possible(seed: int) -> None:
    """Groups of three members, against all plans; the first plan by load has the owners of a plan by number."""
    chance = random.Random(seed)
    counts = {"t": chance.randint(3, 8)}
    group = Group(counts, skewed(chance, counts)).join("a", "b", "c")
    group.settle()
    group.settle()
    rates = list(group.rates.values())
    least = min(
        max(sum(rate for rate, whose in zip(rates, owners, strict=True) if whose == each) for each in range(3))
        for owners in product(range(3), repeat=len(rates))
    )
    assert max(group.loads().values()) <= 1.25 * least


@SEEDS
def test_newcomer_gets_its_share_and_the_rest_keeps_what_it_has(seed: int) -> None:
    chance = random.Random(seed)
    counts = {"t": 120}
    group = Group(counts, skewed(chance, counts)).join(*(f"m{number}" for number in range(5)))
    group.settle()
    group.settle()
    moved = group.join("new").settle()
    loads = group.loads()
    fair = fair_share([round(rate * 1000) for rate in group.rates.values()], len(loads)) / 1000
    assert loads["new"] >= 0.5 * fair
    assert moved <= 30, "a sixth of 120 by number is 20"


def test_equal_rates_are_dealt_by_number() -> None:
    group = Group({"t": 12}, {("t", number): 5.0 for number in range(12)}).join("a", "b", "c")
    group.settle()
    assert group.settle() == 0
    assert group.join("d", "e").settle() == 4
    assert sorted(map(len, (owned["t"] for owned in group.owned.values()))) == [2, 2, 2, 3, 3]


def test_rates_outlast_the_member_that_measured_them() -> None:
    """The owner of the busiest partition leaves: the partition is not taken for one of the mean."""
    group = busy_partitions()
    group.settle()
    group.leave(group.owners()["orders", 0])
    group.settle()
    loads = group.loads()
    assert max(loads.values()) == loads[group.owners()["orders", 0]] <= 300.0


def test_few_members_keep_the_levels_of_a_plan() -> None:
    group = busy_partitions()
    plan = group.plan(group.subscriptions())
    keepers = [member for member, share in plan.items() if share.user_data]
    assert keepers == [f"m{number}" for number in range(KEEPERS)]
    assert len(decode_report(plan["m0"].user_data).kept["orders"]) == 36


def test_levels_of_deleted_topics_are_not_kept() -> None:
    group = Group({"t": 4, "gone": 2}, skewed(random.Random(1), {"t": 4, "gone": 2})).join("a", "b")
    group.settle()
    group.settle()
    group.cluster = ClusterView({"t": 3})
    kept = decode_report(group.plan(group.subscriptions())["a"].user_data).kept
    assert {topic: sorted(levels) for topic, levels in kept.items()} == {"t": [0, 1, 2]}


@SEEDS
def test_damaged_user_data_of_some_members_spoils_no_plan(seed: int) -> None:
    group, chance = random_group(seed), random.Random(seed)
    told = group.subscriptions()
    for member in chance.sample(sorted(told), len(told) // 2 + 1):
        data = chance.choice([None, b"", chance.randbytes(40), b"\x01" + chance.randbytes(40), b"\x00\x00\x00\x07"])
        told[member] = Subscription(told[member].topics, data, told[member].owned, told[member].generation)
    group.take(group.plan(told))
    group.settle()


def test_group_without_a_readable_report_is_dealt_as_by_cooperative_sticky() -> None:
    group = busy_partitions()
    group.join("new")
    told = {
        member: Subscription(each.topics, b"\xff" * 9, each.owned, each.generation)
        for member, each in group.subscriptions().items()
    }
    assert group.plan(told) == load("cooperative-sticky").assign(group.cluster, told)


def test_rates_of_less_than_half_of_the_partitions_are_not_used() -> None:
    group = Group({"t": 10}, {("t", number): 10.0 * (number + 1) for number in range(10)}).join("a", "b")
    group.settle()
    told = group.subscriptions()
    few = encode_report(Report({"t": {0: 200, 2: 10}}))
    told = {member: Subscription(each.topics, few, each.owned, each.generation) for member, each in told.items()}
    assert {member: share.partitions for member, share in group.plan(told).items()} == group.owned


def test_member_speaks_only_for_partitions_that_it_owns() -> None:
    group = busy_partitions()
    group.settle()
    owners, told = group.owners(), group.subscriptions()
    lies = encode_report(Report({"orders": dict.fromkeys(range(36), 255)}, decode_report(told["m5"].user_data).kept))
    honest = decode_report(told["m5"].user_data).own["orders"]
    others = [number for number in range(36) if owners["orders", number] != "m5"]
    assert honest.keys().isdisjoint(others)
    told["m5"] = Subscription(told["m5"].topics, lies, told["m5"].owned, told["m5"].generation)
    plan = group.plan(told)
    assert decode_report(plan["m0"].user_data).kept["orders"].keys() == set(range(36))
    assert all(decode_report(plan["m0"].user_data).kept["orders"][number] < 255 for number in others)


def test_more_partitions_than_can_be_weighed_are_dealt_by_number() -> None:
    count = WEIGHED_MAX + 1
    group = Group({"t": count}, {("t", number): float(number % 7) for number in range(count)}).join("a", "b")
    group.settle()
    assert group.settle() == 0
    assert {len(owned["t"]) for owned in group.owned.values()} == {count // 2, count // 2 + 1}


def test_ten_thousand_partitions_of_five_hundred_members_are_planned_in_seconds() -> None:
    chance = random.Random(7)
    counts = {"t": 10_000}
    group = Group(counts, skewed(chance, counts)).join(*(f"m{number:03}" for number in range(500)))
    group.rebalance()
    told, leader = group.subscriptions(), load(WEIGHTED)
    began = time.process_time()
    leader.assign(group.cluster, told)
    assert time.process_time() - began < 3.0
