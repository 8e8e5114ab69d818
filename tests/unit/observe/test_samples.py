"""Samples of a group's progress, for the rates that scaling follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from fleet_operator.observe.group_aggregation import (
    SAMPLES_GAP_SECONDS,
    SAMPLES_SECONDS,
    SPARSE_SECONDS,
    extend_samples,
)
from fleet_operator.planning.observation import GroupObservation

KEY = ("orders", 0)


def poll(at: float, end: int, *, error: str | None = None) -> GroupObservation:
    return GroupObservation(
        group_id="orders", observed_at=at, committed={KEY: end - 1}, end_offsets={KEY: end}, error=error
    )


def after(polls: list[GroupObservation]) -> GroupObservation:
    last: GroupObservation | None = None
    for seen in polls:
        last = replace(seen, samples=extend_samples(seen, last))
    assert last is not None
    return last


def test_samples_cover_the_window_and_one_more() -> None:
    seen = after([poll(5.0 * n, 10 * n) for n in range(100)])
    assert seen.samples[-1].end_offsets == {KEY: 990}
    covered = seen.samples[-1].at - seen.samples[0].at
    assert SAMPLES_SECONDS <= covered <= SAMPLES_SECONDS + SPARSE_SECONDS


def test_older_samples_are_far_between_and_newer_ones_are_all_there() -> None:
    seen = after([poll(5.0 * n, 10 * n) for n in range(100)])
    ages = [495.0 - sample.at for sample in reversed(seen.samples)]
    assert ages[:6] == [0, 5, 10, 15, 20, 25]
    assert len(ages) <= 12
    assert max(later - earlier for earlier, later in pairwise(ages)) <= SPARSE_SECONDS


def test_group_that_stands_still_is_sampled_as_well() -> None:
    seen = after([poll(5.0 * n, 10) for n in range(5)])
    assert [sample.at for sample in seen.samples] == [0, 5, 10, 15, 20]


def test_failed_poll_adds_no_sample() -> None:
    seen = after([poll(0, 0), poll(5, 10), poll(10, 10, error="CoordinatorNotAvailable"), poll(15, 30)])
    assert [sample.at for sample in seen.samples] == [0, 5, 15]


def test_clock_that_was_set_back_begins_the_samples_again() -> None:
    """The rates between then and now would be unknown until the clock has caught up."""
    seen = after([poll(5000, 0), poll(5005, 10), poll(1400, 20), poll(1405, 30)])
    assert [sample.at for sample in seen.samples] == [1400, 1405]


def test_outage_begins_the_samples_again() -> None:
    """Records that producers kept during an outage arrive at once, and are no rate."""
    seen = after([poll(0, 0), poll(5, 10), poll(5 + SAMPLES_GAP_SECONDS + 1, 5000)])
    assert [sample.at for sample in seen.samples] == [5 + SAMPLES_GAP_SECONDS + 1]
