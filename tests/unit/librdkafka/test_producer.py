"""Fatal errors of librdkafka, as a producer's user sees them: failed writes with a reason, then a new start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet_consumer.librdkafka import producer as module
from fleet_consumer.librdkafka.producer import RecordProducer, SendHandle

DENIED = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no producer id for you", fatal=True)
RIGHT = "allow the principal Write on the topic, or IdempotentWrite on the cluster"

Delivered = Callable[[KafkaError | None, Any], None]


class Acknowledged:
    """A record that librdkafka takes for written; `offset` None where no broker said so of this one."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


WRITTEN, PRESUMED = Acknowledged(7), Acknowledged(None)


class Client:
    """librdkafka's producer: what is told to the next call of each kind, and what was written."""

    made: ClassVar[list[Client]] = []
    raises: ClassVar[dict[str, list[Exception]]] = {}

    def __init__(self, settings: dict[str, Any]) -> None:
        self.waiting: list[Delivered] = []
        self.sent: list[tuple[str, Any, Any, Any]] = []
        self.settings = settings
        self._raise("make")
        self.made.append(self)

    def _raise(self, call: str) -> None:
        if self.raises.get(call):
            raise self.raises[call].pop(0)

    def produce(self, topic: str, value: Any, key: Any, *, on_delivery: Delivered, **rest: Any) -> None:
        self._raise("produce")
        self.waiting.append(on_delivery)
        self.sent.append((topic, key, value, rest))

    def poll(self, timeout_s: float) -> int:
        self._raise("poll")
        return 0

    def flush(self, timeout_s: float) -> int:
        if self.raises.get("flush"):
            self.waiting.clear()  # callbacks that run while an exception is on its way are lost
            self._raise("flush")
        for delivered in self.waiting:
            delivered(None, WRITTEN)
        self.waiting.clear()
        return 0

    def purge(self) -> None:
        waiting, self.waiting = self.waiting, []
        for delivered in waiting:
            delivered(KafkaError(KafkaError._PURGE_QUEUE), None)


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    monkeypatch.setattr(Client, "made", [])
    monkeypatch.setattr(Client, "raises", {})
    monkeypatch.setattr(module, "Producer", Client)
    return Client.made


def lost_behind_a_callback() -> SystemError:
    """A fatal error that comes out after a callback ran."""
    error = SystemError("<function> returned a result with an exception set")
    error.__cause__ = KafkaException(DENIED)
    return error


def send(producer: RecordProducer, topic: str = "t") -> SendHandle:
    return producer.send(topic, key=None, value="v")


def assert_denied(*handles: SendHandle) -> None:
    for handle in handles:
        assert handle.done
        assert handle.error is not None
        assert handle.error.reason == "CLUSTER_AUTHORIZATION_FAILED"
        assert f"topic {handle.topic!r}" in str(handle.error)
        assert RIGHT in str(handle.error)


@pytest.mark.parametrize("error", [KafkaException(DENIED), lost_behind_a_callback()], ids=["plain", "behind"])
def test_fatal_error_of_a_flush_fails_open_sends_and_names_the_right(error: Exception) -> None:
    producer = RecordProducer({})
    handles = [send(producer, topic) for topic in ("one", "two", "one")]
    Client.raises["flush"] = [error]
    assert producer.flush(1.0) == 0
    assert_denied(*handles)


def test_producer_continues_with_a_new_client_after_a_fatal_error(clients: list[Client]) -> None:
    producer = RecordProducer({})
    Client.raises["flush"] = [KafkaException(DENIED)]
    send(producer)
    producer.flush(1.0)
    assert producer.flush(1.0) == 0
    assert len(clients) == 1, "created again only when something is sent"
    again = send(producer)
    assert producer.flush(1.0) == 0
    assert (again.done, again.error) == (True, None)
    assert len(clients) == 2


def test_fatal_error_before_the_first_record_is_raised_by_its_handle() -> None:
    """librdkafka then refuses the record in general words; the reason waits among its callbacks."""
    producer = RecordProducer({})
    Client.raises.update(produce=[KafkaException(KafkaError(KafkaError._FATAL))], poll=[KafkaException(DENIED)])
    assert_denied(send(producer))


def test_fatal_error_while_waiting_for_room_is_raised_by_the_handle() -> None:
    producer = RecordProducer({})
    before = send(producer)
    Client.raises.update(produce=[BufferError("full")], poll=[KafkaException(DENIED)])
    assert_denied(send(producer), before)


def test_records_written_before_a_fatal_error_stay_written() -> None:
    producer = RecordProducer({})
    written = send(producer)
    producer.flush(1.0)
    Client.raises["flush"] = [KafkaException(DENIED)]
    failed = send(producer)
    producer.flush(1.0)
    assert written.error is None
    assert_denied(failed)


def test_every_send_has_a_result_after_a_fatal_error_in_an_abandoned_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = RecordProducer({})
    handle = send(producer)
    Client.raises["flush"] = [KafkaException(DENIED)]
    monkeypatch.setattr(Client, "purge", lambda _: None)
    producer.abandon()
    assert handle.done
    assert handle.error is not None


def test_failed_client_creation_is_raised_by_the_handle_and_retried() -> None:
    producer = RecordProducer({})
    Client.raises.update(flush=[KafkaException(DENIED)], make=[KafkaException(KafkaError(KafkaError._INVALID_ARG))])
    send(producer)
    producer.flush(1.0)
    refused = send(producer)
    assert refused.error is not None
    assert refused.error.reason == "_INVALID_ARG"
    again = send(producer)
    producer.flush(1.0)
    assert (again.done, again.error) == (True, None)


def test_fatal_error_swallowed_by_a_callback_still_ends_the_producer() -> None:
    producer = RecordProducer({})
    handle = send(producer)
    lost = "<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception"
    Client.raises["flush"] = [SystemError(lost)]
    assert producer.flush(1.0) == 0
    assert handle.error is not None
    assert handle.error.reason == "_FATAL"
    assert RIGHT in str(handle.error)


def test_bug_in_a_callback_is_not_taken_for_a_fatal_error() -> None:
    producer = RecordProducer({})
    Client.raises["flush"] = [SystemError("something else")]
    with pytest.raises(SystemError):
        producer.flush(1.0)


def test_handles_that_are_done_are_not_kept() -> None:
    producer = RecordProducer({})
    for _ in range(5 * module.OPEN_KEPT):
        send(producer)
        # As a loop does that never has nothing on its way.
        producer._producer.waiting.pop()(None, WRITTEN)  # type: ignore[attr-defined]
    assert len(producer._open) <= module.OPEN_KEPT


def test_presumed_written_record_is_sent_again_unchanged(clients: list[Client]) -> None:
    """librdkafka takes a batch for written when a later one was, and the broker may have refused the earlier one."""
    producer = RecordProducer({})
    handle = producer.send("t", key=b"k", value=b"v", headers=[("h", b"1")], partition=3)
    clients[0].waiting.pop()(None, PRESUMED)
    assert not handle.done
    first, second = clients[0].sent
    assert first == second == ("t", b"k", b"v", {"headers": [("h", b"1")], "partition": 3})
    assert producer.flush(1.0) == 0
    assert (handle.done, handle.error) == (True, None)


def test_record_never_confirmed_as_written_fails(clients: list[Client]) -> None:
    handle = send(RecordProducer({}))
    for _ in range(module.SENT_MAX):
        assert not handle.done
        clients[0].waiting.pop()(None, PRESUMED)
    assert clients[0].waiting == []
    assert handle.error is not None
    assert handle.error.reason == "NoOffset"
    assert "topic 't'" in str(handle.error)


@pytest.mark.parametrize(
    ("limit", "settings", "batch"),
    [(None, {}, 65_536), (70_000, {}, 70_000), (5_000_000, {}, 1_000_000), (None, {"batch.size": 9}, 9)],
    ids=["unknown", "known", "above librdkafka's own", "the user's"],
)
def test_records_of_any_size_are_left_to_the_broker_and_batches_end_below_its_limit(
    limit: int | None, settings: dict[str, Any], batch: int, clients: list[Client]
) -> None:
    RecordProducer(settings, message_max_bytes=limit)
    assert (clients[0].settings["message.max.bytes"], clients[0].settings["batch.size"]) == (1_000_000_000, batch)


def test_record_refused_as_too_large_is_sent_alone_and_compressed_harder_though_its_topics_limit_is_unknown(
    clients: list[Client],
) -> None:
    producer = RecordProducer({})
    handle = send(producer)
    clients[0].waiting.pop()(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
    assert producer.flush(1.0) == 0
    assert (handle.done, handle.error) == (True, None)
    dense = clients[1].settings
    assert (dense["compression.type"], dense["batch.num.messages"]) == ("zstd", 1), "its batch may have been too large"
