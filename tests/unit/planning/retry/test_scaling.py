"""How many retry workers: none while nothing is due, some in time, never fewer because nobody knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning.retry.scaling import (
    CALM_S,
    GROW_S,
    LATE_S,
    SHORT_S,
    SHRINK_S,
    WAKE_S,
    RetryLoad,
    RetryMemory,
    RetryScale,
    busy,
    decide_retry_scale,
    recall,
    remember,
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
        keeping_up_since=draw(times),
        short=draw(st.integers(0, 40)),
        held=draw(st.booleans()),
        unsure=draw(st.booleans()),
        shortest_delay_s=draw(st.none() | st.sampled_from((5.0, 60.0))),
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
def test_unknown_observation_removes_no_worker(load: RetryLoad) -> None:
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
def test_repeated_scaling_on_one_observation_settles(load: RetryLoad) -> None:
    """With nothing changing but the count and the clock, a count is reached that stays for ever.

    Times may lie two hours ahead, as on clocks that disagree: the steps go on beyond them.
    """
    now = NOW
    calm_since = None
    history = []
    for _ in range(150):
        is_busy = busy(load, now)
        calm_since = None if is_busy else calm_since or now
        count = wanted(replace(load, calm_since=calm_since), now)
        if count != load.current:
            load = replace(load, current=count, changed_at=now)
        history.append(count)
        now += CALM_S
        load = replace(load, next_due_at=None)
    assert len(set(history[-5:])) == 1, history


def test_record_that_is_due_later_by_another_clock_brings_workers_once_it_is_late() -> None:
    ahead = replace(UNKNOWN, partitions=33, current=1, changed_at=NOW, due_lag=5, oldest_due_at=NOW + 900)
    assert wanted(ahead, NOW + 600) == 1
    assert wanted(ahead, NOW + 900 + LATE_S) == 1
    assert wanted(ahead, NOW + 900 + LATE_S + 1) == 2


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


class Fleet:
    """A retry fleet over time: its count follows the decisions, its memory goes from visit to visit."""

    def __init__(self, **load: Any) -> None:
        self.load = replace(IDLE, partitions=16, **load)
        self.memory = RetryMemory()
        self.now = NOW
        self.counts: list[tuple[float, int]] = []

    def live(self, seconds: float, needs: int | None = None, **seen: Any) -> int:
        """Visits every five seconds; with `needs`, records are late while fewer workers run."""
        until = self.now + seconds
        while self.now < until:
            self.now += 5
            current = self.load.current or 0
            late = needs is not None and current < needs
            due = {"due_lag": 50, "oldest_due_at": self.now - 60} if late else {"due_lag": 0, "oldest_due_at": None}
            load = replace(self.load, **{**due, "next_due_at": self.now + 1, **seen})
            scale = decide_retry_scale(recall(self.memory, load), self.now)
            self.memory = remember(self.memory, load, self.now)
            if scale.replicas != current:
                if scale.replicas < current and busy(load, self.now):
                    self.memory = replace(self.memory, shrunk_at=self.now)
                self.load = replace(self.load, current=scale.replicas, changed_at=self.now)
                self.counts.append((self.now - NOW, scale.replicas))
        return self.load.current or 0


def test_workers_of_a_burst_go_although_a_record_is_due_every_second() -> None:
    """Something is always due or about to be; what counts is that all of it is handled in time."""
    fleet = Fleet(current=16, changed_at=NOW)
    assert fleet.live(SHRINK_S - 5) == 16
    assert fleet.live(10) == 8
    assert fleet.live(4 * SHRINK_S) == 1


def test_count_that_was_too_small_is_not_tried_again_soon() -> None:
    fleet = Fleet(current=8, changed_at=NOW - 600)
    fleet.live(SHORT_S, needs=5)
    assert [count for _, count in fleet.counts] == [4, 8, 5]
    fleet.live(3 * SHORT_S, needs=5)
    assert len(fleet.counts) <= 6 * 4, "a few changes each half an hour"


def test_burst_is_no_proof_that_its_workers_are_needed_afterwards() -> None:
    fleet = Fleet(current=1)
    assert fleet.live(5 * GROW_S, needs=16) == 16
    assert fleet.live(6 * SHRINK_S) == 1


@pytest.mark.parametrize(
    "seen", [{"counted": False, "due_lag": None}, {"held": True}, {"unsure": True}], ids=["count", "open", "breaker"]
)
def test_no_worker_goes_while_something_is_unknown(seen: dict[str, Any]) -> None:
    fleet = Fleet(current=16, changed_at=NOW - 600)
    assert fleet.live(10 * SHRINK_S, **seen) == 16
    fleet.live(SHRINK_S - 10)
    assert fleet.live(0, **seen) == 16
    assert fleet.live(SHRINK_S, **seen) == 16, "the window begins anew"


def test_lateness_without_breaker_observation_adds_no_worker() -> None:
    late = replace(DUE, current=4, oldest_due_at=NOW - 600, changed_at=NOW - 600, unsure=True)
    assert wanted(late) == 4
    assert wanted(replace(late, current=0)) == 1, "one is started all the same"


def test_one_worker_stays_where_a_start_takes_longer_than_the_shortest_delay() -> None:
    short = replace(IDLE, shortest_delay_s=5.0)
    assert wanted(short) == 1
    assert wanted(replace(short, current=1, calm_since=NOW - 10 * CALM_S)) == 1
    assert wanted(replace(short, shortest_delay_s=WAKE_S)) == 0
    assert wanted(replace(short, partitions=0)) == 0
