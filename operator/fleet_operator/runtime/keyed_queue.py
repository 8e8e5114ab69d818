"""The work queue: keys and their due times. Pure; the dispatcher does the waiting.

The rules are those of controller-runtime's work queue. A key that is added ten times before work on it begins is worked
on once. A key is never worked on twice at the same time; if it is added during the work, it is due again right after
the work. Each consecutive failure increases the delay before the next attempt, and a success resets the delay. `add`
makes a key due at once, even during its backoff, because somebody may have fixed the cause. Therefore a failing
reconcile must not add its own key. This is why events about the operator's own status writes are ignored.

In addition, new objects overtake waiting objects, so that a new object among thousands soon gets its first status. Work
on a new object costs one request to the API server, work on any other object 10 to 20 requests. A stream of new objects
must not starve the other keys. So even while new keys wait, every fourth start of work goes to a key that is not new.
Of these keys, at most three are worked on concurrently. Among new keys, and among other due keys, namespaces are served
in rotation. The first key of a namespace thus waits for at most one key of each other namespace, however many objects
these namespaces have.

Decision: docs/decisions/0057-cost-of-a-new-group.md.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fleet_operator.runtime.cache import Key

BACKOFF_SECONDS: Final = 0.5
BACKOFF_SECONDS_MAX: Final = 60.0
"""Delay in seconds after the first failure, and its maximum. Each further consecutive failure doubles the delay."""
JITTER_FRACTION: Final = 0.5
"""A random part of each delay, up to this fraction, is subtracted, so that keys that failed together are not retried
together."""
OTHERS_SHARE: Final = 4
"""Every OTHERS_SHARE-th start of work goes to a key that is not new, however many new keys wait."""
OTHERS_AT_ONCE: Final = 3
"""Maximum number of keys that are not new and are worked on concurrently while new keys wait."""


def backoff_seconds(failures: int, chance: float) -> float:
    """The delay in seconds after `failures` consecutive failures (at least 1); `chance` is a random number in [0,
    1)."""
    # The bound 64 avoids an overflow; the maximum delay is reached with far fewer failures.
    grown = BACKOFF_SECONDS * 2.0 ** min(failures - 1, 64)
    return min(grown, BACKOFF_SECONDS_MAX) * (1.0 - JITTER_FRACTION * chance)


Wanted = Callable[[Key, float], bool]


@dataclass(slots=True)
class _Line:
    """Keys with due times, grouped by namespace; namespaces are served in rotation. `wanted` returns False for an
    outdated entry; such an entry is dropped when it is next in its namespace."""

    _waiting: dict[str, deque[tuple[float, Key]]] = field(default_factory=dict)

    def put(self, due: float, key: Key) -> None:
        self._waiting.setdefault(key[0], deque()).append((due, key))

    def first(self, wanted: Wanted) -> tuple[float, Key] | None:
        while self._waiting:
            namespace, entries = next(iter(self._waiting.items()))
            while entries:
                due, key = entries[0]
                if wanted(key, due):
                    return due, key
                entries.popleft()
            del self._waiting[namespace]
        return None

    def pop(self, wanted: Wanted) -> tuple[float, Key] | None:
        """Remove and return the next entry; its namespace is then served last."""
        found = self.first(wanted)
        if found is not None:
            namespace = found[1][0]
            entries = self._waiting.pop(namespace)
            entries.popleft()
            if entries:
                self._waiting[namespace] = entries
        return found


@dataclass(slots=True)
class KeyedQueue:
    """Keys and their due times. All times are seconds of the same monotonic clock."""

    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _new: _Line = field(default_factory=_Line)
    _overdue: _Line = field(default_factory=_Line)
    _picks: int = 0
    _sequence: int = 0
    _working: set[Key] = field(default_factory=set)
    _others: set[Key] = field(default_factory=set)
    """Keys that are being worked on, and that were not taken as new keys."""
    _failures: dict[Key, int] = field(default_factory=dict)

    def add(self, key: Key, now: float) -> None:
        self.add_after(key, 0.0, now)

    def add_after(self, key: Key, delay: float, now: float) -> None:
        """Make a key due after `delay` seconds, unless it is due earlier."""
        due = now + max(delay, 0.0)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._sequence += 1
            # An entry whose time differs from the key's time in `_due` is stale, and is skipped later.
            heapq.heappush(self._heap, (due, self._sequence, key))

    def add_new(self, key: Key, now: float) -> None:
        """Make a new object's key due now, ahead of other waiting keys, unless it is due already."""
        if self._due.get(key, float("inf")) > now:
            self._due[key] = now
            self._new.put(now, key)

    def next_key(self, now: float) -> tuple[Key, float] | None:
        """Start work on a due key. Returns the key and the seconds by which it was overdue, or None if no key is due.

        New keys go first. But every fourth start goes to a key that is not new, if fewer than OTHERS_AT_ONCE such keys
        are being worked on.
        """
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._is_takeable(key, due):
                self._overdue.put(due, key)
        self._picks += 1
        others_first = self._picks % OTHERS_SHARE == 0 and len(self._others) < OTHERS_AT_ONCE
        found = self._next_other() if others_first else None
        found = found or self._new.pop(self._is_takeable) or self._next_other()
        if found is None:
            return None
        due, key = found
        del self._due[key]
        self._working.add(key)
        return key, now - due

    def _next_other(self) -> tuple[float, Key] | None:
        found = self._overdue.pop(self._is_takeable)
        if found is not None:
            self._others.add(found[1])
        return found

    def _is_takeable(self, key: Key, due: float) -> bool:
        """True if work on the entry's key can start now. False for an entry that is stale, and for a key that is being
        worked on; `finish` puts such a key back into the queue."""
        return self._due.get(key) == due and key not in self._working

    def finish(self, key: Key) -> None:
        """End work on a key. A key that was added during the work can then be taken again."""
        self._working.remove(key)
        self._others.discard(key)
        if key in self._due:
            self._sequence += 1
            heapq.heappush(self._heap, (self._due[key], self._sequence, key))

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)

    def failed(self, key: Key, now: float, chance: float, *, at_least: float = 0.0) -> float:
        """Count a failure and schedule the next attempt; return the seconds until that attempt."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        delay = max(backoff_seconds(failures, chance), at_least)
        self.add_after(key, delay, now)
        return delay

    def next_due(self) -> float | None:
        """The time at which the next key can be taken (perhaps in the past), or None if no key is scheduled."""
        found = self._new.first(self._is_takeable) or self._overdue.first(self._is_takeable)
        if found is not None:
            return found[0]
        while self._heap:
            due, _, key = self._heap[0]
            if self._is_takeable(key, due):
                return due
            heapq.heappop(self._heap)
        return None

    def failures(self, key: Key) -> int:
        return self._failures.get(key, 0)

    def depth(self, now: float) -> int:
        """The number of keys that are due and not being worked on. May be called on any thread."""
        return sum(1 for key, due in list(self._due.items()) if due <= now and key not in self._working)

    @property
    def working(self) -> frozenset[Key]:
        return frozenset(self._working)
