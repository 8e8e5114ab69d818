"""Useful numbers of workers, and who owns what at each of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fleet_operator.planning.observation import MemberObservation
from fleet_operator.planning.scaling.dealing import Dealing, dealing_of, least_count, owned_by, useful_counts
from fleet_operator.planning.scaling.facts import Partition

BALANCED = "cooperative-sticky"


@pytest.mark.parametrize(
    ("partitions", "counts"),
    [
        (24, (1, 2, 3, 4, 5, 6, 8, 12, 24)),
        (12, (1, 2, 3, 4, 6, 12)),
        (7, (1, 2, 3, 4, 7)),
        (1, (1,)),
        (0, ()),
    ],
)
def test_counts_are_the_ceilings_of_the_partitions(partitions: int, counts: tuple[int, ...]) -> None:
    assert useful_counts({"orders": partitions}, BALANCED).counts == counts
    assert counts == tuple(sorted({-(-partitions // k) for k in range(1, partitions + 1)}))


def test_balancing_assignors_share_the_partitions_of_all_topics() -> None:
    assert useful_counts({"a": 4, "b": 3}, "roundrobin").counts == useful_counts({"c": 7}, BALANCED).counts


def test_range_deals_each_topic_by_itself() -> None:
    useful = useful_counts({"a": 4, "b": 3}, "range")
    assert useful.counts == (1, 2, 3, 4)


def test_every_other_count_loads_its_busiest_worker_as_a_smaller_one_does() -> None:
    for partitions in (10, 31, 97):
        useful = useful_counts({"a": partitions}, BALANCED)
        for count in range(1, useful.most + 1):
            load = -(-partitions // count)
            smallest = min(n for n in range(1, count + 1) if -(-partitions // n) == load)
            assert (count in useful.counts) == (count == smallest)


def test_no_number_is_beyond_what_a_spec_can_ask_for() -> None:
    useful = useful_counts({"orders": 30_000}, BALANCED)
    assert useful.most <= 1000


def test_next_larger_count_ends_at_the_partitions() -> None:
    useful = useful_counts({"orders": 12}, BALANCED)
    assert [useful.above(count) for count in (0, 1, 5, 6, 12, 40)] == [1, 2, 6, 12, 12, 12]


def test_next_smaller_count_ends_at_none() -> None:
    useful = useful_counts({"orders": 12}, BALANCED)
    assert [useful.below(count) for count in (12, 7, 2, 1)] == [6, 6, 1, 0]


def dealing(
    partitions: int, workers: int, assignor: str = BALANCED, rates: Mapping[Partition, float] | None = None
) -> Dealing:
    """A group as its assignor has dealt it to so many workers, by number."""
    counts = {"orders": partitions}
    start = dealing_of(counts, assignor, (), {})
    return dealing_of(counts, assignor, start.at(workers), rates or {})


@pytest.mark.parametrize(
    "assignor", ["range", "roundrobin", "sticky", BALANCED, "cooperative-weighted", "a.class:OfTheirs"]
)
@pytest.mark.parametrize("count", [1, 3, 5, 12, 20])
def test_every_partition_has_one_owner_at_any_number(assignor: str, count: int) -> None:
    dealt = dealing(12, 4, assignor).at(count)
    assert len(dealt) == count
    assert sorted(key for owned in dealt for key in owned) == [("orders", number) for number in range(12)]


@pytest.mark.parametrize("assignor", ["sticky", BALANCED, "cooperative-weighted"])
def test_sticky_workers_keep_what_they_own(assignor: str) -> None:
    now = dealing(12, 4, assignor)
    after = now.at(6)
    kept = sum(key in after[place] for place, owned in enumerate(now.owned) for key in owned)
    assert kept == 8, "two for each of four"


def test_last_workers_leave_first() -> None:
    members = [
        MemberObservation(
            member_id=f"m{place}",
            instance_id=f"shop/orders-{ordinal}",
            client_id="",
            host="",
            partitions={"orders": (ordinal,)},
        )
        for place, ordinal in enumerate((10, 2, 0, 1))
    ]
    assert owned_by(members) == tuple((("orders", ordinal),) for ordinal in (0, 1, 2, 10))


def carried(load: dict[int, float], workers: int, capacity: float = 60.0, partitions: int = 12) -> int | None:
    rates: dict[Partition, float] = {("orders", number): load.get(number, 0.0) for number in range(partitions)}
    counts = useful_counts({"orders": partitions}, BALANCED).counts
    return least_count(dealing(partitions, workers), counts, rates, mean=capacity, worst=capacity)


def test_even_load_takes_what_its_sum_says() -> None:
    assert carried(dict.fromkeys(range(12), 10.0), 4) == 2
    assert carried(dict.fromkeys(range(12), 10.1), 4) == 3


def test_busy_partition_takes_more_workers_than_the_average_says() -> None:
    """Its worker of four owns two others, and of six one."""
    assert carried({number: 45.0 if number == 0 else 10.5 for number in range(12)}, 4) == 6


def test_hot_partition_takes_one_worker_and_asks_for_no_more() -> None:
    assert carried({0: 500.0, 1: 5.0}, 2) is not None


def test_two_hot_partitions_of_one_worker_are_parted() -> None:
    owned = dealing(12, 4).owned[0]
    pair = {number: 80.0 for _, number in owned[:2]}
    found = carried(pair, 4)
    assert found is not None
    assert found > 4


def test_load_beyond_every_number_has_none() -> None:
    assert carried(dict.fromkeys(range(12), 61.0), 4) is not None, "each is hot, and has a worker"
    counts = useful_counts({"orders": 12}, BALANCED).counts[:3]
    rates = {("orders", number): 50.0 for number in range(12)}
    assert least_count(dealing(12, 4), counts, rates, mean=60.0, worst=60.0) is None


def test_assignor_that_weighs_carries_a_skewed_load_with_fewer_workers() -> None:
    """Three busy partitions of 36, of which a sticky assignor gives two to one worker."""
    rates = {("orders", number): 100.0 if number in (0, 4, 8) else 1.0 for number in range(36)}
    counts = useful_counts({"orders": 36}, BALANCED).counts
    by_number = least_count(dealing(36, 4), counts, rates, mean=120.0, worst=120.0)
    by_load = least_count(dealing(36, 4, "cooperative-weighted", rates), counts, rates, mean=120.0, worst=120.0)
    assert by_load is not None
    assert by_number is not None
    assert by_load < by_number
