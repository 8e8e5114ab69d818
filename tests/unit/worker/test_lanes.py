"""What may be handled at once: the order of keys holds, nobody starves, nothing is given out twice or forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.worker.lanes import Lanes

KEYS = st.one_of(st.none(), st.sampled_from("abc"))


def test_records_of_a_key_go_one_after_the_other_and_others_pass_them() -> None:
    lanes: Lanes[str, str] = Lanes()
    for lane, work in (("a", "a1"), ("a", "a2"), ("b", "b1"), (None, "free")):
        lanes.add(lane, work)
    assert [lanes.next() for _ in range(4)] == [("a", "a1"), ("b", "b1"), (None, "free"), None]
    lanes.done("a")
    assert lanes.next() == ("a", "a2")


def test_what_waits_behind_can_be_taken_along() -> None:
    lanes: Lanes[str, str] = Lanes()
    for work in ("a1", "a2"):
        lanes.add("a", work)
    assert lanes.following("a") is None
    assert lanes.next() == ("a", "a1")
    assert lanes.following("a") == "a2"
    assert lanes.follow("a") == "a2"
    assert lanes.following("a") is None
    lanes.done("a")
    lanes.add("a", "a3")
    assert lanes.next() == ("a", "a3")


def test_discarded_work_does_not_come_out_and_its_lane_goes_on() -> None:
    lanes: Lanes[str, str] = Lanes()
    for lane, work in (("a", "a1"), ("a", "a2"), ("b", "b1"), (None, "f1"), (None, "f2")):
        lanes.add(lane, work)
    assert lanes.next() == ("a", "a1")
    assert sorted(lanes.discard(lambda work: work in {"a2", "b1", "f1"})) == ["a2", "b1", "f1"]
    lanes.done("a")
    lanes.add("b", "b2")
    lanes.add("a", "a3")
    assert [lanes.next() for _ in range(4)] == [("b", "b2"), (None, "f2"), ("a", "a3"), None]


@given(keys=st.lists(KEYS, max_size=60), hands=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_any_schedule_keeps_keys_in_order_and_hands_busy(keys: list[str | None], hands: int, seed: int) -> None:
    chance = random.Random(seed)
    lanes: Lanes[str, int] = Lanes()
    waiting = list(enumerate(keys))
    out: list[tuple[str | None, int]] = []
    came_back: list[int] = []
    left: set[int] = set()
    while waiting or out or left:
        for number, key in waiting[: chance.randint(0, 5)]:
            lanes.add(key, number)
            left.add(number)
            waiting.pop(0)
        while len(out) < hands and (ready := lanes.next()) is not None:
            assert ready[0] is None or ready[0] not in {lane for lane, _ in out}, f"seed {seed}"
            out.append(ready)
            left.remove(ready[1])
        busy = {lane for lane, _ in out}
        if len(out) < hands:
            assert all(keys[number] in busy for number in left), f"work could have gone out; seed {seed}"
        if out:
            lane, number = out.pop(chance.randrange(len(out)))
            lanes.done(lane)
            came_back.append(number)
    assert sorted(came_back) == list(range(len(keys)))
    for key in set(keys) - {None}:
        mine = [number for number in came_back if keys[number] == key]
        assert mine == sorted(mine), f"key {key}; seed {seed}"


@pytest.mark.parametrize("lanes_used", [1, 7])
def test_no_lane_starves_another(lanes_used: int) -> None:
    lanes: Lanes[int, int] = Lanes()
    for number in range(lanes_used * 3):
        lanes.add(number % lanes_used, number)
    order = []
    while (ready := lanes.next()) is not None:
        assert ready[0] is not None
        order.append(ready[0])
        lanes.done(ready[0])
    assert order == list(range(lanes_used)) * 3
