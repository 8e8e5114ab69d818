"""Partitions of which nothing comes although their logs go on: their leaders are asked, rarely."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.consumer.engine import Engine
from fleet_consumer.consumer.queries import SILENT_S, SilentPartitions
from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.group.errors import OffsetLookupFailed
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from tests.unit.consumer.lab import ONE, OTHER, Lab


class Silence:
    """A consumer that reads two partitions, and what it asks and reports."""

    def __init__(self) -> None:
        self.lab = Lab().reading(ONE, OTHER)
        self.asked: list[tuple[dict[TopicPartition, int], bool]] = []
        self.tickets: list[Ticket[frozenset[TopicPartition]]] = []
        self.reported: list[tuple[TopicPartition, int]] = []
        fetch: Any = self.lab.fetch
        fetch.unreadable = {}
        fetch.stands = lambda buffer, offset: self.reported.append((buffer.topic_partition, offset))
        engine = SimpleNamespace(
            positions=self.lab.positions, fetch=fetch, group=self, settings=SimpleNamespace(read_committed=True)
        )
        self.now = 1_000.0
        self.silent = SilentPartitions(cast(Engine, engine))

    def find_silent(
        self, places: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> Ticket[frozenset[TopicPartition]]:
        self.asked.append((dict(places), read_committed))
        self.tickets.append(Ticket())
        return self.tickets[-1]

    def passes(self, seconds: float) -> None:
        """Polls that bring what was delivered, ten a second."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            self.lab.taken()
            self.silent.ask(self.now)


def test_partition_that_has_stood_for_long_is_asked_about_and_reported_if_its_leader_fails() -> None:
    silence = Silence()
    silence.passes(SILENT_S - 1)
    assert silence.asked == []
    silence.lab.fetch.deliver(OTHER, 0, 3)
    silence.passes(2)
    assert silence.asked == [({ONE: 0}, True)]
    silence.passes(1)
    assert silence.reported == []
    silence.tickets[0].end(frozenset({ONE}))
    silence.passes(1)
    assert silence.reported == [(ONE, 0)]


def test_questions_are_rare_and_one_follows_the_answer_of_another() -> None:
    silence = Silence()
    silence.passes(10 * SILENT_S)
    assert len(silence.asked) == 1
    silence.tickets[0].end(frozenset())
    silence.passes(10 * SILENT_S)
    assert len(silence.asked) == 2
    silence.tickets[1].end(None, OffsetLookupFailed("its leader is away"))
    silence.passes(1.1 * SILENT_S)
    assert len(silence.asked) == 3
    assert silence.reported == []


def test_paused_sought_and_reported_partitions_are_not_asked_about() -> None:
    silence = Silence()
    silence.passes(1)
    silence.lab.positions.pause((ONE,))
    silence.lab.positions.seek(OTHER, 0)
    silence.passes(SILENT_S)
    assert silence.asked == []
    cast(Any, silence.lab.fetch).unreadable = {OTHER: "why"}
    silence.passes(SILENT_S)
    assert silence.asked == []
    silence.lab.positions.resume((ONE,))
    silence.passes(SILENT_S - 1)
    assert silence.asked == []
    silence.passes(SILENT_S + 1)
    assert silence.asked == [({ONE: 0}, True)]


def test_late_answer_is_about_the_place_that_was_asked_about() -> None:
    """The fetch thread knows whether the partition is read elsewhere by now."""
    silence = Silence()
    silence.passes(SILENT_S + 1)
    silence.lab.fetch.deliver(ONE, 0, 3)
    silence.passes(2 * SILENT_S)
    silence.tickets[0].end(frozenset({ONE}))
    silence.passes(1)
    assert silence.reported == [(ONE, 0)]


def test_only_polls_that_take_records_ask() -> None:
    lab = Lab().reading(ONE)
    checks: list[float] = []
    consumer: Any = Consumer(
        ConsumerSettings(connection=ConnectionSettings(bootstrap_servers=("localhost:1",), client_id="c"))
    )
    cast(Any, lab.fetch).failure = None
    consumer._engine.positions, consumer._engine.fetch, consumer._engine.manual = lab.positions, lab.fetch, True
    consumer._silent.ask = checks.append
    consumer.poll(0.0, max_records=0)
    assert checks == []
    consumer.poll(0.0)
    assert len(checks) == 1
    assert consumer._engine.group.close(leave=False, timeout_s=1)
