"""Lag in records and in time, and how calmly it is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning.lag import (
    BEHIND_STEPS_S,
    Behind,
    ResetPolicy,
    behind_text,
    count_bucket,
    group_lag,
    lag_bucket,
    lag_text,
    partition_lag,
    time_behind,
)
from fleet_operator.planning.observation import OffsetSample
from tests.unit.planning.builders import NOW, observed_group


@pytest.mark.parametrize(
    ("case", "committed", "end", "start", "reset", "lag"),
    [
        ("committed in the middle", 40, 100, 0, "Earliest", 60),
        ("committed at the end", 100, 100, 0, "Earliest", 0),
        ("committed after the end was read", 120, 100, 0, "Earliest", 0),
        ("committed before the start: what was deleted is no lag", 10, 100, 30, "Earliest", 70),
        ("committed, start unknown", 40, 100, None, "Earliest", 60),
        ("never committed, from the earliest", None, 100, 30, "Earliest", 70),
        ("never committed, start unknown", None, 100, None, "Earliest", None),
        ("never committed, from the latest", None, 100, 30, "Latest", 0),
        ("never committed, no place to start", None, 100, 30, "None", None),
        ("end unknown", 40, None, 0, "Earliest", None),
    ],
)
def test_partition_lag(
    case: str, committed: int | None, end: int | None, start: int | None, reset: ResetPolicy, lag: int | None
) -> None:
    assert partition_lag(committed, end, start, reset) == lag, case


def test_unknown_partition_is_not_zero() -> None:
    """One partition that did not answer makes the sum incomplete, and is no part of it."""
    group = observed_group(end_offsets={("orders", 0): 150, ("orders", 1): 100})
    lag = group_lag(group, [("orders", 0), ("orders", 1), ("orders", 2)], "Earliest")
    assert (lag.total, lag.complete, lag.partitions["orders", 2]) == (50, False, None)


def test_old_commit_beyond_the_end_is_no_lag_of_zero() -> None:
    """The topic was created again: how much of it is unread nobody knows."""
    beyond = frozenset({("orders", 1)})
    group = observed_group(committed={("orders", 0): 60, ("orders", 1): 500}, beyond_end=beyond)
    lag = group_lag(group, [("orders", 0), ("orders", 1)], "Earliest")
    assert (lag.total, lag.complete, lag.partitions["orders", 1]) == (40, False, None)


def test_partition_that_was_added_is_not_caught_up_whatever_the_policy() -> None:
    """Workers read it from its beginning; before their first commit nobody knows whether it is one of those."""
    keys = [("orders", 0), ("orders", 1), ("flights", 0)]
    group = observed_group(
        committed={("orders", 0): 60}, end_offsets=dict.fromkeys(keys, 100), log_starts=dict.fromkeys(keys, 0)
    )
    assert group_lag(group, keys, "Earliest").partitions == {keys[0]: 40, keys[1]: 100, keys[2]: 100}
    assert group_lag(group, keys, "Latest").partitions == {keys[0]: 40, keys[1]: None, keys[2]: 0}
    assert group_lag(group, keys, "None").partitions == {keys[0]: 40, keys[1]: None, keys[2]: None}


def test_group_without_any_answer_has_no_lag() -> None:
    lag = group_lag(observed_group(end_offsets={}), [("orders", 0)], "Earliest")
    assert (lag.total, lag.complete, lag.behind) == (None, False, None)


def test_time_behind_is_interpolated_between_samples() -> None:
    history = (OffsetSample(NOW - 100, 0), OffsetSample(NOW, 1000))
    assert time_behind(250, history, NOW) == Behind(75.0)
    assert time_behind(1000, history, NOW) == Behind(0.0)


def test_record_older_than_the_history_is_at_least_that_old() -> None:
    history = (OffsetSample(NOW - 100, 500), OffsetSample(NOW, 1000))
    assert time_behind(10, history, NOW) == Behind(100.0, at_least=True)
    assert time_behind(10, (), NOW) is None


def test_age_is_unknown_at_the_first_poll_and_never_zero() -> None:
    """A new operator sees lag before it has a history."""
    first = (OffsetSample(NOW, 1000),)
    assert time_behind(10, first, NOW) is None
    assert time_behind(1000, first, NOW) == Behind(0.0), "what is committed to the end is not behind"
    history = {("orders", 0): first, ("orders", 1): first}
    ends = {("orders", 0): 1000, ("orders", 1): 1000}
    group = observed_group(committed={("orders", 0): 1000, ("orders", 1): 0}, end_offsets=ends, end_history=history)
    assert group_lag(group, list(ends), "Earliest").behind is None


def test_group_is_as_far_behind_as_its_furthest_partition() -> None:
    group = observed_group(
        committed={("orders", 0): 100, ("orders", 1): 50},
        end_history={("orders", 1): (OffsetSample(NOW - 101, 0), OffsetSample(NOW - 1, 100))},
    )
    lag = group_lag(group, [("orders", 0), ("orders", 1)], "Earliest")
    assert lag.behind == Behind(50.0)


def test_bucket_is_left_only_when_the_value_is_clearly_outside() -> None:
    """A lag that wavers around 1024 must not rewrite the status with every poll."""
    assert lag_bucket(1030) == 1024
    assert [lag_bucket(lag, 1024) for lag in (1000, 769, 2100, 2559)] == [1024] * 4
    assert [lag_bucket(lag, 1024) for lag in (767, 2560)] == [512, 2048]
    assert lag_bucket(0, 1024) == 0
    assert lag_bucket(3, 0) == 2


@given(st.integers(0, 10**15), st.integers(0, 50).map(lambda power: 1 << power) | st.none() | st.just(0))
def test_bucket_is_near_and_stays(lag: int, previous: int | None) -> None:
    """Zero exactly for zero; otherwise a power of two within a factor; shown again it does not move."""
    bucket = lag_bucket(lag, previous)
    assert (bucket == 0) == (lag == 0)
    assert bucket & (bucket - 1) == 0
    if bucket:
        assert 0.75 * bucket <= lag < 2.5 * bucket
    assert lag_bucket(lag, bucket) == bucket


@pytest.mark.parametrize(
    ("bucket", "text"), [(0, "0"), (1, "~1"), (512, "~512"), (1024, "~1k"), (1 << 21, "~2M"), (1 << 33, "~8G")]
)
def test_lag_text(bucket: int, text: str) -> None:
    assert lag_text(bucket) == text


@pytest.mark.parametrize(
    ("behind", "text"),
    [
        (None, "unknown"),
        (Behind(0.4), "0s"),
        (Behind(0.4, at_least=True), "unknown"),
        (Behind(7), "~5s"),
        (Behind(59), "~30s"),
        (Behind(400, at_least=True), ">5m"),
        (Behind(5000), "~1h"),
        (Behind(10**9), "~7d"),
    ],
)
def test_behind_text(behind: Behind | None, text: str) -> None:
    assert behind_text(behind) == text


@given(st.floats(0, 10**7), st.sampled_from([f"~{text}" for text in ("1s", "5s", "1m", "5m", "2h", "7d")]))
def test_behind_text_stays_when_shown_again(seconds: float, previous: str) -> None:
    text = behind_text(Behind(seconds), previous)
    assert behind_text(Behind(seconds), text) == text


def test_behind_text_keeps_to_its_step_near_the_edge() -> None:
    assert behind_text(Behind(55), "~1m") == "~1m"
    assert behind_text(Behind(140), "~1m") == "~1m"
    assert behind_text(Behind(44), "~1m") == "~30s"
    assert behind_text(Behind(160), "~1m") == "~2m"
    assert sorted(BEHIND_STEPS_S) == list(BEHIND_STEPS_S)


@pytest.mark.parametrize(
    ("count", "shown"), [(999, 999), (1000, 1000), (8255, 8300), (19_999, 20_000), (20_040, 21_000)]
)
def test_large_counts_are_rounded_up_so_that_none_is_too_few(count: int, shown: int) -> None:
    assert count_bucket(count) == shown
