"""The order in which concurrent handlers get records: one piece of work of each key at a time. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

L = TypeVar("L", bound=Hashable)
W = TypeVar("W")


class KeyOrder(Generic[L, W]):
    """Work that waits, by order key. `done` returns what `next` has given out. One thread uses it.

    An order key is what has to stay in order: the records of one key in one partition, or a partition's batches. One
    piece of its work is out at a time, the next only when it has come back. Work without an order key is free. Order
    keys take turns in the order in which they became ready, so that no key starves another.
    """

    def __init__(self) -> None:
        # An order key stands here while it has work waiting or out; its deque holds what waits.
        self._waiting: dict[L, deque[W]] = {}
        self._out: set[L] = set()
        # Order keys whose first piece may go, each once, and free pieces. An order key that was emptied meanwhile is
        # passed over.
        self._ready: deque[tuple[L | None, W | None]] = deque()

    def add(self, order_key: L | None, work: W) -> None:
        """Put work behind everything that waits in its order key; None is no order key."""
        if order_key is None:
            self._ready.append((None, work))
            return
        waiting = self._waiting.get(order_key)
        if waiting is not None:
            waiting.append(work)
        else:
            self._waiting[order_key] = deque((work,))
            self._ready.append((order_key, None))

    def next(self) -> tuple[L | None, W] | None:
        """Give out the next piece that may go, with its order key; None when there is none."""
        while self._ready:
            order_key, free = self._ready.popleft()
            if order_key is None:
                assert free is not None
                return None, free
            waiting = self._waiting[order_key]
            if waiting:
                self._out.add(order_key)
                return order_key, waiting.popleft()
            del self._waiting[order_key]
        return None

    def following(self, order_key: L | None) -> W | None:
        """The first waiting piece of an order key that is out; `follow` gives it out too."""
        waiting = self._waiting.get(order_key) if order_key is not None and order_key in self._out else None
        return waiting[0] if waiting else None

    def follow(self, order_key: L) -> W:
        """Give out the piece behind the one that is out, to be handled together with it, in order."""
        return self._waiting[order_key].popleft()

    def done(self, order_key: L | None) -> None:
        """Note that the piece of this order key that was out has come back; its next piece may go."""
        if order_key is None:
            return
        self._out.remove(order_key)
        if self._waiting[order_key]:
            self._ready.append((order_key, None))
        else:
            del self._waiting[order_key]

    def discard(self, unwanted: Callable[[W], bool]) -> list[W]:
        """Forget the waiting work that is `unwanted`; what is out stays out. Returns what was forgotten."""
        gone: list[W] = []
        for order_key, waiting in self._waiting.items():
            gone.extend(work for work in waiting if unwanted(work))
            self._waiting[order_key] = deque(work for work in waiting if not unwanted(work))
        kept: deque[tuple[L | None, W | None]] = deque()
        for entry in self._ready:
            if entry[1] is not None and unwanted(entry[1]):
                gone.append(entry[1])
            else:
                kept.append(entry)
        self._ready = kept
        return gone
