"""Records of several partitions in turns: what is put back goes to all retry workers alike, not to one after the other.

Pure. Bounded by whoever fills it, who asks `full` before he reads on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from fleet_consumer.record import Record, TopicPartition

HELD_BYTES: Final = 16 * 1024 * 1024
"""About how much may wait for its turn: a fetch of each of 64 partitions."""
RECORD_BYTES: Final = 1_024
"""What a record takes besides its bytes, about: objects for itself, its headers and its place."""


class Turns:
    """Records that were read and not looked at yet, in the order of each partition."""

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        self._held_bytes = held_bytes
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether nothing more should be put in before something is taken."""
        return self._bytes >= self._held_bytes

    def put(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        """Records behind those of the same partition that wait."""
        queue = self._queues.setdefault(partition, deque())
        for record in records:
            queue.append(record)
            self._bytes += _size(record)
        if not queue:
            del self._queues[partition]

    def take(self) -> Iterator[tuple[TopicPartition, Record]]:
        """All that waits, one record of each partition at a time."""
        while self._queues:
            for partition in list(self._queues):
                queue = self._queues[partition]
                record = queue.popleft()
                self._bytes -= _size(record)
                if not queue:
                    del self._queues[partition]
                yield partition, record


def _size(record: Record) -> int:
    own = len(record.key or b"") + len(record.value or b"")
    # A record may have any number of headers: the first hundred say enough.
    return RECORD_BYTES + own + sum(len(name) + len(value or b"") for name, value in islice(record.headers, 100))
