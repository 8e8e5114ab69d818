"""The brokers of the commands by hand, in place of connections: topics, one group without members, and its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from fleet_consumer.group.errors import TopicMissing
from fleet_consumer.librdkafka.bounded import Step
from fleet_consumer.librdkafka.producer import SendHandle
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.commands import empty_group, failed_records, redrive, skip
from fleet_consumer.worker.commands.empty_group import EmptyGroup
from tests.unit.worker.commands.test_reset import Coordinator, group_of

PARTITION = TopicPartition("orders", 3)
ENDS = 20
"""The end of `PARTITION`."""


class Brokers:
    """They give the records from `first` on, those of `aborted` transactions to readers of uncommitted records only."""

    def __init__(self, patch: pytest.MonkeyPatch, *, topics: Mapping[str, int], first: int = 17) -> None:
        self.topics = topics
        self.first = first
        self.aborted: set[int] = set()
        self.coordinator = Coordinator({PARTITION: first})
        self.written: list[tuple[str, bytes | None]] = []
        self._committed_only = False
        patch.setattr(skip, "BoundedReader", self._reader)
        patch.setattr(failed_records, "BoundedReader", self._reader)
        patch.setattr(skip, "RecordProducer", lambda *_, **__: self)
        patch.setattr(skip, "empty_group", self._group)
        patch.setattr(empty_group, "known_groups", lambda *_: {"orders", "payments"})
        patch.setattr(redrive, "_partitions", lambda *_: topics)

    def _group(self, *_: object) -> AbstractContextManager[EmptyGroup]:
        return nullcontext(group_of(self.coordinator))

    def _reader(self, config: Mapping[str, Any], **_: object) -> AbstractContextManager[Brokers]:
        self._committed_only = config["isolation.level"] == "read_committed"
        return nullcontext(self)

    def partitions(self, topic: str) -> list[TopicPartition]:
        if topic not in self.topics:
            raise TopicMissing(f"topic {topic} does not exist, or its partitions have no leader yet")
        return [TopicPartition(topic, number) for number in range(self.topics[topic])]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, ENDS))

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Step]:
        ((part, (first, end)),) = ranges.items()
        hidden = self.aborted if self._committed_only else set()
        offsets = [offset for offset in range(max(first, self.first), end) if offset not in hidden]
        records = [Record(*part, offset, 0, b"k", b"%d" % offset) for offset in offsets]
        yield Step({part: records} if records else {}, frozenset({part}))

    def send(self, topic: str, *, value: bytes | None, **_: object) -> SendHandle:
        self.written.append((topic, value))
        handle = SendHandle(topic)
        handle.done = True
        return handle

    def flush(self, _timeout_s: float) -> int:
        return 0
