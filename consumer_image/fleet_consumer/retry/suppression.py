"""Suppression of duplicate retry publishes: each attempt of a record is handled once per partition of a retry topic.

If a worker dies between the acknowledgement of a retry publish and its own commit, its successor repeats the publish.
Without suppression, both copies would run through all remaining attempts. The copies have the same identity and are in
the same partition. So the reader of this partition remembers the identities of the last records, the window, and skips
a copy at a larger offset. After an assignment, the window is filled with the records just before the committed offset.
No I/O. Not thread-safe.

Decision: docs/decisions/0013-retry-identity.md.
"""

import hashlib
from collections import deque
from typing import Final, NamedTuple

from fleet_consumer.retry.headers import Origin, RetryHistory

REBUILD_RECORDS: Final = 1_000
"""Number of offsets before the committed offset that are read again after an assignment to fill the window. This takes
a fraction of a second."""

WINDOW_RECORDS: Final = 10_000
"""Number of records remembered per partition, about 4 MiB. The window must hold all records that are written to the
partition between a publish and its repetition. A successor repeats the publish only after the dead worker's session
timeout, and other workers write to the partition in this time."""


class RecordIdentity(NamedTuple):
    """The identity that the copies of one retry publish share.

    The identity includes a digest of key and value because headers can be forged. A record that claims another record's
    origin and attempt must not suppress the other record. It includes the replay epoch because a failure after an
    offset reset is not a copy (`retry.headers.ReplayEpoch`). `attempt` is not clamped, because clamping would make two
    attempts look the same.
    """

    origin: Origin
    attempt: int
    redrive_count: int
    replay_epoch: str | None
    digest: bytes


def identity(history: RetryHistory, key: bytes | None, value: bytes | None) -> RecordIdentity:
    """Return the identity of a record, from its retry history and from its key and value before decoding."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (key, value):
        # The lengths separate key from value, and -1 distinguishes null from empty.
        digest.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True))
        digest.update(part or b"")
    return RecordIdentity(history.origin, history.attempt, history.redrive_count, history.replay_epoch, digest.digest())


class Window:
    """The identities of the last `size` records of one partition of a retry topic."""

    def __init__(self, size: int = WINDOW_RECORDS) -> None:
        self._size = size
        self._first_seen: dict[RecordIdentity, int] = {}
        self._order: deque[RecordIdentity] = deque()

    def duplicate(self, identity: RecordIdentity, offset: int) -> bool:
        """Remember the record at `offset`. Returns True if a copy of the record was seen at a smaller offset. If the
        same record is read again at the same offset, after a pause of its partition, it is not a copy."""
        first = self._first_seen.get(identity)
        if first is not None and first <= offset:
            return first < offset
        if first is None:
            self._order.append(identity)
        self._first_seen[identity] = offset
        if len(self._order) > self._size:
            del self._first_seen[self._order.popleft()]
        return False
