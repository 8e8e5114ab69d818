"""The fetch thread without a broker: it obeys, it ends, and it does not end silently."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from fleet_consumer.clock import SystemClock
from fleet_consumer.fetch import thread as fetch_module
from fleet_consumer.fetch.buffer import PartitionBuffer
from fleet_consumer.fetch.read_errors import ASK_AGAIN_S, ERROR_LASTS_S
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group.errors import InternalFailure
from fleet_consumer.librdkafka.settings import SettingsRefused
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


def test_command_refused_by_librdkafka_ends_the_thread_and_is_raised() -> None:
    """A partition that is silently not read would be a loss that nobody sees."""
    told = threading.Event()
    thread = fetch_thread(told)
    thread.start()
    part = TopicPartition("t", 0)
    thread.assign([PartitionBuffer(part, 0)])
    thread.assign([PartitionBuffer(part, 0)])
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


class Told:
    """A message of librdkafka's: an error of a partition, or a record of it."""

    def __init__(self, partition: int, code: int | None = None) -> None:
        self._partition = partition
        self._error = None if code is None else KafkaError(code, "refused")

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition


class Client:
    """librdkafka's consumer of two partitions, of which one may not be read: it tells once, until it is sought."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.denied = True
        self.tells = True
        self.sought: list[tuple[int, int]] = []

    def incremental_assign(self, partitions: list[confluent_kafka.TopicPartition]) -> None: ...

    def incremental_unassign(self, partitions: list[confluent_kafka.TopicPartition]) -> None: ...

    def resume(self, partitions: list[confluent_kafka.TopicPartition]) -> None: ...

    def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        self.sought.append((partition.partition, partition.offset))
        self.tells = True

    def poll(self, timeout_s: float) -> Told | None:
        if not (self.denied and self.tells):
            return None
        self.tells = False
        return Told(0, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    def close(self) -> None: ...


class Denied:
    """A fetch thread that has met a partition that may not be read, on a clock of the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.thread = FetchThread(CONFIG, name="fetch-test", on_turn=lambda: None, clock=self)
        self.client: Any = self.thread._consumer
        parts = [TopicPartition("t", number) for number in range(2)]
        self.thread.assign([PartitionBuffer(part, 7) for part in parts])
        self.thread.start()
        eventually(lambda: self.thread.last_error is not None, timeout_s=10, what="the refusal to be told")

    def told_now(self) -> bool:
        return self.thread._errors.denied["t", 0].reported_at == self.now

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Denied]:
    monkeypatch.setattr(confluent_kafka, "Consumer", Client)
    monkeypatch.setattr(fetch_module, "_error", Told.error)
    monkeypatch.setattr(fetch_module, "SERVE_S", 0.005)
    made = Denied()
    yield made
    assert made.thread.close(10)
    assert made.thread.failure is None


def test_unreadable_partition_is_an_error_while_it_lasts(denied: Denied) -> None:
    """librdkafka tells it once; what comes from other partitions says nothing about it."""
    for times in range(1, 6):
        denied.thread._errors.last = None  # as records of another partition have it
        assert "t-0: TOPIC_AUTHORIZATION_FAILED" in str(denied.thread.last_error)
        assert "allow the principal Read on the topic" in str(denied.thread.last_error)
        denied.now += ASK_AGAIN_S
        eventually(denied.told_now, timeout_s=10, what="it to be told again")
        assert denied.client.sought == [(0, 7)] * times


def test_readable_again_partition_is_no_error(denied: Denied) -> None:
    denied.client.denied = False
    denied.now += ASK_AGAIN_S
    eventually(lambda: denied.client.sought, timeout_s=10, what="librdkafka to be asked")
    denied.now += ERROR_LASTS_S
    assert denied.thread.last_error is None
    eventually(lambda: not denied.thread._errors.denied, timeout_s=10, what="it to be forgotten")
    assert denied.client.sought == [(0, 7)]


def test_revoked_unreadable_partition_is_no_error(denied: Denied) -> None:
    denied.thread.unassign(frozenset({TopicPartition("t", 0)}))
    eventually(lambda: denied.thread.last_error is None, timeout_s=10, what="the trouble to end")
