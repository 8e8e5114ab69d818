"""The work of simulated workers: a stream of records, or single records and batches that take their time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

DONE: Final = 1e-9
"""Seconds that are left of a record only because sums of fractions are not exact."""


class Hand(NamedTuple):
    """Records in hand: their partition, their number, and the seconds of work that they still take."""

    partition: int
    records: float
    left_s: float


@dataclass(slots=True)
class Workload:
    """The end of each partition's log, and the end of what was handled of it, in records."""

    partitions: int
    ends: list[float] = field(init=False)
    handled: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.ends, self.handled = [0.0] * self.partitions, [0.0] * self.partitions

    def left(self, number: int) -> float:
        return self.ends[number] - self.handled[number]

    def waits(self, numbers: Iterable[int], moves: Sequence[bool]) -> bool:
        """True if a worker of these partitions has something to do."""
        return any(moves[number] and self.left(number) > 0.0 for number in numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """The work that a worker can do within a second.

    `pace`: records per second of a worker at full speed. `speed`: the part of it that is left to this one, as it is
    cold or waits for what all workers depend on. `record_s`: the time of a record at full speed, None for a stream.
    """

    moves: Sequence[bool]
    pace: float
    speed: float = 1.0
    record_s: float | None = None
    slots: int = 1
    batch: int = 1


@dataclass(slots=True)
class Worker:
    """A worker: the partitions that it owns, and what its page serves.

    `busy_s` are the seconds in which it was busy, records in hand included; `records` those that it completed.
    """

    since: float
    owned: tuple[int, ...] = ()
    busy_s: float = 0.0
    records: float = 0.0
    in_hand: dict[int, Hand] = field(default_factory=dict)
    _next: int = 0

    @property
    def holds(self) -> tuple[int, ...]:
        """The partitions of the records in hand."""
        return tuple(hand.partition for hand in self.in_hand.values())

    def own(self, numbers: tuple[int, ...]) -> None:
        """Take over partitions; records in hand of others are given up, and another worker begins them again."""
        self.owned = numbers
        self.in_hand = {slot: hand for slot, hand in self.in_hand.items() if hand.partition in numbers}

    def handle(self, work: Workload, second: Second) -> None:
        """Work for a second."""
        if second.speed <= 0.0 or second.pace <= 0.0:
            self.busy_s += work.waits(self.owned, second.moves)
        elif second.record_s is None:
            self._stream(work, second)
        else:
            free = dict[int, float]()
            for slot in range(second.slots):
                self._single(work, second, second.record_s, slot, free)

    def _stream(self, work: Workload, second: Second) -> None:
        """Handle what waits, in equal parts of all partitions as long as each has enough."""
        ends, handled = work.ends, work.handled
        waiting = [(ends[number] - handled[number], number) for number in self.owned if second.moves[number]]
        can = left = second.pace * second.speed
        if sum(behind for behind, _ in waiting) <= can:
            for behind, number in waiting:
                handled[number] = ends[number]
                left -= behind
        else:
            waiting.sort()
            for place, (behind, number) in enumerate(waiting):
                done = min(behind, left / (len(waiting) - place))
                handled[number] += done
                left -= done
        self.records += can - left
        self.busy_s += (can - left) / can

    def _single(self, work: Workload, second: Second, record_s: float, slot: int, free: dict[int, float]) -> None:
        """One slot's second. Each partition's records are handled one after the other: `free` has what is left of the
        second for partitions whose records other slots have completed in it."""
        left = second.speed
        while left > DONE:
            hand = self.in_hand.get(slot) or self._take(work, second, record_s, left, free)
            if hand is None:
                return
            if not second.moves[hand.partition]:
                # The record stands, and its slot with it.
                self.in_hand[slot], step, rest = hand, left, hand.left_s
            else:
                step = min(left, hand.left_s)
                rest = hand.left_s - step
            left -= step
            self.busy_s += step / second.speed / second.slots
            if rest > DONE:
                self.in_hand[slot] = hand._replace(left_s=rest)
                continue
            self.in_hand.pop(slot, None)
            free[hand.partition] = left
            work.handled[hand.partition] += hand.records
            self.records += hand.records

    def _take(
        self, work: Workload, second: Second, record_s: float, left: float, free: dict[int, float]
    ) -> Hand | None:
        """The next records: those of the partition in turn that has some and none in hand."""
        taken = {hand.partition for hand in self.in_hand.values()}
        ready = [
            number
            for number in self.owned
            if second.moves[number]
            and number not in taken
            and work.left(number) >= 1.0 - DONE
            and free.get(number, left) >= left - DONE
        ]
        if not ready:
            return None
        chosen = next((number for number in ready if number >= self._next), ready[0])
        self._next = chosen + 1
        count = min(second.batch, int(work.left(chosen) + DONE))
        return Hand(chosen, float(count), count * record_s)
