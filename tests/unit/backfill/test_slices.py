"""Slices: every offset is planned once, fairly, within the limits, whatever stops the tasks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.backfill.slices import FIRST_OFFSETS, Pace, plan_slice, slice_offsets, slices_left, waves, without
from fleet_consumer.contract.backfill_ledger import Ranges


def pace(**changes: object) -> Pace:
    given_ = {"slice_records": 1_000, "slice_seconds": 10, "parallelism": 4, "ordered": True, "observed": 1e9}
    return Pace(**(given_ | changes))  # type: ignore[arg-type]  # a table of fields


def offsets(ranges: Ranges) -> set[tuple[int, int]]:
    return {(part, offset) for part, spans in ranges.items() for first, end in spans for offset in range(first, end)}


def test_first_slice_is_modest_and_later_ones_last_their_seconds() -> None:
    large = {"slice_records": 1_000_000}
    assert slice_offsets(pace(observed=0.0, **large)) == FIRST_OFFSETS
    assert slice_offsets(pace(observed=0.0, slice_records=10)) == 10
    assert slice_offsets(pace(observed=50.0, **large)) == 500
    assert slice_offsets(pace(observed=1e9, **large)) == 1_000_000


def test_rate_limit_bounds_a_slice() -> None:
    assert slice_offsets(pace(rate_limit=7)) == 70
    assert slice_offsets(pace(rate_limit=7, observed=0.0)) == 70
    assert slice_offsets(pace(rate_limit=1_000_000)) == 1_000


def test_a_slice_is_never_empty() -> None:
    assert slice_offsets(pace(observed=0.001)) == 1
    assert len(plan_slice({3: ((5, 9),)}, pace(observed=0.001))) == 1
    assert plan_slice({}, pace()) == ()


def test_partitions_share_fairly_and_use_what_others_leave() -> None:
    planned = plan_slice({0: ((0, 10),), 1: ((0, 5_000),), 2: ((100, 5_000),)}, pace(slice_records=1_000))
    assert [(each.partition, each.first, each.end) for each in planned] == [(0, 0, 10), (1, 0, 495), (2, 100, 595)]


def test_ordered_slice_has_one_range_of_a_partition() -> None:
    planned = plan_slice({0: ((0, 10), (50, 90))}, pace())
    assert [(each.partition, each.first, each.end, each.layer) for each in planned] == [(0, 0, 10, 0)]


def test_free_order_cuts_one_partition_into_tasks() -> None:
    planned = plan_slice({0: ((0, 1_000),)}, pace(ordered=False))
    assert [(each.first, each.end, each.layer) for each in planned] == [
        (0, 250, 0),
        (250, 500, 1),
        (500, 750, 2),
        (750, 1_000, 3),
    ]


def test_waves_and_slices_left() -> None:
    assert [waves(tasks, 2) for tasks in (0, 1, 2, 3, 5)] == [1, 1, 1, 2, 3]
    assert slices_left({0: ((0, 10),), 1: ((0, 11),)}, 10) == 3


def test_covered_offsets_are_taken_out_and_neighbours_join() -> None:
    assert without({0: ((0, 10),)}, [(0, 3, 5)]) == {0: ((0, 3), (5, 10))}
    assert without({0: ((0, 3), (3, 10)), 1: ((0, 2),)}, [(1, 0, 2)]) == {0: ((0, 10),)}


ranges = st.dictionaries(
    st.integers(0, 4),
    st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True).map(
        lambda cuts: tuple(zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False))
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(ranges, st.integers(1, 40), st.integers(1, 5), st.booleans(), st.randoms(use_true_random=False))
def test_all_offsets_are_covered_once_although_tasks_stop_early(
    remaining: Ranges, size: int, parallelism: int, ordered: bool, chance: object
) -> None:
    import random

    assert isinstance(chance, random.Random)
    wanted, seen = offsets(remaining), list[tuple[int, int]]()
    chosen = pace(slice_records=size, parallelism=parallelism, ordered=ordered)
    while remaining:
        planned = plan_slice(remaining, chosen)
        assert planned, remaining
        assert sum(each.end - each.first for each in planned) <= max(size, 1)
        places = [(each.layer, each.partition) for each in planned]
        assert len(set(places)) == len(places), "one range of a partition in each layer"
        if ordered:
            assert {each.layer for each in planned} == {0}
        covered = []
        for each in planned:
            stop = chance.randint(each.first + 1, each.end)
            covered.append((each.partition, each.first, stop))
            seen += [(each.partition, offset) for offset in range(each.first, stop)]
        remaining = without(remaining, covered)
    assert sorted(seen) == sorted(wanted)
