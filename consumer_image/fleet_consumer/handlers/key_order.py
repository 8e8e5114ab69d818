"""The order in which concurrent handlers get records: of each key, only one piece of work is handled at a time. No I/O,
no clock."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

L = TypeVar("L", bound=Hashable)
W = TypeVar("W")


class KeyOrder(Generic[L, W]):
    """Waiting work, keyed by order key. Not thread-safe.

    The pieces of one order key are handled in order, one at a time: a piece is in progress from `next` to `done`. A
    piece is a record, or a batch of records. An order key stands for the records of one key in one partition, or for
    the batches of one partition. Work without an order key is handled in any order. Order keys are served in the order
    in which they became ready, so no order key starves another.
    """

    def __init__(self) -> None:
        # Waiting work by order key. A key is kept while it has waiting work or a piece in progress.
        self._waiting: dict[L, deque[W]] = {}
        self._out: set[L] = set()
        # Order keys whose first piece may be handled, each listed once, and pieces without an order key. `next` skips
        # an order key without waiting work.
        self._ready: deque[tuple[L | None, W | None]] = deque()

    def add(self, order_key: L | None, work: W) -> None:
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
        """Return the next piece and its order key; None if no piece may be handled now."""
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
        """Return the first waiting piece of an order key whose previous piece is in progress; None if no piece waits.
        The piece remains waiting; `follow` removes it."""
        waiting = self._waiting.get(order_key) if order_key is not None and order_key in self._out else None
        return waiting[0] if waiting else None

    def follow(self, order_key: L) -> W:
        """Remove and return an order key's next piece while the previous piece is in progress. The caller handles both
        in one batch, in order."""
        return self._waiting[order_key].popleft()

    def done(self, order_key: L | None) -> None:
        """Record that this order key's piece has been handled, so that the key's next piece may be handled."""
        if order_key is None:
            return
        self._out.remove(order_key)
        if self._waiting[order_key]:
            self._ready.append((order_key, None))
        else:
            del self._waiting[order_key]

    def discard(self, unwanted: Callable[[W], bool]) -> list[W]:
        """Remove and return the waiting work that is `unwanted`. Work in progress is not removed."""
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
