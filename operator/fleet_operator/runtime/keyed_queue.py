"""Keys and when each is due: the pure half of the work queue.

The rules are those of controller-runtime's work queue. A key that is asked for ten times before its turn is worked on
once. A key is never worked on twice at once: what is asked for while it is being worked on is due again right after.
A failure delays the key's next turn, longer with each failure in a row; a success clears that. A request from outside
(`add`) is due at once even for a key that is backing off: somebody may have fixed the cause. Work that keeps failing
therefore must not cause its own requests (the watch filters those).

Beyond those rules, new objects pass those that wait: whoever creates an object among thousands that are being worked on
sees its first status soon. A turn of a new object is one request to the API server, a turn of another one may be
twenty; so while new ones wait, at most three of the others are worked on at once, and no more than every fourth turn is
theirs. They always have these, or a stream of new objects would hold up all others.
Among new keys, and among those that are due, the namespaces take turns: however many objects one of them has, and
however long each takes, a key of another waits for one of each namespace at most.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fleet_operator.runtime.cache import Key

BACKOFF_SECONDS: Final = 0.5
BACKOFF_SECONDS_MAX: Final = 60.0
"""The delay after the first failure, doubled with each further one in a row, and the longest."""
JITTER_FRACTION: Final = 0.5
"""Up to this part of a delay is taken off at random, so that keys that failed together do not come back together."""
OTHERS_TURN: Final = 4
"""Of so many turns one is for keys that wait in their order, however many new ones there are."""
OTHERS_AT_ONCE: Final = 3
"""While new keys wait, no other key is begun while so many new ones are being worked on."""


def backoff_seconds(failures: int, chance: float) -> float:
    """The delay after the n-th failure in a row (1 is the first), given `chance` in [0, 1)."""
    # Beyond this exponent the maximum has long been reached; the bound keeps the power finite.
    grown = BACKOFF_SECONDS * 2.0 ** min(failures - 1, 64)
    return min(grown, BACKOFF_SECONDS_MAX) * (1.0 - JITTER_FRACTION * chance)


Wanted = Callable[[Key, float], bool]


@dataclass(slots=True)
class _Line:
    """Keys with the times at which they were due: one of each namespace in turn, each namespace's in their order.

    Entries that are met and not wanted are dropped.
    """

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

    def take(self, wanted: Wanted) -> tuple[float, Key] | None:
        """The next entry; its namespace comes last from now on."""
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
    """Keys and when each is due. All times are seconds on one clock that never goes back."""

    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _new: _Line = field(default_factory=_Line)
    _overdue: _Line = field(default_factory=_Line)
    _turn: int = 0
    _sequence: int = 0
    _working: set[Key] = field(default_factory=set)
    _others: set[Key] = field(default_factory=set)
    """Those being worked on that were not taken as new ones."""
    _failures: dict[Key, int] = field(default_factory=dict)

    def add(self, key: Key, now: float) -> None:
        """Ask for a key to be worked on as soon as possible."""
        self.add_after(key, 0.0, now)

    def add_after(self, key: Key, delay: float, now: float) -> None:
        """Ask for a key to be worked on after `delay` seconds, or sooner if it is already due sooner."""
        due = now + max(delay, 0.0)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._sequence += 1
            # An entry whose time no longer equals `_due` is stale and skipped when it comes up.
            heapq.heappush(self._heap, (due, self._sequence, key))

    def add_new(self, key: Key, now: float) -> None:
        """Ask for a key to be worked on before those that wait, unless it waits itself."""
        if self._due.get(key, float("inf")) > now:
            self._due[key] = now
            self._new.put(now, key)

    def take(self, now: float) -> tuple[Key, float] | None:
        """Start work on a key that is due; returns it with the seconds it was overdue, or None.

        New keys come first, but for every fourth turn while few others are being worked on.
        """
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._is_takeable(key, due):
                self._overdue.put(due, key)
        self._turn += 1
        others_first = self._turn % OTHERS_TURN == 0 and len(self._others) < OTHERS_AT_ONCE
        found = self._take_other() if others_first else None
        found = found or self._new.take(self._is_takeable) or self._take_other()
        if found is None:
            return None
        due, key = found
        del self._due[key]
        self._working.add(key)
        return key, now - due

    def _take_other(self) -> tuple[float, Key] | None:
        found = self._overdue.take(self._is_takeable)
        if found is not None:
            self._others.add(found[1])
        return found

    def _is_takeable(self, key: Key, due: float) -> bool:
        """False for an entry that is stale, and for a key being worked on, which `finish` brings back."""
        return self._due.get(key) == due and key not in self._working

    def finish(self, key: Key) -> None:
        """End work on a key; what was asked for meanwhile becomes takeable."""
        self._working.remove(key)
        self._others.discard(key)
        if key in self._due:
            self._sequence += 1
            heapq.heappush(self._heap, (self._due[key], self._sequence, key))

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)

    def failed(self, key: Key, now: float, chance: float, *, at_least: float = 0.0) -> float:
        """Count a failure and schedule the next attempt; returns the seconds until then."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        delay = max(backoff_seconds(failures, chance), at_least)
        self.add_after(key, delay, now)
        return delay

    def next_due(self) -> float | None:
        """The time at which the next key can be taken (maybe in the past), or None while nothing is scheduled."""
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
        """The number of keys that are due and not being worked on. Any thread."""
        return sum(1 for key, due in list(self._due.items()) if due <= now and key not in self._working)

    @property
    def working(self) -> frozenset[Key]:
        return frozenset(self._working)
