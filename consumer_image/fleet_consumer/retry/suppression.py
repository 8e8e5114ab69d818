"""Suppression of duplicate hops: each attempt of a record is handled once per partition of a retry topic.

A worker that dies between the acknowledgement of a hop and its commit leaves a hop that its successor writes again.
Both copies would run through all remaining attempts. They have the same identity and lie in the same partition, so the
reader of that partition remembers identities, and skips a copy at a larger offset.

The memory is a window. It ends with the assignment, and begins with the records just before the committed offset.
Pure. One thread uses it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final, NamedTuple

from fleet_consumer.retry.headers import Origin, Story

REBUILD_RECORDS: Final = 1_000
"""Offsets before the committed one that are read again after an assignment: a fraction of a second's reading."""

WINDOW_RECORDS: Final = 10_000
"""The number of records remembered per partition. A dead worker's hops are repeated when its session has ended, while
others go on writing; about 4 MiB for each partition as busy as that."""


class RecordIdentity(NamedTuple):
    """The identity shared by copies of one hop.

    It includes the digest of key and value because headers can be forged: a record that claims another's origin and
    attempt must not suppress that one. It includes the reading because a record that fails again after an offset reset
    is no copy (`retry.reading`).
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
    def __init__(self, size: int = WINDOW_RECORDS) -> None:
        self._size = size
        self._first_seen: dict[RecordIdentity, int] = {}
        self._order: deque[RecordIdentity] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def duplicate(self, identity: RecordIdentity, offset: int) -> bool:
        """Note the record at `offset`; True if a copy of it was seen at a smaller offset.

        The same record read again, because its partition was paused, is no copy.
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
