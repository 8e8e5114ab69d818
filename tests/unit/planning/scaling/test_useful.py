"""Useful numbers of workers."""

from __future__ import annotations

import pytest

from fleet_operator.planning.scaling.load import useful_counts

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
    assert (useful.counts, useful.loads) == ((1, 2, 3, 4), (7, 4, 3, 2))


def test_every_other_count_loads_its_busiest_worker_as_a_smaller_one_does() -> None:
    for sizes in ({"a": 10}, {"a": 31}, {"a": 97}):
        useful = useful_counts(sizes, BALANCED)
        for count in range(1, useful.most + 1):
            load = -(-useful.partitions // count)
            assert useful.load(count) == load
            smallest = min(n for n in range(1, count + 1) if -(-useful.partitions // n) == load)
            assert (count in useful.counts) == (count == smallest)


@pytest.mark.parametrize(
    ("raw", "count"),
    [(0.0, 0), (0.2, 1), (1.0, 1), (1.1, 2), (3.3, 4), (3.4, 5), (5.1, 10), (10.0, 10), (99.0, 10)],
)
def test_snapped_count_is_the_smallest_whose_busiest_worker_can_do_its_part(raw: float, count: int) -> None:
    """Of ten partitions four workers own at most three: together they are worth 3.33 and not 4."""
    assert useful_counts({"orders": 10}, BALANCED).snap(raw) == count


def test_no_number_is_beyond_what_a_spec_can_ask_for() -> None:
    useful = useful_counts({"orders": 30_000}, BALANCED)
    assert useful.most <= 1000
    assert useful.snap(5000.0) == useful.most


def test_next_larger_count_ends_at_the_partitions() -> None:
    useful = useful_counts({"orders": 12}, BALANCED)
    assert [useful.above(count) for count in (0, 1, 5, 6, 12, 40)] == [1, 2, 6, 12, 12, 12]
