"""Logs that are cut or recreated while they are read: no commit skips unhandled records of the new log."""

from __future__ import annotations

from typing import Any

from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.headers import HeaderList
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.worker.consume.test_retry_intake import R0, START_MS, waiting_headers
from tests.unit.worker.consume.test_retry_intake import Shop as RetryShop
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, Bench, values

CUT = 8


def cut(bench: Bench) -> None:
    """Replace the end of the log from CUT on; the consumer goes back to CUT."""
    bench.consumer.logs[P0] = [*values(CUT), b"new 8", b"new 9", b"new 10"]
    bench.consumer.seek(P0, CUT)


def waiting(shift_ms: int, first: int, end: int) -> list[tuple[int, HeaderList]]:
    """Retry records appended `shift_ms` after START_MS, with origin offsets from `first` to before `end`."""
    return [(START_MS + shift_ms, waiting_headers(number)) for number in range(first, end)]


def commits(bench: Any) -> list[int]:
    """The offsets of all commits from now on."""
    committed: list[int] = []
    commit = bench.consumer.commit

    def recorded(offsets: Any, timeout_s: float) -> None:
        committed.extend(entry.offset for entry in offsets.values())
        commit(offsets, timeout_s)

    bench.consumer.commit = recorded
    return committed


def test_call_with_a_record_of_the_old_end_holds_no_commit_above_the_new_records() -> None:
    executor = ManualExecutor(lambda record: None, 20)
    concurrency = Concurrency.sized(batch=False, size=20, max_poll_records=20)
    bench = Bench(lambda record: None, {P0: values(10)}, executor=executor, concurrency=concurrency)
    bench.consumer.key = lambda value: None
    bench.consumer.wakeup = lambda: None
    bench.steps(1)
    for _ in range(9):
        executor.finish()
    bench.steps(1)
    assert executor.offsets() == [[9]]
    committed = commits(bench)
    cut(bench)
    bench.clock.now += 6
    bench.steps(3)
    assert executor.offsets() == [[9], [8], [9], [10]]
    assert committed[-1:] == [CUT]
    executor.finish(1)
    bench.clock.now += 6
    bench.steps(3)
    assert max(committed) == CUT, "the record at 9 is in hand"
    for _ in range(3):
        executor.finish()
    bench.clock.now += 6
    bench.steps(3)
    assert committed[-1] == 11
    assert bench.stats.done == 13


def test_write_for_a_record_of_the_old_end_holds_no_commit_above_the_new_records() -> None:
    bench: Bench
    seen: list[bytes] = []

    def handle(record: Record) -> Produce | None:
        seen.append(record.value)
        if record.value == b"new 8":
            bench.clock.now += 6
            bench.watch.due = True  # the loop commits between two records of a batch
        return Produce("out", record.value) if record.value in (b"9", b"new 9") else None

    bench = Bench(handle, {P0: values(10)})
    bench.producer.slow = {b"9", b"new 9"}
    bench.steps(1)
    bench.clock.now += 1
    bench.steps(1)
    committed = commits(bench)
    cut(bench)
    bench.clock.now += 1
    bench.steps(1)
    assert seen == [*values(10), b"new 8", b"new 9", b"new 10"]
    assert committed == [9], "8 is handled, 9 is not"
    bench.producer.slow.clear()
    bench.clock.now += 6
    bench.steps(3)
    assert committed[-1] == 11


def test_records_of_the_new_end_that_are_not_begun_are_not_passed() -> None:
    bench = Bench(lambda record: Produce("out", record.value) if record.value == b"9" else None, {P0: values(10)})
    bench.producer.slow = {b"9"}
    bench.steps(2)
    committed = commits(bench)
    cut(bench)
    bench.loop.stop()
    bench.steps(1)
    bench.loop.close(5)
    assert committed[-1] == CUT


def test_waiting_records_of_a_recreated_retry_topic_are_not_passed_when_it_is_given_back() -> None:
    """The broker would accept such a commit: the new topic was read that far, and then sought back to its head."""
    seen: list[int] = []
    shop = RetryShop(lambda record: seen.append(record.offset), waiting(-60_000, 0, 4))
    shop.pass_time(6)
    assert (seen, shop.consumer.offsets) == ([0, 1, 2, 3], {R0: 4})
    shop.laid = waiting(60_000, 10, 16)
    shop.consumer.logs[R0] = [b"v"] * 6
    shop.consumer.seek(R0, 0)
    shop.bench.steps(3)
    shop.consumer.revoke(R0)
    assert shop.consumer.offsets == {R0: 0}


def test_records_kept_for_a_moment_come_again_when_the_log_is_cut_behind_them() -> None:
    seen: list[int] = []
    shop = RetryShop(lambda record: seen.append(record.offset), waiting(-4_200, 0, 6))
    shop.bench.steps(2)
    assert (seen, list(shop.bench.intake._kept)) == ([], [R0])
    del shop.laid[4:]
    shop.consumer.logs[R0] = [b"v"] * 4
    shop.consumer.seek(R0, 4)
    shop.lay((START_MS - 4_200, waiting_headers(14)))
    shop.pass_time(3)
    assert seen == [0, 1, 2, 3, 14]
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {R0: 5}


def test_waiting_records_of_a_recreated_retry_topic_are_not_passed_where_nothing_was_handled() -> None:
    """Its history was read, which is also below the committed offset."""
    laid = waiting(-60_000, 0, 4)
    shop = RetryShop(lambda record: None, laid, committed=4)
    shop.pass_time(6)
    assert shop.bench.loop.partitions[R0].start == 4
    shop.laid = waiting(60_000, 10, 16)
    shop.consumer.logs[R0] = [b"v"] * 6
    shop.consumer.seek(R0, 0)
    shop.bench.steps(3)
    shop.consumer.revoke(R0)
    assert shop.consumer.offsets == {R0: 0}


def test_waiting_records_of_the_old_log_that_are_dropped_do_not_lead_past_those_of_the_new_one() -> None:
    executor = ManualExecutor(lambda record: None, 2)
    shop = RetryShop(lambda record: None, waiting(-60_000, 0, 6), executor=executor)
    shop.bench.steps(2)
    assert len(executor.jobs) == 1, "they have one key"
    shop.laid = waiting(60_000, 10, 16)
    shop.consumer.seek(R0, 0)
    shop.bench.steps(1)
    executor.finish()
    shop.consumer.revoke(R0)
    assert shop.consumer.offsets == {R0: 0}
