"""A suspected record that is parked is still in hand: later records of its key wait, and a death would count."""

from __future__ import annotations

import pytest

from fleet_consumer.record import Record
from fleet_consumer.retry.failure import HttpStatus
from fleet_consumer.retry.headers import ReplayEpoch
from fleet_consumer.worker.consume.crash_guard import CrashMarker, read_crash_marker
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, P1, Bench, values

WRONG = HttpStatus(404, "404")
WRONG.endpoint = True


class Successor:
    """A worker of a partition whose last owner died; its endpoint refuses the first call, as during a start."""

    def __init__(self, count: int) -> None:
        self.refusals = 1
        self.handled: list[tuple[int, int]] = []
        self.executor = ManualExecutor(self._handle, 2)
        concurrency = Concurrency.sized(batch=False, size=2, max_poll_records=20)
        logs = {P0: values(count), P1: values(0)}
        self.bench = Bench(self._handle, logs, executor=self.executor, concurrency=concurrency)
        self.consumer = self.bench.consumer
        self.consumer.wakeup = lambda: None
        self.consumer.offsets[P0] = 0
        self.consumer.metadata[P0] = f"{CrashMarker(None, by='a').text} {ReplayEpoch().metadata(0)}"

    def _handle(self, record: Record) -> None:
        if record.partition == P0.partition and self.refusals:
            self.refusals -= 1
            raise WRONG
        self.handled.append((record.partition, record.offset))

    def work(self, seconds: float) -> None:
        end = self.bench.clock.now + seconds
        while self.bench.clock.now < end:
            self.bench.clock.now += 0.1
            self.bench.steps(1)
            while self.executor.jobs:
                self.executor.finish()


@pytest.mark.parametrize("known", [1, 3])
def test_record_after_a_parked_suspected_record_waits_for_it(known: int) -> None:
    """`known` records were in the log at the takeover; care ends after them."""
    worker = Successor(known)
    worker.work(1)
    worker.consumer.logs[P0] += values(3)
    worker.work(15)
    assert worker.handled == [(0, offset) for offset in range(known + 3)]
    assert worker.consumer.offsets[P0] == known + 3


def test_parked_suspected_record_counts_as_in_hand_until_it_is_handled() -> None:
    worker = Successor(3)
    worker.refusals = 10
    worker.work(12)
    marker = read_crash_marker(worker.consumer.metadata[P0])
    assert marker is not None
    assert (worker.consumer.offsets[P0], marker.count) == (0, 1)


def test_other_partitions_continue_while_a_suspected_record_is_parked() -> None:
    worker = Successor(1)
    worker.work(1)
    worker.consumer.logs[P1] += values(4)
    worker.work(2)
    assert sorted(worker.handled) == [(1, offset) for offset in range(4)]


def test_parked_suspected_record_is_given_back_and_read_again() -> None:
    worker = Successor(3)
    worker.work(1)
    worker.consumer.script.append(lambda: worker.consumer.revoke(P0))
    worker.work(1)
    assert worker.consumer.offsets[P0] == 0
    worker.consumer.script.append(lambda: worker.consumer.assign(P0))
    worker.work(15)
    assert worker.handled == [(0, offset) for offset in range(3)]
    assert worker.consumer.offsets[P0] == 3


def test_slow_call_of_another_partition_does_not_delay_a_parked_suspected_record() -> None:
    worker = Successor(1)
    worker.work(1)
    worker.consumer.logs[P1] += values(1)
    worker.bench.steps(2)
    (slow,) = worker.executor.jobs
    worker.executor.jobs.clear()
    worker.work(6)
    assert worker.handled == [(0, 0)]
    worker.executor.jobs.append(slow)
    worker.work(6)
    assert worker.handled == [(0, 0), (1, 0)]
