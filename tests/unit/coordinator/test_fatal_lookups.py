"""A lookup's error that ends the consumer ends it for every later call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from fleet_consumer import Consumer, ConsumerSettings, TopicPartition
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.starts import Starts
from fleet_consumer.group.errors import GroupAuthorizationFailed, OffsetLookupFailed
from fleet_consumer.net import ConnectionSettings


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    connection = ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c")
    consumer = Consumer(ConsumerSettings(connection=connection, group_id="g"))
    yield consumer
    consumer.close(1.0)


def lookup_that_ends_with(consumer: Consumer, error: Exception) -> None:
    consumer.subscribe(["t"])
    assert consumer._engine.positions is not None
    ticket: Ticket[Starts] = Ticket()
    ticket.end(None, error)
    consumer._engine.positions._starts.pending[ticket] = frozenset()


def test_fatal_error_of_a_starting_position_is_raised_by_every_later_call(consumer: Consumer) -> None:
    lookup_that_ends_with(consumer, GroupAuthorizationFailed("no"))
    for call in (lambda: consumer.poll(0), lambda: consumer.poll(0), lambda: consumer.commit(timeout_s=0)):
        with pytest.raises(GroupAuthorizationFailed):
            call()


def test_other_error_of_a_starting_position_is_raised_once(consumer: Consumer) -> None:
    lookup_that_ends_with(consumer, OffsetLookupFailed("no"))
    with pytest.raises(OffsetLookupFailed):
        consumer.poll(0)
    assert list(consumer.poll(0)) == []


def test_fatal_error_of_committed_offsets_is_raised_by_every_later_call(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket: Ticket[Any] = Ticket()
    ticket.end(None, GroupAuthorizationFailed("no"))
    monkeypatch.setattr(cast(Any, consumer)._engine.group, "committed", lambda partitions: ticket)
    with pytest.raises(GroupAuthorizationFailed):
        consumer.committed([TopicPartition("t", 0)])
    with pytest.raises(GroupAuthorizationFailed):
        consumer.subscribe(["t"])
