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
from fleet_consumer.fetch.read_errors import ASK_AGAIN_S, READ_AGAIN_S
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group.errors import DataUnreadable, InternalFailure
from fleet_consumer.librdkafka.settings import SettingsRefused
from fleet_consumer.record import TopicPartition
from tests.support.waiting import eventually

CONFIG = {"group.id": "g", "auto.offset.reset": "error", "log_level": 0}


def fetch_thread(told: threading.Event) -> FetchThread:
    return FetchThread(CONFIG, name="fetch-test", on_released=told.set, clock=SystemClock())


def test_value_that_librdkafka_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(SettingsRefused, match=r"queued\.min\.messages"):
        FetchThread(
            {**CONFIG, "queued.min.messages": "many"},
            name="fetch-test",
            on_released=threading.Event().set,
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
    """A message of librdkafka's: an error of a partition, its end, or a record of it."""

    def __init__(self, partition: int, code: int | None = None, offset: int = 7, epoch: int | None = None) -> None:
        self._partition = partition
        self._error = None if code is None else KafkaError(code, "refused")
        self._offset = offset
        self._epoch = epoch

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int | None:
        return self._epoch

    def __len__(self) -> int:
        return 1


class Client:
    """librdkafka's consumer of two partitions, of which one cannot be read: it tells once, until it is sought."""

    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    junk: tuple[Told, ...] = ()

    def __init__(self, config: dict[str, Any]) -> None:
        self.fails = True
        self.tells: list[Told] = [Told(0, self.code), *self.junk]
        self.sought: list[tuple[int, int]] = []
        self.epochs: list[int | None] = []
        self.paused = False

    def incremental_assign(self, partitions: list[confluent_kafka.TopicPartition]) -> None: ...

    def incremental_unassign(self, partitions: list[confluent_kafka.TopicPartition]) -> None: ...

    def pause(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.paused = True

    def resume(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.paused = False

    def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        self.sought.append((partition.partition, partition.offset))
        self.epochs.append(partition.leader_epoch)
        self.tells = [Told(0, self.code if self.fails else KafkaError._PARTITION_EOF)]

    def poll(self, timeout_s: float) -> Told | None:
        return self.tells.pop(0) if self.tells else None

    def close(self) -> None: ...


class Failing:
    """A fetch thread that has met a partition that cannot be read, on a clock of the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.thread = FetchThread(CONFIG, name="fetch-test", on_released=lambda: None, clock=self)
        self.client: Any = self.thread._consumer
        self.buffers = [PartitionBuffer(TopicPartition("t", number), 7, 3) for number in range(2)]
        self.thread.assign(self.buffers)
        self.thread.start()
        eventually(lambda: self.thread.last_error is not None, timeout_s=10, what="the failure to be told")

    def passes(self, seconds: float) -> None:
        """Time passes, and the thread has read again, as often as it does so."""
        times = len(self.client.sought) + 1
        self.now += seconds
        done = lambda: len(self.client.sought) == times and not self.client.tells  # noqa: E731
        eventually(done, timeout_s=10, what="librdkafka to be asked")

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Failing]:
    monkeypatch.setattr(confluent_kafka, "Consumer", getattr(request, "param", Client))
    monkeypatch.setattr(fetch_module, "_error", Told.error)
    monkeypatch.setattr(fetch_module, "_offset", Told.offset)
    monkeypatch.setattr(fetch_module, "_partition", Told.partition)
    monkeypatch.setattr(fetch_module, "_topic", Told.topic)
    monkeypatch.setattr(fetch_module, "SERVE_S", 0.005)
    made = Failing()
    yield made
    assert made.thread.close(10)
    assert made.thread.failure is None


def test_partition_that_may_not_be_read_is_an_error_while_it_lasts(failing: Failing) -> None:
    """librdkafka tells it once; what comes from other partitions says nothing about it."""
    for times in range(1, 6):
        failing.client.tells = [Told(1)]
        eventually(lambda: not failing.client.tells, timeout_s=10, what="a record of another partition")
        assert "t-0: TOPIC_AUTHORIZATION_FAILED" in str(failing.thread.last_error)
        assert "allow the principal Read on the topic" in str(failing.thread.last_error)
        failing.passes(ASK_AGAIN_S)
        assert failing.client.sought == [(0, 7)] * times
    assert failing.thread.unreadable == {}


def test_partition_that_is_read_to_its_end_again_is_no_error(failing: Failing) -> None:
    failing.client.fails = False
    failing.passes(ASK_AGAIN_S)
    eventually(lambda: failing.thread.last_error is None, timeout_s=10, what="the error to end")
    assert failing.client.sought == [(0, 7)]


def test_partition_of_which_a_record_comes_is_no_error(failing: Failing) -> None:
    failing.client.tells = [Told(0)]
    eventually(lambda: failing.thread.last_error is None, timeout_s=10, what="the error to end")


def test_revoked_unreadable_partition_is_no_error(failing: Failing) -> None:
    failing.thread.unassign(frozenset({TopicPartition("t", 0)}))
    eventually(lambda: failing.thread.last_error is None, timeout_s=10, what="the trouble to end")


class Corrupt(Client):
    """One whose data are corrupt: librdkafka reads on in them, and then at an offset that it found there."""

    code = KafkaError._BAD_MSG
    junk = (Told(0, KafkaError._NOT_IMPLEMENTED), Told(0, KafkaError._AUTO_OFFSET_RESET), Told(0, offset=99))


@pytest.mark.parametrize("failing", [Corrupt], indirect=True)
def test_nothing_behind_unreadable_data_is_taken_before_reading_stands_there_again(failing: Failing) -> None:
    part = TopicPartition("t", 0)
    eventually(lambda: not failing.client.tells, timeout_s=10, what="what librdkafka made up")
    assert not failing.thread.read_ahead.pending
    assert failing.client.paused
    found = failing.thread.unreadable[part]
    assert isinstance(found.error, DataUnreadable)
    assert "partition t-0: _BAD_MSG: refused; reading is stopped at offset 7" in str(found.error)
    for _ in range(3):
        failing.passes(READ_AGAIN_S)
        assert (failing.thread.unreadable[part].offset, failing.thread.unreadable[part].since) == (7, 100.0)
    failing.client.fails = False
    failing.passes(READ_AGAIN_S)
    eventually(lambda: not failing.thread.unreadable, timeout_s=10, what="the error to end")
    assert failing.client.sought == [(0, 7)] * 4
    assert not failing.client.paused


@pytest.mark.parametrize("failing", [Client, Corrupt], indirect=True)
def test_partition_is_read_again_in_the_epoch_up_to_which_it_was_read_and_that_place_is_reported(
    failing: Failing,
) -> None:
    """Without the epoch, a truncation is not noticed if it happens while the log cannot be read."""
    eventually(lambda: not failing.client.tells, timeout_s=10, what="what librdkafka made up")
    failing.client.fails = False
    failing.passes(ASK_AGAIN_S)
    eventually(lambda: not failing.thread.unreadable, timeout_s=10, what="the error to end")
    failing.client.tells = [Told(0, offset=7, epoch=4), Told(0, Client.code)]
    eventually(lambda: failing.thread.last_error is not None, timeout_s=10, what="the next failure")
    failing.passes(ASK_AGAIN_S)
    assert failing.client.sought == [(0, 7), (0, 8)]
    assert failing.client.epochs == [3, 4]
    assert failing.thread.sought.take() == [(failing.buffers[0], 7, 3)], "the place of the oldest epoch"
    assert failing.thread.sought.take() == []


class BrokerFails(Client):
    """One whose broker answers that it cannot read its log (UNKNOWN_SERVER_ERROR)."""

    code = KafkaError.UNKNOWN


@pytest.mark.parametrize("failing", [BrokerFails], indirect=True)
def test_place_at_which_a_broker_fails_is_unreadable(failing: Failing) -> None:
    assert list(failing.thread.unreadable) == [TopicPartition("t", 0)]
    failing.client.fails = False
    failing.passes(READ_AGAIN_S)
    eventually(lambda: not failing.thread.unreadable, timeout_s=10, what="the error to end")


def test_partition_found_to_stand_at_unreadable_data_is_reported_until_it_is_read(failing: Failing) -> None:
    """librdkafka itself reports nothing of it."""
    silent, thread = failing.buffers[1], failing.thread
    thread.stands(silent, 7)
    eventually(lambda: thread.unreadable, timeout_s=10, what="the report")
    ((part, found),) = thread.unreadable.items()
    assert (part, found.offset, found.since) == (TopicPartition("t", 1), 7, 100.0)
    assert "partition t-1: its leader returns neither records nor an error at offset 7" in str(found.error)
    failing.client.fails = False
    failing.passes(READ_AGAIN_S)
    assert failing.client.sought == [(1, 7)]
    failing.client.tells = [Told(1)]
    eventually(lambda: not thread.unreadable, timeout_s=10, what="the report to end")


def test_partition_that_has_moved_on_is_not_reported_to_stand(failing: Failing) -> None:
    thread = failing.thread
    thread.stands(failing.buffers[1], 6)
    thread.stands(PartitionBuffer(TopicPartition("t", 1), 7), 7)
    thread.stands(failing.buffers[1], 7)
    eventually(lambda: thread.unreadable, timeout_s=10, what="the last report")
    assert [each.offset for each in thread.unreadable.values()] == [7]


@pytest.mark.parametrize("failing", [Corrupt], indirect=True)
def test_seek_away_from_unreadable_data_reads_there(failing: Failing) -> None:
    eventually(lambda: not failing.client.tells, timeout_s=10, what="what librdkafka made up")
    failing.client.fails = False
    failing.thread.seek(PartitionBuffer(TopicPartition("t", 0), 30))
    eventually(lambda: not failing.thread.unreadable, timeout_s=10, what="the error to end")
    assert failing.client.sought == [(0, 30)]
    assert not failing.client.paused
