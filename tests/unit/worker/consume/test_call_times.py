"""Every call of the handler is one observation, whether it is timed on its own or with its run."""

from __future__ import annotations

import pytest

from fleet_consumer.record import Record
from fleet_consumer.worker.consume.inline import SHORT_RUN, CallTimes
from fleet_consumer.worker.stats import Stats
from tests.support.clock import StillClock
from tests.unit.worker.scripted import P0, Bench

RECORD = Record("t", 0, 0, 0, None, None)


class Timed:
    """Calls that take as long as a test says."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.stats = Stats()
        self.histogram = self.stats.handling
        self.took = 0.0
        self.times = CallTimes(self._handle, self.stats, self.clock)

    def _handle(self, record: Record) -> None:
        self.clock.now += self.took

    def run(self, *took: float) -> None:
        handle = self.times.begin_run(len(took))
        for self.took in took:
            handle(RECORD)
        self.times.end(len(took))

    @property
    def found(self) -> dict[float, int]:
        bounds = (*self.histogram.bounds, float("inf"))
        return {bound: count for bound, count in zip(bounds, self.histogram.counts, strict=True) if count}


def test_slow_calls_are_timed_one_by_one() -> None:
    timed = Timed()
    timed.run(*[0.002] * 50, 0.2)
    assert timed.found == {0.0025: 50, 0.25: 1}


def test_fast_long_runs_are_timed_as_a_whole_and_nothing_is_lost() -> None:
    timed = Timed()
    for _ in range(3):
        timed.run(*[1e-6] * 500)
    assert timed.found == {0.001: 1500}
    assert timed.histogram.total == pytest.approx(1500e-6)


def test_run_that_became_slow_counts_with_its_mean_and_the_next_is_timed_one_by_one() -> None:
    timed = Timed()
    timed.run(*[1e-6] * 500)
    timed.run(*[0.002] * 100)
    timed.run(*[0.002] * 99, 3.0)
    assert timed.found == {0.001: 500, 0.0025: 100 + 99, 5.0: 1}


def test_short_runs_are_always_timed_one_by_one() -> None:
    timed = Timed()
    timed.run(*[1e-6] * 500)
    timed.run(*[1e-6] * (SHORT_RUN - 1), 0.2)
    assert timed.found == {0.001: 500 + SHORT_RUN - 1, 0.25: 1}


def test_time_for_something_else_is_left_out() -> None:
    timed = Timed()
    timed.run(*[1e-6] * 500)
    handle = timed.times.begin_run(500)
    handle(RECORD)
    timed.times.pause()
    timed.clock.now += 60
    timed.times.resume()
    timed.times.end(500)
    assert timed.found == {0.001: 1000}


def test_loop_observes_every_record_once_failed_ones_too() -> None:
    def handle(record: Record) -> None:
        if record.value == b"7":
            raise ValueError("no")

    bench = Bench(handle, {P0: [b"%d" % number for number in range(600)]})
    bench.steps(20)
    assert (bench.stats.done, bench.stats.failed) == (599, 1)
    assert sum(bench.stats.handling.counts) == 600
