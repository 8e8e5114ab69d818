"""A handler that does not answer is noticed, named, and told apart from one that is merely busy."""

from __future__ import annotations

import threading

from fleet_consumer.clock import SystemClock
from fleet_consumer.record import Record
from fleet_consumer.worker.watchdog import Hang, HangDetector, Watch, Watchdog
from tests.support.waiting import eventually


def record(offset: int) -> Record:
    return Record("t", 0, offset, 0, None, None)


def test_same_record_past_the_timeout_is_a_hang_and_past_the_limit_over() -> None:
    detector, stuck = HangDetector(timeout_s=60, limit_s=300), record(7)
    assert detector.look(stuck, 100.0) is None
    assert detector.look(stuck, 159.9) is None
    assert detector.look(stuck, 160.0) == Hang(stuck, 60.0, over=False)
    assert detector.look(stuck, 400.0) == Hang(stuck, 300.0, over=True)


def test_busy_handler_is_no_hang() -> None:
    """Equal records are different ones: only the same object, seen again, shows that nothing moved."""
    detector = HangDetector(timeout_s=1, limit_s=10)
    assert [detector.look(record(7), float(now)) for now in range(100)] == [None] * 100


def test_idle_loop_is_no_hang() -> None:
    detector = HangDetector(timeout_s=1, limit_s=10)
    assert [detector.look(None, float(now)) for now in range(100)] == [None] * 100


def test_record_after_a_hang_starts_afresh() -> None:
    detector, stuck = HangDetector(timeout_s=60, limit_s=300), record(7)
    detector.look(stuck, 0.0)
    assert detector.look(stuck, 70.0) is not None
    after = record(8)
    assert detector.look(after, 71.0) is None
    assert detector.look(after, 130.0) is None
    assert detector.look(after, 131.0) == Hang(after, 60.0, over=False)


def test_thread_tells_each_hang_once_with_the_place_it_hangs_in() -> None:
    watch, release, told = Watch(), threading.Event(), []
    watch.record = record(7)

    def a_call_that_never_returns() -> None:
        release.wait()

    hung = threading.Thread(target=a_call_that_never_returns)
    hung.start()
    watchdog = Watchdog(
        watch,
        HangDetector(timeout_s=0, limit_s=3600),
        clock=SystemClock(),
        on_look=lambda now: None,
        on_hang=lambda hang, stack: told.append((hang.record.offset, stack)),
    )
    watchdog.start(hung)
    try:
        eventually(lambda: told and watch.due, timeout_s=10, what="the hang to be told, and the loop to be reminded")
        watch.record = record(8)
        eventually(lambda: len(told) == 2, timeout_s=10, what="the next record to be told")
    finally:
        release.set()
        hung.join()
        watchdog.close()
    assert [offset for offset, _ in told] == [7, 8]
    assert "a_call_that_never_returns" in told[0][1]
