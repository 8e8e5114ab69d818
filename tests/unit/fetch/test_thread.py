"""The fetch thread without a broker: it obeys, it ends, and it does not end silently."""

from __future__ import annotations

import threading

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.fetch.buffer import PartitionBuffer
from fleet_consumer.fetch.librdkafka import SettingsRefused
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group.errors import InternalFailure
from fleet_consumer.record import TopicPartition
from tests.support.waiting import eventually

CONFIG = {"group.id": "g", "auto.offset.reset": "error", "log_level": 0}


def fetch_thread(told: threading.Event) -> FetchThread:
    return FetchThread(CONFIG, name="fetch-test", on_turn=told.set, clock=SystemClock())


def test_value_that_librdkafka_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(SettingsRefused, match=r"queued\.min\.messages"):
        FetchThread(
            {**CONFIG, "queued.min.messages": "many"},
            name="fetch-test",
            on_turn=threading.Event().set,
            clock=SystemClock(),
        )


def test_thread_that_was_never_started_closes() -> None:
    assert fetch_thread(threading.Event()).close(5)


def test_idle_thread_closes_at_once() -> None:
    thread = fetch_thread(threading.Event())
    thread.start()
    assert thread.alive
    assert thread.close(5)
    assert thread.failure is None


def test_command_that_librdkafka_refuses_ends_the_thread_and_is_told() -> None:
    """A partition that is silently not read would be a loss that nobody sees."""
    told = threading.Event()
    thread = fetch_thread(told)
    thread.start()
    part = TopicPartition("t", 0)
    thread.assign({part: (PartitionBuffer(part, 0), -1)})
    thread.assign({part: (PartitionBuffer(part, 0), -1)})
    assert told.wait(10)
    eventually(lambda: not thread.alive, timeout_s=10, what="the thread to end")
    assert isinstance(thread.failure, InternalFailure)
    assert thread.close(1)


def test_commands_about_partitions_that_are_not_assigned_change_nothing() -> None:
    thread = fetch_thread(threading.Event())
    thread.start()
    part = TopicPartition("t", 0)
    thread.unassign(frozenset({part}))
    thread.hold(part)
    thread.unhold(part)
    thread.seek(PartitionBuffer(part, 5))
    assert thread.close(5)
    assert thread.failure is None
