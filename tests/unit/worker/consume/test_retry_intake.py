"""A retry worker handles what is due, once, with its origin's coordinates; what it moves is the place where it read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fleet_consumer.contract import naming
from fleet_consumer.contract.breaker_state import Breakers
from fleet_consumer.contract.policies import Policies
from fleet_consumer.record import Gap, Record, Records, TopicPartition
from fleet_consumer.retry.headers import HeaderList
from fleet_consumer.retry.suppression import REBUILD_RECORDS
from fleet_consumer.worker.consume import intake
from fleet_consumer.worker.consume.pending import Concurrency
from fleet_consumer.worker.consume.progress import NOT_DUE
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import Bench

R0 = TopicPartition(naming.retry_topic("g", "5s"), 0)
REDRIVE = TopicPartition(naming.redrive_topic("g"), 0)
START_MS = 1_700_001_000_000
"""The time of day of a bench that has just begun."""


def waiting_headers(origin_offset: int, attempt: int = 1) -> HeaderList:
    told = {
        "kr-attempt": attempt,
        "kr-origin-topic": "orders",
        "kr-origin-partition": 3,
        "kr-origin-offset": origin_offset,
        "kr-origin-timestamp": 77,
        "kr-first-failed-at": START_MS - 9_000,
    }
    return [("trace", b"t"), *((name, str(value).encode()) for name, value in told.items())]


PAUSE = {"maxFailurePercent": 50, "windowSeconds": 60, "minRecords": 100, "action": "Pause", "cooldownSeconds": 30}


class Shop:
    """A retry worker's loop over one partition, whose records `lay(append time, headers)` puts there."""

    def __init__(
        self,
        handle: Callable[[Record], Any],
        laid: Sequence[tuple[int, HeaderList]],
        *,
        partition: TopicPartition = R0,
        executor: ManualExecutor | None = None,
        committed: int | None = None,
        found: Policies | None = None,
        per_poll: int = 500,
        skips: str | None = None,
        batch: bool = False,
    ) -> None:
        self.laid = list(laid)
        self.handled: list[int] = []
        self.bench = Bench(
            handle,
            {partition: [b"v"] * len(laid)},
            executor=executor,
            concurrency=None
            if executor is None
            else Concurrency.sized(batch=batch, size=executor.size, max_poll_records=500),
            policies=lambda: found or policies("5s", "5s"),
            retry_group="g",
            skips=skips,
        )
        self.partition = partition
        self.consumer = self.bench.consumer
        self.consumer._per_poll = per_poll
        self.consumer.wakeup = lambda: None
        self.consumer.record = self._told
        if committed is not None:
            self.consumer.offsets[partition] = committed

    def lay(self, *laid: tuple[int, HeaderList]) -> None:
        self.laid += laid
        self.consumer.logs[self.partition] += [b"v"] * len(laid)

    def _told(self, record: Record) -> Record:
        append_ms, headers = self.laid[record.offset]
        return dataclasses.replace(record, timestamp=append_ms, headers=headers)

    def pass_time(self, seconds: float) -> None:
        end = self.bench.clock.now + seconds
        while self.bench.clock.now < end:
            self.bench.steps(1)
            assert self.consumer.polls < 10_000, "the loop goes round without letting time pass"


def test_handler_gets_the_origin_and_the_retry_partition_advances() -> None:
    seen: list[Record] = []
    shop = Shop(seen.append, [(START_MS - 5_000, waiting_headers(42))])
    shop.bench.steps(2)
    (record,) = seen
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("orders", 3, 42, 77)
    assert (record.attempt, record.first_failed_at, record.headers) == (1, START_MS - 9_000, [("trace", b"t")])
    assert (record.delivery.topic, record.delivery.offset) == (R0.topic, 0)
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {R0: 1}
    assert shop.bench.stats.done == 1


def test_record_is_handled_at_its_due_time_and_never_early() -> None:
    times: list[float] = []
    shop = Shop(lambda record: times.append(shop.bench.clock.now), [(START_MS, waiting_headers(n)) for n in range(3)])
    shop.pass_time(4.9)
    assert times == []
    ((place, head),) = shop.bench.intake.heads.items()
    assert (place, head.offset, head.due_at) == (R0, 0, START_MS + 5_000)
    shop.pass_time(0.2)
    assert len(times) == 3
    assert 1005.0 <= times[0] < 1005.05
    assert shop.bench.intake.heads == {}


def test_waiting_partition_costs_no_more_polls_than_an_idle_one() -> None:
    shop = Shop(lambda record: None, [(START_MS + 50_000, waiting_headers(0))])
    shop.bench.steps(3)
    polls = shop.consumer.polls
    shop.pass_time(4)
    assert shop.consumer.polls - polls <= 9


def test_records_that_are_due_at_nearly_the_same_time_are_woken_together() -> None:
    times: list[float] = []
    laid = [(START_MS + 2 * n, waiting_headers(n)) for n in range(100)]
    shop = Shop(lambda record: times.append(shop.bench.clock.now), laid)
    shop.pass_time(5.5)
    assert len(times) == 100
    late = [at - 1000 - 5 - 0.002 * n for n, at in enumerate(times)]
    assert round(min(late), 6) >= 0
    assert max(late) < 0.05
    assert len(set(times)) <= 12, "each waking takes all that is due by then"


def test_head_that_waits_is_recomputed_after_the_partition_was_given_back() -> None:
    seen: list[Record] = []
    shop = Shop(seen.append, [(START_MS, waiting_headers(0))])
    shop.pass_time(1)
    shop.consumer.revoke(R0)
    assert (shop.bench.intake.heads, shop.bench.pauses.reasons) == ({}, {})
    shop.consumer.assign(R0)
    shop.bench.steps(2)
    assert shop.bench.pauses.reasons == {R0: {NOT_DUE}}
    shop.pass_time(4.5)
    assert len(seen) == 1


def test_redriven_records_wait_for_nothing() -> None:
    seen: list[Record] = []
    shop = Shop(seen.append, [(START_MS, waiting_headers(7, attempt=0))], partition=REDRIVE)
    shop.bench.steps(2)
    assert [record.offset for record in seen] == [7]


@pytest.mark.parametrize("concurrent", [False, True])
def test_copy_of_a_retry_publish_is_passed_over_counted_and_committed_past(concurrent: bool) -> None:
    seen: list[Record] = []
    executor = ManualExecutor(seen.append, 4) if concurrent else None
    shop = Shop(
        seen.append,
        [
            (0, waiting_headers(1)),
            (0, waiting_headers(2)),
            (0, waiting_headers(1)),
            (0, waiting_headers(1, attempt=2)),
            (0, waiting_headers(2)),
        ],
        executor=executor,
    )
    for _ in range(4):
        shop.bench.steps(1)
        while executor is not None and executor.jobs:
            executor.finish()
    assert [(record.offset, record.attempt) for record in seen] == [(1, 1), (2, 1), (1, 2)]
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {R0: 5}
    assert (shop.bench.stats.suppressed, shop.bench.stats.done) == (2, 3)


def test_copy_is_recognized_after_a_rebalance_from_records_before_the_committed_offset() -> None:
    seen: list[int] = []
    count = REBUILD_RECORDS + 500
    shop = Shop(
        lambda record: seen.append(record.offset), [(0, waiting_headers(n)) for n in range(count)], committed=count
    )
    shop.pass_time(2)
    assert shop.bench.loop.partitions[R0].start == count
    shop.lay((0, waiting_headers(499)), (0, waiting_headers(500)), (0, waiting_headers(9999)))
    shop.bench.steps(2)
    assert seen == [499, 9999], "499 lies before the window"
    assert shop.bench.stats.suppressed == 1
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {R0: count + 3}


def test_revocation_while_history_is_read_commits_nothing_backwards() -> None:
    shop = Shop(lambda record: None, [(0, waiting_headers(n)) for n in range(900)], committed=900)
    stood: list[int] = []

    def revoke() -> None:
        stood.append(shop.consumer.position(R0))
        shop.consumer.revoke(R0)

    shop.bench.steps(1)
    shop.consumer.script.append(revoke)
    shop.bench.steps(1)
    assert stood == [0], "reading begins before the committed offset"
    assert shop.consumer.offsets == {R0: 900}


def test_reading_never_goes_back_before_the_beginning_of_the_log() -> None:
    shop = Shop(lambda record: None, [(0, waiting_headers(n)) for n in range(900)], committed=900)
    shop.consumer.log_starts[R0] = 850
    stood: list[int] = []
    shop.bench.steps(1)
    shop.consumer.script.append(lambda: stood.append(shop.consumer.position(R0)))
    shop.bench.steps(1)
    assert stood == [850]


def test_log_ending_before_the_committed_offset_is_handled_from_its_beginning() -> None:
    """The topic was created again, or a leader lost its end: what lies below the committed offset was never handled."""
    seen: list[int] = []
    shop = Shop(lambda record: seen.append(record.offset), [(0, waiting_headers(n)) for n in range(40)], committed=900)
    shop.bench.steps(2)
    assert shop.consumer.position(R0) == 900, "out of range, so that the reset policy decides"
    shop.consumer.script.append(lambda: shop.consumer.seek(R0, 0))
    shop.bench.steps(2)
    assert seen == list(range(40))


@pytest.mark.parametrize("read_before", [0, 1], ids=["while history is read", "once it is read"])
def test_log_truncated_while_assigned_is_handled_from_the_new_position(
    read_before: int,
) -> None:
    seen: list[int] = []
    shop = Shop(lambda record: seen.append(record.offset), [(0, waiting_headers(n)) for n in range(900)], committed=900)
    shop.consumer.log_starts[R0] = 100
    shop.bench.steps(2 + read_before)
    shop.consumer.logs[R0] = [b"new"] * 30
    shop.consumer.script.append(lambda: shop.consumer.seek(R0, 0))
    shop.bench.steps(2)
    assert seen == list(range(30))


def test_attempts_beyond_the_newest_sequence_are_no_copies_of_each_other() -> None:
    """Their own revision is forgotten, so both are its last attempt; they were two all the same."""
    seen: list[int] = []
    shop = Shop(
        lambda record: seen.append(record.attempt),
        [(0, waiting_headers(1, attempt=5)), (0, waiting_headers(1, attempt=6))],
    )
    shop.bench.steps(2)
    assert (seen, shop.bench.stats.suppressed) == ([2, 2], 0)


def test_clock_that_is_set_back_holds_up_no_record_that_is_due() -> None:
    seen: list[int] = []
    shop = Shop(lambda record: seen.append(record.offset), [(START_MS, waiting_headers(0))])
    shop.pass_time(5.1)
    assert seen == [0]
    wall = shop.bench.clock.wall
    shop.bench.clock.wall = lambda: wall() - 3_600  # type: ignore[method-assign]
    shop.lay((START_MS - 3_594_000, waiting_headers(1)))
    shop.pass_time(7)
    assert seen == [0, 1]


def test_failing_record_goes_to_the_topic_of_its_next_delay_as_it_was_read() -> None:
    def handle(record: Record) -> None:
        raise ValueError("no")

    shop = Shop(
        handle, [(0, waiting_headers(1, attempt=1)), (0, waiting_headers(2, attempt=2))], found=policies("5s", "1m")
    )
    shop.bench.steps(2)
    first, second = shop.bench.producer.written
    assert (first[0], second[0]) == ("_fleet.g.retry.1m", "_fleet.g.failed")
    assert (dict(first[3])["kr-attempt"], dict(second[3])["kr-attempt"]) == (b"2", b"2")
    assert dict(second[3])["kr-origin-offset"] == b"2"
    shop.bench.loop.close(1)
    assert (shop.bench.stats.retried, shop.bench.stats.failed) == (1, 1)
    assert (shop.bench.stats.retry_publishes, shop.bench.stats.failures) == ({"1m": 1}, {"exhausted": 1})


def test_worker_stands_still_while_a_main_workers_breaker_is_open() -> None:
    healed = False

    def handle(record: Record) -> None:
        if not healed:
            shop.bench.breakers = Breakers(open_until=1_700_001_030.0)
            raise ConnectionError("down")

    shop = Shop(handle, [(0, waiting_headers(n)) for n in range(4)], found=policies("5s", "5s", budget=PAUSE))
    shop.pass_time(10)
    assert shop.bench.producer.written == [], "no attempt is used up"
    assert shop.bench.stats.done == 0
    healed = True
    shop.pass_time(21)
    shop.bench.loop.close(1)
    assert (shop.bench.stats.done, shop.consumer.offsets) == (4, {R0: 4})


def test_kept_rest_of_a_run_is_void_once_its_partition_is_sought_back() -> None:
    """A breaker opens among records that are due within a moment of each other: all come again, each once, in order."""
    seen: list[int] = []
    opened = False

    def handle(record: Record) -> None:
        nonlocal opened
        if record.offset == 2 and not opened:
            opened = True
            shop.bench.breakers = Breakers(open_until=shop.bench.clock.wall() + 10)
            raise ConnectionError("down")
        seen.append(record.offset)

    found = policies("5s", "5s", budget=PAUSE)
    shop = Shop(handle, [(START_MS + 100 * n, waiting_headers(n)) for n in range(12)], found=found)
    shop.pass_time(7)
    assert seen == [0, 1]
    assert shop.bench.intake.heads == {}
    shop.pass_time(10)
    assert seen == list(range(12))
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {R0: 12}


@pytest.mark.parametrize("gap_ms", [30, 999, 1_001, 3_000])
@pytest.mark.parametrize("concurrent", [False, True])
def test_gaps_between_due_times_are_waited_for_with_kept_and_refetched_records(gap_ms: int, concurrent: bool) -> None:
    times: list[float] = []
    executor = ManualExecutor(lambda record: times.append(shop.bench.clock.now), 4) if concurrent else None
    laid = [(START_MS + gap_ms * n, waiting_headers(n)) for n in range(6)]
    shop = Shop(lambda record: times.append(shop.bench.clock.now), laid, executor=executor)
    for _ in range(400):
        shop.bench.steps(1)
        while executor is not None and executor.jobs:
            executor.finish()
    assert len(times) == 6
    late = [at - 1005 - gap_ms * n / 1000 for n, at in enumerate(times)]
    assert round(min(late), 6) >= 0
    assert max(late) < 0.05
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {R0: 6}


def test_partition_that_goes_and_comes_back_while_its_rest_is_kept_is_read_again() -> None:
    seen: list[int] = []
    shop = Shop(lambda record: seen.append(record.offset), [(START_MS + 400 * n, waiting_headers(n)) for n in range(4)])
    shop.pass_time(5.1)
    assert seen == [0]
    shop.consumer.revoke(R0)
    shop.consumer.assign(R0)
    shop.pass_time(2)
    assert seen == [0, 1, 2, 3]
    shop.bench.loop.close(1)
    assert (shop.consumer.offsets, shop.bench.stats.suppressed) == ({R0: 4}, 0)


def test_record_that_is_kept_for_a_moment_survives_that_the_poll_passed_the_end_of_its_partition() -> None:
    """The position is then behind the end, not behind the last record: that is no seek."""
    seen: list[Record] = []
    shop = Shop(seen.append, [(START_MS - 4_500, waiting_headers(0))])
    poll, consumer = shop.consumer.poll, shop.consumer

    def poll_past_the_end(timeout_s: float, *, max_records: int | None = None) -> Records:
        records = poll(timeout_s, max_records=max_records)
        if records:
            consumer._positions[R0] += 1
        return Records(records.runs, {R0: Gap(1, 2)} if records else {})

    consumer.poll = poll_past_the_end
    shop.bench.steps(2)
    assert (seen, list(shop.bench.intake._kept)) == ([], [R0])
    shop.pass_time(0.6)
    assert [record.offset for record in seen] == [0]
    shop.bench.loop.close(1)
    assert consumer.offsets == {R0: 2}


def test_history_of_large_records_is_read_from_so_near_that_its_bytes_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records just before the commit are read; a copy of one of them is still found."""
    monkeypatch.setattr(intake, "REBUILD_BYTES", 40)
    laid = [(START_MS - 9_000, waiting_headers(n)) for n in range(500)] + [
        (START_MS - 9_000, waiting_headers(n)) for n in (495, 500)
    ]
    seen: list[Record] = []
    shop = Shop(seen.append, laid, committed=500, per_poll=20)
    read: list[int] = []
    told: Callable[[Record], Record] = shop.consumer.record

    def note(record: Record) -> Record:
        read.append(record.offset)
        return told(record)

    shop.consumer.record = note
    shop.bench.steps(60)
    assert [record.offset for record in seen] == [500]
    assert len(read) <= 80
    assert shop.bench.stats.suppressed == 1


def test_only_so_many_bytes_are_kept_for_a_moment_and_the_rest_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "KEEP_BYTES_MAX", 3)
    seen: list[Record] = []
    shop = Shop(seen.append, [(START_MS - 4_500, waiting_headers(n)) for n in range(3)])
    shop.bench.steps(2)
    assert shop.bench.intake._kept == {}
    shop.pass_time(0.6)
    assert len(seen) == 3
