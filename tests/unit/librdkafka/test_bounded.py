"""Reading from one offset to another ends where it should, whatever is left of what lay between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet_consumer.group.errors import (
    DataPlaneFailed,
    DataUnreadable,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
)
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka import bounded
from fleet_consumer.librdkafka.bounded import BoundedReader, Step
from fleet_consumer.record import TopicPartition


class Message:
    """A message of which only the place is asked."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self._offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0


class Client:
    """librdkafka's consumer, for a log whose first record is behind what is wanted."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.assigned: list[confluent_kafka.TopicPartition] = []

    def assign(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.assigned = partitions

    def unassign(self) -> None:
        self.assigned = []

    def resume(self, partitions: list[confluent_kafka.TopicPartition]) -> None: ...

    def poll(self, timeout_s: float) -> Message:
        return Message(120)

    def consume(self, number: int, timeout_s: float) -> list[Message]:
        return [Message(121)]


def test_records_that_retention_removes_while_they_are_read_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", Client)
    reader = BoundedReader({})
    part = TopicPartition("t", 0)
    assert list(reader.read({part: (50, 100)})) == [Step({}, frozenset({part}))]


def test_partitions_that_are_read_already_are_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", Client)
    ranges = {PARTS[0]: (100, 100), PARTS[1]: (7, 7)}
    assert list(BoundedReader({}).read(ranges)) == [Step({}, frozenset(PARTS))]


class Corrupt(Client):
    """librdkafka's consumer of two partitions: data of the second cannot be read, and it goes on behind them.

    Like librdkafka, it remembers a pause across assignments.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.sought = 0
        self.paused: set[int] = set()
        self.told: list[Any] = [Message(0), *self._damage(), Message(1)]

    def _damage(self) -> list[Any]:
        named = {"topic": lambda _: "t", "partition": lambda _: 1}
        error = type("Told", (), {"error": lambda _: KafkaError(KafkaError._BAD_MSG, "wrong CRC"), **named})()
        return [error, type("Made", (), {"error": lambda _: None, "offset": lambda _: 70, **named})()]

    def poll(self, timeout_s: float) -> Any:
        return self.told.pop(0) if self.told else None

    def consume(self, number: int, timeout_s: float) -> list[Any]:
        told, self.told = self.told, []
        return told

    def pause(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.paused -= {each.partition for each in partitions}

    def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        assert (partition.partition, partition.offset) == (1, 5)
        self.sought += 1
        self.told = self._damage()


def test_unreadable_data_end_the_reading_when_all_other_partitions_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", Corrupt)
    monkeypatch.setattr(bounded, "filled_records", lambda part, run: [each.offset() for each in run])
    monkeypatch.setattr(bounded, "POLL_S", 0.0)
    reader = BoundedReader({})
    with pytest.raises(DataUnreadable, match="partition t-1: at offset 5: _BAD_MSG: wrong CRC"):
        list(reader.read({PARTS[0]: (0, 2), PARTS[1]: (5, 100)}))
    client: Any = reader._consumer
    assert client.sought == bounded.UNREADABLE_TRIES - 1
    assert client.paused == {1}
    next(reader.read({PARTS[1]: (5, 100)}))
    assert not client.paused, "the next pass would wait permanently for a paused partition"


class Refusing:
    """librdkafka's consumer without a permission: its responses, and its other events."""

    def __init__(self, answered: int, told: int | None = None, *, of_each: bool = False) -> None:
        self._answered, self._told, self._of_each = answered, told, of_each

    def _answer(self) -> list[Any]:
        if not self._of_each:
            raise KafkaException(KafkaError(self._answered))
        answer = confluent_kafka.TopicPartition("t", 0)
        return [type("Answer", (), {"error": KafkaError(self._answered), "topic": answer.topic})]

    def committed(self, partitions: list[Any], timeout_s: float) -> list[Any]:
        return self._answer()

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> list[Any]:
        return self._answer()

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        return topic_of(leaders={0: 1, 1: 1})

    def offsets_for_times(self, partitions: list[Any], *, timeout: float) -> list[Any]:
        return self._answer()

    def poll(self, timeout_s: float) -> Any:
        if self._told is None:
            return None
        error = KafkaError(self._told)
        return type("Told", (), {"error": lambda _: error})()


def reader_of(monkeypatch: pytest.MonkeyPatch, client: Refusing) -> BoundedReader:
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda config: client)
    return BoundedReader({})


def topic_of(leaders: dict[int, int]) -> Any:
    """Metadata of topic `t`, as librdkafka gives it: the leader of each partition."""
    parts = {number: SimpleNamespace(leader=leader) for number, leader in leaders.items()}
    return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions=parts)})


PARTS = [TopicPartition("t", 0), TopicPartition("t", 1)]


@pytest.mark.parametrize("of_each", [True, False], ids=["one partition", "all"])
def test_topic_that_may_not_be_read_is_named_also_when_the_group_was_asked(
    monkeypatch: pytest.MonkeyPatch, of_each: bool
) -> None:
    reader = reader_of(monkeypatch, Refusing(KafkaError.TOPIC_AUTHORIZATION_FAILED, of_each=of_each))
    words = "topic t: not authorized; allow the principal Read on it"
    with pytest.raises(TopicAuthorizationFailed, match=words):
        reader.committed(PARTS)
    with pytest.raises(TopicAuthorizationFailed, match=words):
        reader.commit({PARTS[0]: OffsetAndMetadata(1)})
    with pytest.raises(TopicAuthorizationFailed, match=words):
        reader.bounds(PARTS)


@pytest.mark.parametrize("answered", [KafkaError._TIMED_OUT, KafkaError._WAIT_COORD])
def test_refused_group_is_reported_though_its_answer_never_arrives(
    monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """librdkafka asks for the coordinator again and again, and tells elsewhere why it has none."""
    reader = reader_of(monkeypatch, Refusing(answered, told=KafkaError.GROUP_AUTHORIZATION_FAILED))
    words = "the run's group: not authorized; allow the principal Read on it"
    with pytest.raises(GroupAuthorizationFailed, match=words):
        reader.committed(PARTS)
    with pytest.raises(GroupAuthorizationFailed, match=words):
        reader.commit({PARTS[0]: OffsetAndMetadata(1)})


class OneLeaderAway(Refusing):
    """librdkafka's consumer where the leader of partition 1 does not answer, and partition 2 has none."""

    def __init__(self) -> None:
        super().__init__(KafkaError._TRANSPORT)

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        return topic_of(leaders={0: 1, 1: 2, 2: -1})

    def offsets_for_times(self, partitions: list[Any], *, timeout: float) -> list[Any]:
        if any(each.partition for each in partitions):
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        return [SimpleNamespace(topic=each.topic, partition=0, offset=5, error=None) for each in partitions]


def test_a_leader_that_is_away_hides_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, OneLeaderAway())
    three = [TopicPartition("t", number) for number in range(3)]
    assert reader.bounds(three) == {three[0]: (5, 5)}
    with pytest.raises(DataPlaneFailed):
        reader.bounds(three[1:])
