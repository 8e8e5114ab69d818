"""How many retry workers: none while nothing is due, some in time, never fewer because nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning.retry_scaling import (
    CALM_S,
    GROW_S,
    LATE_S,
    WAKE_S,
    RetryLoad,
    RetryScale,
    busy,
    decide_retry_scale,
)

NOW = 1_800_000_000.0
IDLE = RetryLoad(least=0, most=None, partitions=12, current=0, counted=True, due_lag=0)
DUE = replace(IDLE, due_lag=10, oldest_due_at=NOW - 1)
UNKNOWN = replace(IDLE, counted=False, due_lag=None)

times = st.none() | st.floats(NOW - 7200, NOW + 7200)
counts = st.none() | st.integers(0, 10_000)


@st.composite
def loads(draw: st.DrawFn) -> RetryLoad:
    """Anything that could be found, sensible or not."""
    least = draw(st.integers(0, 20))
    return RetryLoad(
        least=least,
        most=draw(st.none() | st.integers(max(least, 1), 40)),
        partitions=draw(st.none() | st.integers(1, 50)),
        current=draw(st.none() | st.integers(0, 60)),
        counted=draw(st.booleans()),
        due_lag=draw(counts),
        oldest_due_at=draw(times),
        next_due_at=draw(times),
        changed_at=draw(times),
        calm_since=draw(times),
        held=draw(st.booleans()),
        empty=draw(st.booleans()),
    )


def wanted(load: RetryLoad, now: float = NOW) -> int:
    return decide_retry_scale(load, now).replicas


@given(loads())
def test_bounds_always_hold(load: RetryLoad) -> None:
    count = wanted(load)
    assert count >= 0
    assert load.most is None or count <= load.most
    assert load.partitions is None or count <= load.partitions
    bound = min((b for b in (load.most, load.partitions) if b is not None), default=None)
    assert count >= (load.least if bound is None else min(load.least, bound))


@given(loads())
def test_what_is_unknown_takes_no_worker_away(load: RetryLoad) -> None:
    """Unless the spec's own bounds do."""
    bound = min((b for b in (load.most, load.partitions) if b is not None), default=10**6)
    for uncertain in (replace(load, counted=False), replace(load, held=True), replace(load, due_lag=None)):
        assert wanted(uncertain) >= min(load.current or 0, bound)


@given(loads())
def test_a_due_record_always_has_a_worker(load: RetryLoad) -> None:
    known = replace(load, counted=True, due_lag=load.due_lag or 0, held=False)
    if busy(known, NOW):
        assert wanted(known) >= 1


@given(loads())
def test_asking_again_with_the_same_picture_comes_to_rest(load: RetryLoad) -> None:
    """With nothing changing but the count and the clock, a count is reached that stays for ever."""
    now = NOW
    calm_since = None
    history = []
    for _ in range(20):
        is_busy = busy(load, now)
        calm_since = None if is_busy else calm_since or now
        count = wanted(replace(load, calm_since=calm_since), now)
        if count != load.current:
            load = replace(load, current=count, changed_at=now)
        history.append(count)
        now += CALM_S
        load = replace(load, next_due_at=None)
    assert len(set(history[-5:])) == 1, history


def test_nothing_waits_and_nothing_runs() -> None:
    scale = decide_retry_scale(IDLE, NOW)
    assert (scale.replicas, scale.requeue_after) == (0, None)


def test_workers_sleep_until_shortly_before_the_next_record_is_due() -> None:
    ahead = replace(IDLE, next_due_at=NOW + 3600)
    scale = decide_retry_scale(ahead, NOW)
    assert (scale.replicas, scale.requeue_after) == (0, 3600 - WAKE_S)
    assert wanted(ahead, NOW + 3600 - WAKE_S - 1) == 0
    assert wanted(ahead, NOW + 3600 - WAKE_S) == 1


def test_part_of_a_flow_is_enough_to_be_woken_by() -> None:
    """A partition without a leader must not keep the workers of all others away."""
    assert wanted(replace(UNKNOWN, oldest_due_at=NOW - 100)) == 1
    ahead = replace(UNKNOWN, next_due_at=NOW + 3600)
    assert decide_retry_scale(ahead, NOW) == RetryScale(0, "what waits is not known", 3600 - WAKE_S)
    assert wanted(ahead, NOW + 3600 - WAKE_S) == 1
    assert wanted(replace(UNKNOWN, current=3, oldest_due_at=NOW - 100)) == 3


def test_sleeping_group_is_joined_before_its_commits_expire() -> None:
    """From when a group is empty the brokers count until they throw its commits away: one worker comes and goes."""
    asleep = replace(IDLE, empty=True, empty_s=1000.0, changed_at=NOW, calm_since=NOW - 100)
    assert decide_retry_scale(asleep, NOW + 10).requeue_after == 990.0
    assert decide_retry_scale(replace(asleep, next_due_at=NOW + 530), NOW).requeue_after == 500.0
    assert wanted(asleep, NOW + 999) == 0
    assert wanted(asleep, NOW + 1000) == 1
    joining = replace(asleep, current=1, changed_at=NOW + 1000)
    assert wanted(joining, NOW + 1030) == 1, "its worker has not joined yet"
    restarted = replace(joining, calm_since=NOW + 1000.9)
    assert wanted(restarted, NOW + 1100) == 1, "nor has it when the operator is new as well"
    joined = replace(joining, empty=False)
    assert wanted(joined, NOW + 1040) == 0
    assert wanted(replace(asleep, changed_at=NOW + 1040), NOW + 1041) == 0, "for as long again"


def test_group_that_does_not_exist_or_is_attended_is_not_woken() -> None:
    old = replace(IDLE, changed_at=NOW - 10**6)
    assert wanted(old) == 0
    assert wanted(replace(old, current=2, least=2, empty=True)) == 2
    assert wanted(replace(old, empty=True, held=True)) == 0


def test_late_records_double_the_workers_step_by_step_up_to_the_partitions() -> None:
    late = replace(DUE, current=1, oldest_due_at=NOW - LATE_S - 1, changed_at=NOW - GROW_S)
    assert wanted(late) == 2
    assert wanted(replace(late, changed_at=NOW - 1)) == 1, "the last change has yet to show its effect"
    assert wanted(replace(late, current=8)) == 12
    assert wanted(replace(late, current=4, most=5)) == 5
    assert wanted(replace(late, oldest_due_at=NOW - 1)) == 1, "due just now is not late"


def test_workers_go_after_a_calm_minute() -> None:
    calm = replace(IDLE, current=4, calm_since=NOW)
    assert decide_retry_scale(calm, NOW + 10).requeue_after == pytest.approx(CALM_S - 10)
    assert wanted(calm, NOW + CALM_S - 1) == 4
    assert wanted(calm, NOW + CALM_S) == 0
    assert wanted(replace(calm, least=2), NOW + CALM_S) == 2


def test_open_breaker_keeps_the_count() -> None:
    late = replace(DUE, current=3, oldest_due_at=NOW - 600, held=True)
    assert wanted(late) == 3
    assert wanted(replace(IDLE, current=3, calm_since=NOW - 600, held=True)) == 3


def test_first_look_that_fails_starts_no_more_than_asked_for() -> None:
    assert wanted(replace(UNKNOWN, current=None)) == 0
    assert wanted(replace(UNKNOWN, current=None, least=2)) == 2
