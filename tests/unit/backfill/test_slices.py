"""Slices: every offset is planned once, fairly, within the limits, whatever stops the tasks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.backfill.slices import (
    FIRST_OFFSETS,
    Pace,
    TaskRange,
    plan_slice,
    shortened,
    slice_offsets,
    slices_left,
    without,
)
from fleet_consumer.contract.backfill_ledger import Ranges


def pace(**changes: object) -> Pace:
    given_ = {"slice_records": 1_000, "slice_seconds": 10, "tasks": 4, "ordered": True, "observed": 1e9}
    return Pace(**(given_ | changes))  # type: ignore[arg-type]  # a table of fields


def plan(remaining: Ranges, chosen: Pace) -> tuple[tuple[TaskRange, ...], ...]:
    """The first slice of a run over these ranges."""
    whole = {part: (spans[0][0], spans[-1][1]) for part, spans in remaining.items() if spans}
    return plan_slice(remaining, chosen, whole)


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
    assert len(plan({3: ((5, 9),)}, pace(observed=0.001))) == 1
    assert plan({}, pace()) == ()


def test_tasks_are_of_equal_size_and_use_what_others_leave() -> None:
    ranges = {0: ((0, 10),), 1: ((0, 5_000),), 2: ((100, 5_000),)}
    planned = plan(ranges, pace(slice_records=1_000, tasks=2))
    assert planned == (
        (TaskRange(1, 0, 500),),
        (TaskRange(0, 0, 10), TaskRange(2, 100, 590)),
    )


def test_thousand_partitions_are_as_many_tasks_as_run_at_once() -> None:
    planned = plan(dict.fromkeys(range(1000), ((0, 50),)), pace(slice_records=20_000, tasks=4))
    assert [len(task) for task in planned] == [100] * 4
    assert {sum(each.offsets for each in task) for task in planned} == {5_000}


def test_a_slice_reads_few_partitions() -> None:
    """The end of each range costs what librdkafka has fetched beyond it."""
    planned = plan(dict.fromkeys(range(200), ((0, 1_000),)), pace(slice_records=1_600, tasks=2))
    assert [len(task) for task in planned] == [8, 8]


def test_all_partitions_advance_at_once_whatever_their_size() -> None:
    """Retention removes the oldest records of a small partition as soon as those of a large one."""
    ranges = {part: (5, 5 + (10_000 if part % 2 else 1_000)) for part in range(100)}
    remaining: Ranges = {part: (span,) for part, span in ranges.items()}
    for _ in range(50):
        planned = plan_slice(remaining, pace(slice_records=5_500, tasks=2), ranges)
        remaining = without(remaining, [tuple(each) for task in planned for each in task])  # type: ignore[misc]
    left = [sum(end - first for first, end in remaining.get(part, ())) / (ranges[part][1] - 5) for part in ranges]
    assert min(left) > 0.1
    assert max(left) < 0.8


def test_ordered_slice_has_one_range_of_a_partition() -> None:
    assert plan({0: ((0, 10), (50, 90))}, pace()) == ((TaskRange(0, 0, 10),),)


def test_free_order_cuts_one_partition_into_tasks() -> None:
    planned = plan({0: ((0, 1_000),)}, pace(ordered=False))
    assert [(each.first, each.end) for (each,) in planned] == [(0, 250), (250, 500), (500, 750), (750, 1_000)]


def test_free_order_takes_several_ranges_in_one_task() -> None:
    planned = plan({0: ((0, 3), (10, 13)), 1: ((0, 2),)}, pace(ordered=False, tasks=2))
    assert planned == (
        (TaskRange(0, 0, 3), TaskRange(0, 10, 11)),
        (TaskRange(0, 11, 13), TaskRange(1, 0, 2)),
    )


def test_task_that_is_begun_again_takes_its_first_offsets() -> None:
    task = (TaskRange(0, 5, 8), TaskRange(1, 0, 100))
    assert shortened(task, 10) == (TaskRange(0, 5, 8), TaskRange(1, 0, 7))
    assert shortened(task, 2) == (TaskRange(0, 5, 7),)
    assert shortened(task, 0) == (TaskRange(0, 5, 6),)


def test_slices_left() -> None:
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
    remaining: Ranges, size: int, tasks: int, ordered: bool, chance: object
) -> None:
    import random

    assert isinstance(chance, random.Random)
    wanted, seen = offsets(remaining), list[tuple[int, int]]()
    chosen = pace(slice_records=size, tasks=tasks, ordered=ordered)
    while remaining:
        planned = plan(remaining, chosen)
        assert planned, remaining
        assert len(planned) <= tasks
        assert all(planned)
        parts = [each for task in planned for each in task]
        # Each task rounds its share up.
        assert sum(each.offsets for each in parts) <= size + len(planned)
        if ordered:
            assert len({each.partition for each in parts}) == len(parts), "one range of a partition"
        covered = []
        for each in parts:
            stop = chance.randint(each.first + 1, each.end)
            covered.append((each.partition, each.first, stop))
            seen += [(each.partition, offset) for offset in range(each.first, stop)]
        remaining = without(remaining, covered)
    assert sorted(seen) == sorted(wanted)
