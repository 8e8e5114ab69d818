"""Reading from one offset to another ends where it should, whatever is left of what lay between."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from fleet_consumer.fetch.bounded import BoundedReader
from fleet_consumer.record import TopicPartition


class Message:
    """A message of which only the place is asked."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self._offset


class Client:
    """librdkafka's consumer, for a log whose first record is behind what is wanted."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.assigned: list[confluent_kafka.TopicPartition] = []

    def assign(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.assigned = partitions

    def unassign(self) -> None:
        self.assigned = []

    def poll(self, timeout_s: float) -> Message:
        return Message(120)

    def consume(self, number: int, timeout_s: float) -> list[Message]:
        return [Message(121)]


def test_records_that_retention_removes_while_they_are_read_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", Client)
    reader = BoundedReader({})
    assert list(reader.read(TopicPartition("t", 0), 50, 100)) == [[]]
