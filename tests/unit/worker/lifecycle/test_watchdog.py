"""A handler that does not answer is noticed, named, and told apart from one that is merely busy."""

from __future__ import annotations

import threading

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.call import HandlerCall
from fleet_consumer.record import Record
from fleet_consumer.worker.lifecycle.watchdog import (
    IN_HAND_MAX,
    Hang,
    HangDetector,
    Held,
    InHand,
    PeriodicThread,
    Watch,
    Watchdog,
)
from tests.support.waiting import eventually


def record(offset: int) -> Record:
    return Record("t", 0, offset, 0, None, None)


def held(offset: int) -> Held:
    return Held(record(offset), object(), 5)


def test_same_record_past_the_timeout_is_a_hang_and_past_the_limit_over() -> None:
    detector, stuck = HangDetector(timeout_s=60, limit_s=300), held(7)
    assert detector.detect([stuck], 100.0) == []
    assert detector.detect([stuck], 159.9) == []
    assert detector.detect([stuck], 160.0) == [Hang(stuck.record, 5, 60.0, over=False)]
    assert detector.detect([stuck], 400.0) == [Hang(stuck.record, 5, 300.0, over=True)]


def test_busy_handler_is_no_hang() -> None:
    """Equal records are different ones: only the same object, seen again, shows that nothing moved."""
    detector = HangDetector(timeout_s=1, limit_s=10)
    assert [detector.detect([held(7)], float(now)) for now in range(100)] == [[]] * 100


def test_idle_loop_is_no_hang() -> None:
    detector = HangDetector(timeout_s=1, limit_s=10)
    assert [detector.detect([], float(now)) for now in range(100)] == [[]] * 100


def test_record_after_a_hang_starts_afresh() -> None:
    detector, stuck = HangDetector(timeout_s=60, limit_s=300), held(7)
    detector.detect([stuck], 0.0)
    assert detector.detect([stuck], 70.0)
    after = held(8)
    assert detector.detect([after], 71.0) == []
    assert detector.detect([after], 130.0) == []
    assert detector.detect([after], 131.0) == [Hang(after.record, 5, 60.0, over=False)]


def test_each_of_several_handlers_has_its_own_time() -> None:
    detector, first, second = HangDetector(timeout_s=60, limit_s=300), held(7), held(8)
    detector.detect([first], 0.0)
    detector.detect([first, second], 30.0)
    assert [hang.record.offset for hang in detector.detect([second, first], 60.0)] == [7]
    assert [hang.record.offset for hang in detector.detect([second, first], 90.0)] == [8, 7]


def test_batch_advancing_record_by_record_is_no_hang() -> None:
    detector = HangDetector(timeout_s=60, limit_s=300)
    call = HandlerCall([record(7), record(8)], 5)
    detector.detect([Held(call.records[0], call.records, call.thread)], 0.0)
    call.records = [record(7)]
    assert detector.detect([Held(call.records[0], call.records, call.thread)], 61.0) == []


def test_record_is_in_hand_after_a_second_and_until_its_handler_returns() -> None:
    detector, slow = HangDetector(timeout_s=60, limit_s=300), held(7)
    detector.detect([slow], 100.0)
    detector.detect([slow, held(8)], 100.9)
    assert detector.in_hand(100.9) == []
    detector.detect([slow, held(9)], 101.0)
    assert detector.in_hand(101.0) == [InHand(slow.record, 1.0)]
    detector.detect([held(10)], 102.0)
    assert detector.in_hand(102.0) == []


def test_oldest_records_in_hand_are_shown_and_no_more_than_the_bound() -> None:
    detector = HangDetector(timeout_s=60, limit_s=300)
    calls = [held(offset) for offset in range(IN_HAND_MAX + 20)]
    for count in range(1, len(calls) + 1):
        detector.detect(calls[-count:], float(count))
    seen = detector.in_hand(1000.0)
    assert [each.record.offset for each in seen] == list(range(IN_HAND_MAX + 19, 19, -1))


def test_watchdog_logs_each_hang_once_with_its_place() -> None:
    watch, release, told = Watch(), threading.Event(), []
    watch.record = record(7)

    def a_call_that_never_returns() -> None:
        release.wait()

    hung = threading.Thread(target=a_call_that_never_returns)
    hung.start()
    watchdog = Watchdog(
        watch,
        HangDetector(timeout_s=0, limit_s=3600),
        calls=list,
        clock=SystemClock(),
        duties=[],
        on_hang=lambda hang, stack: told.append((hang.record.offset, stack)),
    )
    watchdog.watched = hung.ident
    watchdog.start()
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


@pytest.mark.parametrize("error", [BrokenPipeError("nobody reads"), MemoryError(), SystemExit(3)])
def test_error_of_one_duty_ends_neither_the_thread_nor_the_other_duties(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[float] = []

    def fails(now: float) -> None:
        raise error

    thread = PeriodicThread("watchdog", [fails, rounds.append], SystemClock())
    thread.start()
    try:
        eventually(lambda: len(rounds) >= 3, timeout_s=30, what="rounds after the error")
    finally:
        thread.close()
    assert thread.beat_at == rounds[-1]
    assert len([each for each in caplog.records if "periodic thread" in each.message]) == 1


def test_error_while_a_hang_is_reported_is_no_end_of_the_reports() -> None:
    watch, told = Watch(), []
    watch.record = record(7)

    def report(hang: Hang, stack: str) -> None:
        told.append(hang.record.offset)
        if len(told) == 1:
            raise OSError("the log is full")

    watchdog = Watchdog(
        watch,
        HangDetector(timeout_s=0, limit_s=3600),
        calls=list,
        clock=SystemClock(),
        duties=[],
        on_hang=report,
    )
    watchdog.watched = threading.get_ident()
    watchdog.start()
    try:
        eventually(lambda: told == [7, 7], timeout_s=30, what="the hang to be reported again")
    finally:
        watchdog.close()
