"""Copies of a hop that was written twice: each attempt of a record is handled once for each partition of a retry topic.

A worker that dies between the acknowledgement of a hop and its commit leaves a hop that its successor writes again.
Both copies would run through all remaining attempts. They have the same identity and lie in the same partition, so
whoever reads that partition remembers what it saw: a copy at a larger offset than one before is left out.

The memory is a window. It ends with the assignment, and begins with the records just before the committed offset.
Pure. One thread uses it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final, NamedTuple

from fleet_consumer.retry.headers import Origin, Story

REBUILD_RECORDS: Final = 1_000
"""How far before the committed offset reading begins after an assignment: a fraction of a second's reading."""

WINDOW_RECORDS: Final = 10_000
"""How many records of a partition are remembered while it stays. A dead worker's hops are repeated when its session
has ended, and others go on writing meanwhile; about 4 MiB for each partition that is as busy as that."""


class RecordIdentity(NamedTuple):
    """What makes two records copies of one hop.

    The digest of key and value stands in it because headers can be forged: a record that claims another's origin and
    attempt must not make that one disappear. The reading stands in it because a record that fails again after an offset
    reset is no copy of what it was before (`retry.reading`).
    """

    origin: Origin
    attempt: int
    redrive_count: int
    reading: str | None
    digest: bytes


def identity(story: Story, key: bytes | None, value: bytes | None) -> RecordIdentity:
    """The identity of a record with this story, and these bytes as they were read."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (key, value):
        # Lengths, so that bytes cannot move from key to value; -1 for what is null and not empty.
        digest.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True))
        digest.update(part or b"")
    return RecordIdentity(story.origin, story.attempt, story.redrive_count, story.reading, digest.digest())


class Window:
    """What was seen of one partition."""

    def __init__(self, size: int = WINDOW_RECORDS) -> None:
        self._size = size
        self._first_seen: dict[RecordIdentity, int] = {}
        self._order: deque[RecordIdentity] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def duplicate(self, identity: RecordIdentity, offset: int) -> bool:
        """Take note of the record at `offset`; whether a copy of it was seen at a smaller one.

        The same record read again, because its partition waited or was held, is no copy.
        """
        first = self._first_seen.get(identity)
        if first is not None and first <= offset:
            return first < offset
        if first is None:
            self._order.append(identity)
        self._first_seen[identity] = offset
        if len(self._order) > self._size:
            del self._first_seen[self._order.popleft()]
        return False
