"""Work that may begin: the order of keys holds, no key starves, nothing is given out twice or forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.handlers.key_order import KeyOrder

KEYS = st.one_of(st.none(), st.sampled_from("abc"))


def test_records_of_a_key_go_one_after_the_other_and_others_pass_them() -> None:
    order: KeyOrder[str, str] = KeyOrder()
    for order_key, work in (("a", "a1"), ("a", "a2"), ("b", "b1"), (None, "free")):
        order.add(order_key, work)
    assert [order.next() for _ in range(4)] == [("a", "a1"), ("b", "b1"), (None, "free"), None]
    order.done("a")
    assert order.next() == ("a", "a2")


def test_records_waiting_behind_a_key_can_be_batched() -> None:
    order: KeyOrder[str, str] = KeyOrder()
    for work in ("a1", "a2"):
        order.add("a", work)
    assert order.following("a") is None
    assert order.next() == ("a", "a1")
    assert order.following("a") == "a2"
    assert order.follow("a") == "a2"
    assert order.following("a") is None
    order.done("a")
    order.add("a", "a3")
    assert order.next() == ("a", "a3")


def test_discarded_work_is_not_returned_and_its_key_continues() -> None:
    order: KeyOrder[str, str] = KeyOrder()
    for order_key, work in (("a", "a1"), ("a", "a2"), ("b", "b1"), (None, "f1"), (None, "f2")):
        order.add(order_key, work)
    assert order.next() == ("a", "a1")
    assert sorted(order.discard(lambda work: work in {"a2", "b1", "f1"})) == ["a2", "b1", "f1"]
    order.done("a")
    order.add("b", "b2")
    order.add("a", "a3")
    assert [order.next() for _ in range(4)] == [("b", "b2"), (None, "f2"), ("a", "a3"), None]


@given(keys=st.lists(KEYS, max_size=60), hands=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_any_schedule_keeps_keys_in_order_and_executors_busy(keys: list[str | None], hands: int, seed: int) -> None:
    chance = random.Random(seed)
    order: KeyOrder[str, int] = KeyOrder()
    waiting = list(enumerate(keys))
    out: list[tuple[str | None, int]] = []
    came_back: list[int] = []
    left: set[int] = set()
    while waiting or out or left:
        for number, key in waiting[: chance.randint(0, 5)]:
            order.add(key, number)
            left.add(number)
            waiting.pop(0)
        while len(out) < hands and (ready := order.next()) is not None:
            assert ready[0] is None or ready[0] not in {order_key for order_key, _ in out}, f"seed {seed}"
            out.append(ready)
            left.remove(ready[1])
        busy = {order_key for order_key, _ in out}
        if len(out) < hands:
            assert all(keys[number] in busy for number in left), f"work could have gone out; seed {seed}"
        if out:
            order_key, number = out.pop(chance.randrange(len(out)))
            order.done(order_key)
            came_back.append(number)
    assert sorted(came_back) == list(range(len(keys)))
    for key in set(keys) - {None}:
        mine = [number for number in came_back if keys[number] == key]
        assert mine == sorted(mine), f"key {key}; seed {seed}"


@pytest.mark.parametrize("keys_used", [1, 7])
def test_no_key_starves_another(keys_used: int) -> None:
    order: KeyOrder[int, int] = KeyOrder()
    for number in range(keys_used * 3):
        order.add(number % keys_used, number)
    taken: list[int] = []
    while (ready := order.next()) is not None:
        assert ready[0] is not None
        taken.append(ready[0])
        order.done(ready[0])
    assert taken == list(range(keys_used)) * 3
