"""Rates of owned partitions: what the estimator makes of offsets, and what a consumer reports to its assignors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fleet_consumer.consumer.rates import ENDS_INTERVAL_S, RateEstimator, RateWatch
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.record import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def observed(*offsets: tuple[float, int]) -> RateEstimator:
    estimator = RateEstimator()
    for at, offset in offsets:
        estimator.observe({T0: offset}, at)
    return estimator


def test_constant_rate_is_found_exactly() -> None:
    assert observed(*((at, 100 * at) for at in range(0, 61, 10))).rates() == {T0: pytest.approx(100.0)}


def test_rate_is_unknown_before_half_a_minute() -> None:
    assert observed((0, 0), (20, 100)).rates() == {}
    assert observed((0, 0), (20, 100), (30, 150)).rates() == {T0: pytest.approx(5.0)}


def test_old_rate_counts_half_after_a_minute() -> None:
    long_ago = [(at, 10 * at) for at in range(0, 10_001, 10)]
    assert observed(*long_ago, (10_060, 100_000)).rates() == {T0: pytest.approx(5.0)}


def test_partition_without_new_records_is_known_as_idle() -> None:
    assert observed((0, 7), (40, 7)).rates() == {T0: 0.0}


def test_offset_that_goes_back_begins_a_new_observation() -> None:
    assert observed((0, 1000), (40, 2000), (50, 10)).rates() == {}


def test_observations_at_the_same_time_are_one() -> None:
    assert observed((0, 0), (40, 400), (40, 500), (40.5, 600)).rates() == {T0: pytest.approx(10.0)}


def test_partition_that_is_not_kept_is_forgotten() -> None:
    estimator = observed((0, 0), (40, 400))
    estimator.keep({T1})
    assert estimator.rates() == {}


class Consumer:
    """The parts of a consumer that a watch asks: owned partitions, their positions, and a group that looks up ends."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {T0: 0, T1: 0}
        self.ends: dict[TopicPartition, int] = {}
        self.answering = True
        self.asked = 0
        self.reported: Mapping[str, Mapping[int, float]] = {}
        self.manual = False
        self.settings = SimpleNamespace(read_committed=False)
        self.group = SimpleNamespace(end_offsets=self.end_offsets)
        self.positions = SimpleNamespace(committable=self.committable)
        self.positions.owned = frozenset(self.offsets)

    def committable(self) -> dict[TopicPartition, Any]:
        return {part: SimpleNamespace(offset=offset) for part, offset in self.offsets.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> Ticket[Any]:
        self.asked += 1
        ticket: Ticket[Any] = Ticket()
        if self.answering:
            ticket.end({part: self.ends[part] for part in partitions if part in self.ends})
        return ticket

    def on_rates(self, rates: Mapping[str, Mapping[int, float]]) -> None:
        self.reported = rates


def run(consumer: Consumer, seconds: int, arriving: int, reading: int) -> Mapping[str, Mapping[int, float]]:
    """Poll every second while records come and are read at these rates; the rates of the last report."""
    watch = RateWatch(consumer, (consumer,))  # type: ignore[arg-type]
    for now in range(seconds):
        consumer.offsets = dict.fromkeys(consumer.offsets, reading * now)
        consumer.ends = dict.fromkeys(consumer.ends, arriving * now)
        watch.update(float(now))
    return consumer.reported


def test_rate_of_arrival_goes_before_that_of_reading() -> None:
    consumer = Consumer()
    consumer.ends = {T0: 0}
    rates = run(consumer, 61, arriving=50, reading=20)
    assert rates["t"] == {0: pytest.approx(50.0), 1: pytest.approx(20.0)}


def test_reading_counts_while_brokers_do_not_answer() -> None:
    consumer = Consumer()
    consumer.answering = False
    assert run(consumer, 61, arriving=50, reading=20)["t"] == {0: pytest.approx(20.0), 1: pytest.approx(20.0)}


def test_ends_are_asked_for_every_ten_seconds() -> None:
    consumer = Consumer()
    run(consumer, 60, arriving=1, reading=1)
    assert consumer.asked == 60 / ENDS_INTERVAL_S


def test_consumer_without_an_assignor_that_takes_rates_asks_nothing() -> None:
    consumer = Consumer()
    RateWatch(consumer, ()).update(0.0)  # type: ignore[arg-type]
    assert consumer.asked == 0


def test_consumer_of_assigned_partitions_asks_nothing() -> None:
    consumer = Consumer()
    consumer.manual = True
    RateWatch(consumer, (consumer,)).update(0.0)  # type: ignore[arg-type]
    assert consumer.asked == 0


def test_partition_that_went_is_not_reported() -> None:
    consumer = Consumer()
    watch = RateWatch(consumer, (consumer,))  # type: ignore[arg-type]
    for now in range(0, 61, 10):
        consumer.offsets = dict.fromkeys(consumer.offsets, now)
        watch.update(float(now))
    consumer.offsets = {T1: 70}
    consumer.positions.owned = frozenset((T1,))
    watch.update(70.0)
    assert consumer.reported["t"].keys() == {1}
