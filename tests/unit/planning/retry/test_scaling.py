"""The number of retry workers: none while nothing is due, some in time, never fewer on missing data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
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
    decide_retry_scale,
    is_busy,
)
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.document import read_state, write_state
from fleet_operator.planning.state.group import GroupState, RetriesState, RetrySizing

NOW = 1_800_000_000.0


@dataclass(frozen=True)
class Scene:
    """A load and the memory of what was before it."""

    load: RetryLoad
    memory: RetryMemory = field(default_factory=RetryMemory)

    @property
    def busy(self) -> bool | None:
        return is_busy(self.load, NOW)


def change(scene: Scene, **changes: Any) -> Scene:
    """The scene with fields of the load or the memory replaced."""

    def own(part: Any) -> Any:
        return replace(part, **{f.name: changes[f.name] for f in fields(part) if f.name in changes})

    return Scene(own(scene.load), own(scene.memory))


IDLE = Scene(RetryLoad(least=0, most=None, partitions=12, counted=True, lag=0, current=0))
DUE = change(IDLE, lag=10, oldest_at=NOW - 1)
UNKNOWN = change(IDLE, counted=False, lag=None)

times = st.none() | st.floats(NOW - 7200, NOW + 7200)
counts = st.none() | st.integers(0, 10_000)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Anything that could be found, sensible or not."""
    least = draw(st.integers(0, 20))
    load = RetryLoad(
        least=least,
        most=draw(st.none() | st.integers(max(least, 1), 40)),
        partitions=draw(st.none() | st.integers(1, 50)),
        counted=draw(st.booleans()),
        lag=draw(counts),
        oldest_at=draw(times),
        next_at=draw(times),
        current=draw(st.none() | st.integers(0, 60)),
        changed_at=draw(times),
        held=draw(st.booleans()),
        unsure=draw(st.booleans()),
        shortest_delay_s=draw(st.none() | st.sampled_from((5.0, 60.0))),
        empty=draw(st.booleans()),
    )
    kept = RetrySizing(short=draw(st.integers(0, 40)))
    memory = RetryMemory(calm_since=draw(times), keeping_up_since=draw(times), kept=kept)
    return Scene(load, memory)


def decide(scene: Scene, now: float = NOW) -> ScaleDecision:
    return decide_retry_scale(scene.load, scene.memory, now)[0]


def wanted(scene: Scene, now: float = NOW) -> int:
    return decide(scene, now).replicas


@given(scenes())
def test_bounds_always_hold(scene: Scene) -> None:
    count = wanted(scene)
    assert count >= 0
    assert scene.load.most is None or count <= scene.load.most
    assert scene.load.partitions is None or count <= scene.load.partitions
    bound = min((b for b in (scene.load.most, scene.load.partitions) if b is not None), default=None)
    assert count >= (scene.load.least if bound is None else min(scene.load.least, bound))


@given(scenes())
def test_unknown_observation_removes_no_worker(scene: Scene) -> None:
    """Unless the spec's own bounds do."""
    bound = min((b for b in (scene.load.most, scene.load.partitions) if b is not None), default=10**6)
    for uncertain in (change(scene, counted=False), change(scene, held=True), change(scene, lag=None)):
        assert wanted(uncertain) >= min(scene.load.current or 0, bound)


@given(scenes())
def test_a_due_record_always_has_a_worker(scene: Scene) -> None:
    known = change(scene, counted=True, lag=scene.load.lag or 0, held=False)
    if known.busy:
        assert wanted(known) >= 1


@given(scenes())
def test_repeated_scaling_on_one_observation_settles(scene: Scene) -> None:
    """With nothing changing but the count and the clock, a count is reached that stays indefinitely.

    Times may lie two hours ahead, as on clocks that disagree: the steps go on beyond them.
    """
    now = NOW
    calm_since = None
    history = []
    for _ in range(150):
        busy = is_busy(scene.load, now)
        calm_since = None if busy else calm_since or now
        count = wanted(change(scene, calm_since=calm_since), now)
        if count != scene.load.current:
            scene = change(scene, current=count, changed_at=now)
        history.append(count)
        now += CALM_S
        scene = change(scene, next_at=None)
    assert len(set(history[-5:])) == 1, history


def test_record_that_is_due_later_by_another_clock_brings_workers_once_it_is_late() -> None:
    ahead = change(UNKNOWN, partitions=33, current=1, changed_at=NOW, lag=5, oldest_at=NOW + 900)
    assert wanted(ahead, NOW + 600) == 1
    assert wanted(ahead, NOW + 900 + LATE_S) == 1
    assert wanted(ahead, NOW + 900 + LATE_S + 1) == 2


def test_nothing_waits_and_nothing_runs() -> None:
    scale = decide(IDLE, NOW)
    assert (scale.replicas, scale.requeue_after) == (0, None)


def test_workers_sleep_until_shortly_before_the_next_record_is_due() -> None:
    ahead = change(IDLE, next_at=NOW + 3600)
    scale = decide(ahead, NOW)
    assert (scale.replicas, scale.requeue_after) == (0, 3600 - WAKE_S)
    assert wanted(ahead, NOW + 3600 - WAKE_S - 1) == 0
    assert wanted(ahead, NOW + 3600 - WAKE_S) == 1


def test_part_of_a_flow_is_enough_to_be_woken_by() -> None:
    """A partition without a leader must not keep the workers of all others away."""
    assert wanted(change(UNKNOWN, oldest_at=NOW - 100)) == 1
    ahead = change(UNKNOWN, next_at=NOW + 3600)
    assert decide(ahead, NOW) == ScaleDecision(
        replicas=0, reason="the number of due records is unknown", requeue_after=3600 - WAKE_S
    )
    assert wanted(ahead, NOW + 3600 - WAKE_S) == 1
    assert wanted(change(UNKNOWN, current=3, oldest_at=NOW - 100)) == 3


def test_sleeping_group_is_joined_before_its_commits_expire() -> None:
    """From when a group is empty the brokers count until they throw its commits away: one worker comes and goes."""
    asleep = change(IDLE, empty=True, empty_s=1000.0, changed_at=NOW, calm_since=NOW - 100)
    assert decide(asleep, NOW + 10).requeue_after == 990.0
    assert decide(change(asleep, next_at=NOW + 530), NOW).requeue_after == 500.0
    assert wanted(asleep, NOW + 999) == 0
    assert wanted(asleep, NOW + 1000) == 1
    joining = change(asleep, current=1, changed_at=NOW + 1000)
    assert wanted(joining, NOW + 1030) == 1, "its worker has not joined yet"
    restarted = change(joining, calm_since=NOW + 1000.9)
    assert wanted(restarted, NOW + 1100) == 1, "nor has it when the operator is new as well"
    joined = change(joining, empty=False)
    assert wanted(joined, NOW + 1040) == 0
    assert wanted(change(asleep, changed_at=NOW + 1040), NOW + 1041) == 0, "for as long again"


def test_group_that_does_not_exist_or_is_attended_is_not_woken() -> None:
    old = change(IDLE, changed_at=NOW - 10**6)
    assert wanted(old) == 0
    assert wanted(change(old, current=2, least=2, empty=True)) == 2
    assert wanted(change(old, empty=True, held=True)) == 0


def test_late_records_double_the_workers_step_by_step_up_to_the_partitions() -> None:
    late = change(DUE, current=1, oldest_at=NOW - LATE_S - 1, changed_at=NOW - GROW_S)
    assert wanted(late) == 2
    assert wanted(change(late, changed_at=NOW - 1)) == 1, "the last change has not shown its effect yet"
    assert wanted(change(late, current=8)) == 12
    assert wanted(change(late, current=4, most=5)) == 5
    assert wanted(change(late, oldest_at=NOW - 1)) == 1, "due just now is not late"


def test_clock_that_was_set_back_holds_neither_growth_nor_sleep() -> None:
    late = change(DUE, current=2, lag=500, oldest_at=NOW - 60, changed_at=NOW + 3600)
    assert wanted(late) == 4
    calm = change(IDLE, current=2, changed_at=NOW + 3600, calm_since=NOW + 3600)
    _, memory = decide_retry_scale(calm.load, calm.memory, NOW)
    assert wanted(Scene(calm.load, memory), NOW + CALM_S + 1) == 0


def test_workers_go_after_a_calm_minute() -> None:
    calm = change(IDLE, current=4, calm_since=NOW)
    assert decide(calm, NOW + 10).requeue_after == pytest.approx(CALM_S - 10)
    assert wanted(calm, NOW + CALM_S - 1) == 4
    assert wanted(calm, NOW + CALM_S) == 0
    assert wanted(change(calm, least=2), NOW + CALM_S) == 2


def test_open_breaker_keeps_the_count() -> None:
    late = change(DUE, current=3, oldest_at=NOW - 600, held=True)
    assert wanted(late) == 3
    assert wanted(change(IDLE, current=3, calm_since=NOW - 600, held=True)) == 3


def test_first_poll_that_fails_starts_no_more_than_asked_for() -> None:
    assert wanted(change(UNKNOWN, current=None)) == 0
    assert wanted(change(UNKNOWN, current=None, least=2)) == 2


class Fleet:
    """A retry fleet over time: its count follows the decisions, its memory goes from visit to visit."""

    def __init__(self, **load: Any) -> None:
        self.scene = change(IDLE, partitions=16, **load)
        self.now = NOW
        self.counts: list[tuple[float, int]] = []

    def live(self, seconds: float, needs: int | None = None, **seen: Any) -> int:
        """Visits every five seconds; with `needs`, records are late while fewer workers run."""
        until = self.now + seconds
        while self.now < until:
            self.now += 5
            current = self.scene.load.current or 0
            late = needs is not None and current < needs
            due = {"lag": 50, "oldest_at": self.now - 60} if late else {"lag": 0, "oldest_at": None}
            found = change(self.scene, **{**due, "next_at": self.now + 1, **seen})
            scale, memory = decide_retry_scale(found.load, found.memory, self.now)
            self.scene = Scene(self.scene.load, memory)
            if scale.replicas != current:
                self.scene = change(self.scene, current=scale.replicas, changed_at=self.now)
                self.counts.append((self.now - NOW, scale.replicas))
        return self.scene.load.current or 0


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
    "seen", [{"counted": False, "lag": None}, {"held": True}, {"unsure": True}], ids=["count", "open", "breaker"]
)
def test_no_worker_goes_while_something_is_unknown(seen: dict[str, Any]) -> None:
    fleet = Fleet(current=16, changed_at=NOW - 600)
    assert fleet.live(10 * SHRINK_S, **seen) == 16
    fleet.live(SHRINK_S - 10)
    assert fleet.live(0, **seen) == 16
    assert fleet.live(SHRINK_S, **seen) == 16, "the window begins again"


def test_lateness_without_breaker_observation_adds_no_worker() -> None:
    late = change(DUE, current=4, oldest_at=NOW - 600, changed_at=NOW - 600, unsure=True)
    assert wanted(late) == 4
    assert wanted(change(late, current=0)) == 1, "one is started all the same"


def test_one_worker_stays_where_a_start_takes_longer_than_the_shortest_delay() -> None:
    short = change(IDLE, shortest_delay_s=5.0)
    assert wanted(short) == 1
    assert wanted(change(short, current=1, calm_since=NOW - 10 * CALM_S)) == 1
    assert wanted(change(short, shortest_delay_s=WAKE_S)) == 0
    assert wanted(change(short, partitions=0)) == 0


def test_workers_of_a_topic_with_thousands_of_partitions_stay_within_the_bound_of_a_state() -> None:
    load = RetryLoad(least=0, most=None, partitions=10_000, counted=True, lag=9, oldest_at=NOW - 900, current=512)
    scale, _ = decide_retry_scale(load, RetryMemory(), NOW)
    assert scale.replicas == 1000
    document = write_state(GroupState(retries=RetriesState(sizing=RetrySizing(count=scale.replicas))), {})
    assert read_state(GroupState, document, "orders").retries.sizing.count == 1000
