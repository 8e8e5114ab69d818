"""The queue's promises: merged, one at a time, delayed after failures, nothing lost."""

from __future__ import annotations

import random

import pytest

from fleet_operator.runtime.keyed_queue import (
    BACKOFF_SECONDS,
    BACKOFF_SECONDS_MAX,
    OTHERS_AT_ONCE,
    KeyedQueue,
    backoff_seconds,
)

A, B = ("ns", "a"), ("ns", "b")


def test_key_asked_for_many_times_is_taken_once() -> None:
    queue = KeyedQueue()
    for second in range(5):
        queue.add(A, float(second))
    assert queue.next_key(5.0) == (A, 5.0)
    assert queue.next_key(5.0) is None


def test_keys_are_taken_in_the_order_they_became_due() -> None:
    queue = KeyedQueue()
    queue.add(B, 1.0)
    queue.add(A, 2.0)
    assert [queue.next_key(3.0), queue.next_key(3.0)] == [(B, 2.0), (A, 1.0)]


def test_new_keys_pass_those_that_wait_for_three_turns_of_four() -> None:
    """A thousand objects that were created at once have statuses soon, and hold up no others for long."""
    queue = KeyedQueue()
    for number in range(100):
        queue.add(("old", str(number)), 0.0)
    for number in range(100):
        queue.add_new(("new", str(number)), 1.0)
    taken = []
    while found := queue.next_key(2.0):
        taken.append(found)
        queue.finish(found[0])
    assert [(key[0], overdue) for key, overdue in taken[:4]] == [("new", 1.0)] * 3 + [("old", 2.0)]
    for kind in ("old", "new"):
        assert [key[1] for key, _ in taken if key[0] == kind] == [str(number) for number in range(100)]
    assert max(place for place, (key, _) in enumerate(taken) if key[0] == "new") < 135
    assert queue.next_key(2.0) is None


def test_few_others_are_worked_on_at_once_while_new_keys_wait() -> None:
    """A turn of an old key takes as long as ten of new ones, and by turns alone old ones come to hold the workers."""
    queue = KeyedQueue()
    for number in range(100):
        queue.add(("old", str(number)), 0.0)
        queue.add_new(("new", str(number)), 1.0)
    most, begun, working = 0, 0, list[tuple[str, str]]()
    for _ in range(120):
        key, _ = queue.next_key(2.0) or pytest.fail("keys wait")
        working.append(key)
        most = max(most, sum(each[0] == "old" for each in working))
        begun += key[0] == "old"
        if key[0] == "new":
            working.remove(key)
            queue.finish(key)
        if len(working) == 3:  # the longest at work has done
            queue.finish(working.pop(0))
    assert most == OTHERS_AT_ONCE
    assert begun >= 20, "a stream of new keys holds up no other"


def test_others_have_all_workers_once_no_new_key_waits() -> None:
    queue = KeyedQueue()
    queue.add_new(("new", "0"), 0.0)
    for number in range(24):
        queue.add(("old", str(number)), 0.0)
    assert len([found for _ in range(25) if (found := queue.next_key(1.0))]) == 25


@pytest.mark.parametrize("new", [False, True])
def test_namespaces_take_turns(new: bool) -> None:
    """Two thousand keys of one namespace, due before, hold up no key of another."""
    queue = KeyedQueue()
    add = queue.add_new if new else queue.add
    for number in range(2000):
        add(("many", str(number)), 0.0)
    for number in range(3):
        add(("few", str(number)), 1.0)
    add(("one", "0"), 1.0)
    taken = [found[0] for _ in range(2004) if (found := queue.next_key(2.0))]
    assert len(taken) == 2004
    assert [place for place, key in enumerate(taken) if key[0] != "many"] == [1, 2, 4, 6]
    assert [key[1] for key in taken if key[0] == "many"] == [str(number) for number in range(2000)]


def test_new_key_that_waits_already_is_taken_once() -> None:
    queue = KeyedQueue()
    queue.add_after(A, 30.0, 0.0)
    queue.add_new(A, 1.0)
    queue.add_new(A, 2.0)
    queue.add(A, 3.0)
    assert queue.next_due() == 1.0
    assert queue.next_key(3.0) == (A, 2.0)
    assert (queue.next_key(40.0), queue.next_due()) == (None, None)


def test_key_being_worked_on_is_not_taken_again_but_is_due_after() -> None:
    queue = KeyedQueue()
    queue.add(A, 0.0)
    assert queue.next_key(0.0)
    queue.add(A, 1.0)
    assert queue.next_key(2.0) is None
    assert queue.next_due() is None
    queue.finish(A)
    assert queue.next_key(3.0) == (A, 2.0)


def test_request_from_outside_overrides_a_longer_delay() -> None:
    queue = KeyedQueue()
    queue.add_after(A, 60.0, 0.0)
    queue.add(A, 1.0)
    assert queue.next_key(1.0) == (A, 0.0)
    queue.finish(A)
    assert queue.next_key(100.0) is None, "the delayed request was merged into the one that ran"


def test_later_request_does_not_postpone_an_earlier_one() -> None:
    queue = KeyedQueue()
    queue.add_after(A, 1.0, 0.0)
    queue.add_after(A, 60.0, 0.0)
    assert queue.next_due() == 1.0


def test_failures_delay_longer_each_time_and_success_clears_them() -> None:
    queue = KeyedQueue()
    delays = [queue.failed(A, 0.0, 0.0) for _ in range(9)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    queue.succeeded(A)
    assert queue.failed(A, 0.0, 0.0) == 0.5


def test_server_that_asks_for_more_time_gets_it() -> None:
    queue = KeyedQueue()
    assert queue.failed(A, 0.0, 0.0, at_least=30.0) == 30.0


def test_every_request_is_followed_by_work_that_began_after_it() -> None:
    """Invariants over random schedules: never two workers on a key; no request without a later start of work."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    queue = KeyedQueue()
    keys = [(f"ns{n % 2}", str(n)) for n in range(5)]
    working: set[tuple[str, str]] = set()
    owed: dict[tuple[str, str], float] = {}
    now = 0.0
    for _ in range(5000):
        now += chance.random()
        match chance.randrange(4):
            case 0:
                key = chance.choice(keys)
                delay = chance.choice([0.0, 0.5, 5.0])
                if delay == 0.0 and chance.random() < 0.5:
                    queue.add_new(key, now)
                else:
                    queue.add_after(key, delay, now)
                owed[key] = min(owed.get(key, float("inf")), now + delay)
            case 1 if working:
                key = chance.choice(sorted(working))
                working.remove(key)
                queue.finish(key)
            case _:
                taken = queue.next_key(now)
                if taken:
                    key, overdue = taken
                    assert key not in working
                    assert owed.pop(key) == pytest.approx(now - overdue)
                    working.add(key)
                else:
                    assert [k for k, due in owed.items() if due <= now and k not in working] == []
    for key in sorted(working):
        queue.finish(key)
    while taken := queue.next_key(now + 100.0):
        owed.pop(taken[0])
    assert owed == {}


def test_jitter_takes_off_at_most_half() -> None:
    assert BACKOFF_SECONDS / 2 <= backoff_seconds(1, 0.999) < backoff_seconds(1, 0.0) == BACKOFF_SECONDS


def test_backoff_stays_finite_after_countless_failures() -> None:
    assert backoff_seconds(10**9, 0.0) == BACKOFF_SECONDS_MAX
