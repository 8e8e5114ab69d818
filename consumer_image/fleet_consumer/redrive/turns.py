"""Round-robin buffer of several partitions' records, so that the load spreads over all retry workers.

Pure. The caller checks `full` before reading on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from fleet_consumer.record import Record, TopicPartition

BUFFER_BYTES: Final = 16 * 1024 * 1024
"""The approximate limit of the buffer: a fetch of each of 64 partitions."""
RECORD_BYTES: Final = 1_024
"""The approximate overhead of a record: objects for itself, its headers and its place."""


class Turns:
    """Buffered records, in the order of each partition."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._bytes = 0

    @property
    def full(self) -> bool:
        """True if something should be taken before more is put in."""
        return self._bytes >= self._buffer_bytes

    def put(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        queue = self._queues.setdefault(partition, deque())
        for record in records:
            queue.append(record)
            self._bytes += _size(record)
        if not queue:
            del self._queues[partition]

    def take(self) -> Iterator[tuple[TopicPartition, Record]]:
        """Take all records, one of each partition at a time."""
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
