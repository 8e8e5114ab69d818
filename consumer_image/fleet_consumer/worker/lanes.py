"""What may be handled now, when several records are handled at once: the order that keys ask for, and nothing more.

A lane is what has to stay in order: the records of one key in one partition, or a partition's batches. One piece of
work of a lane is out at a time, the next only when it has come back. Work without a lane is free. Lanes take turns in
the order in which they became ready, so that no key starves another. Pure: no thread, no clock; one thread uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

L = TypeVar("L", bound=Hashable)
W = TypeVar("W")


class Lanes(Generic[L, W]):
    """Work that waits, by lane. What `next` has given out comes back by `done`."""

    def __init__(self) -> None:
        # A lane stands here while it has work waiting or out; its deque holds what waits.
        self._waiting: dict[L, deque[W]] = {}
        self._out: set[L] = set()
        # Lanes whose first piece may go, each once, and free pieces. A lane that was emptied meanwhile is passed over.
        self._ready: deque[tuple[L | None, W | None]] = deque()

    def add(self, lane: L | None, work: W) -> None:
        """Put work behind everything that waits in its lane; None is no lane."""
        if lane is None:
            self._ready.append((None, work))
            return
        waiting = self._waiting.get(lane)
        if waiting is not None:
            waiting.append(work)
        else:
            self._waiting[lane] = deque((work,))
            self._ready.append((lane, None))

    def next(self) -> tuple[L | None, W] | None:
        """Give out the next piece that may go, with its lane; None when there is none."""
        while self._ready:
            lane, free = self._ready.popleft()
            if lane is None:
                assert free is not None
                return None, free
            waiting = self._waiting[lane]
            if waiting:
                self._out.add(lane)
                return lane, waiting.popleft()
            del self._waiting[lane]
        return None

    def following(self, lane: L | None) -> W | None:
        """What waits first in a lane that is out; `follow` gives it out too."""
        waiting = self._waiting.get(lane) if lane is not None and lane in self._out else None
        return waiting[0] if waiting else None

    def follow(self, lane: L) -> W:
        """Give out the piece behind the one that is out, to be handled together with it, in order."""
        return self._waiting[lane].popleft()

    def done(self, lane: L | None) -> None:
        """What was out of this lane has come back; the lane's next piece may go."""
        if lane is None:
            return
        self._out.remove(lane)
        if self._waiting[lane]:
            self._ready.append((lane, None))
        else:
            del self._waiting[lane]

    def discard(self, unwanted: Callable[[W], bool]) -> list[W]:
        """Forget the waiting work that is `unwanted`; what is out stays out. Returns what was forgotten."""
        gone: list[W] = []
        for lane, waiting in self._waiting.items():
            gone.extend(work for work in waiting if unwanted(work))
            self._waiting[lane] = deque(work for work in waiting if not unwanted(work))
        kept: deque[tuple[L | None, W | None]] = deque()
        for entry in self._ready:
            if entry[1] is not None and unwanted(entry[1]):
                gone.append(entry[1])
            else:
                kept.append(entry)
        self._ready = kept
        return gone
