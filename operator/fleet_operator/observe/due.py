"""Due times of the records in a delay topic, found by asking for offsets by time. Pure.

A record is due at its append time plus the delay of its topic, so within a partition records become due in order. No
request of Kafka returns the append time of the record at a given offset; ListOffsets returns the first record appended
at or after a given time, with its offset and its time. From that follow:

- the first record that is not due, by asking for `now - delay`: its time is in the answer. Until it is due, the answer
  to the next such question is known, so a partition is asked again only when something in it has become due.
- the time of an older record (the head of a partition whose records are overdue): bisected between bounds. They stay
  true while the head stays, so the search goes on in the next poll where it was in this one.

Times are epoch milliseconds here, as on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

FIRST_STEP_MS: Final = 1_000
STEP_FACTOR: Final = 8
"""The search for a head goes back in growing steps until it is behind it: most overdue heads are young."""
COARSE_MS: Final = 1_000
COARSE_SHARE: Final = 16
"""One poll searches until it knows a head's time to a second, or to a sixteenth of how long it is overdue."""


def position(committed: int | None, start: int, end: int) -> int:
    """The offset at which retry workers go on in a partition whose log reaches from `start` to before `end`.

    At their commit; without one, and where the log does not reach to it (retention, a recreated topic, a leader that
    had not kept up), they begin with the first record that is there.
    """
    return committed if committed is not None and start <= committed <= end else start


class Found(NamedTuple):
    """The answer of ListOffsets for a time: the first record at or after it."""

    offset: int
    append_ms: int


@dataclass(frozen=True, slots=True)
class Frontier:
    """Up to where a partition's records are due: `offset` is the first one that is not, `append_ms` its time.

    When all were due, `offset` is the end of the log and `append_ms` None.
    """

    offset: int
    append_ms: int | None

    def holds(self, *, delay_ms: int, end: int, now_ms: int) -> bool:
        """True if asking again now would give the same: nothing has become due, or been appended behind the end."""
        if self.append_ms is None:
            return self.offset == end
        return self.offset < end and now_ms < self.append_ms + delay_ms


@dataclass(frozen=True, slots=True)
class Head:
    """The append time of the record at `offset`, between bounds; `low` is None until a probe was not behind it.

    `step_ms` is how far the next probe goes back while there is no lower bound.
    """

    offset: int
    low: int | None
    high: int
    step_ms: int = FIRST_STEP_MS

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def coarse(self, overdue_ms: int) -> bool:
        """True if this poll should go on searching; the record has been due for at least `overdue_ms`."""
        return self.low is None or self.high - self.low > max(COARSE_MS, overdue_ms // COARSE_SHARE)


def head(before: Head | None, mark: Frontier | None, offset: int, latest_ms: int) -> Head:
    """The head at `offset`, which is no younger than `latest_ms`, with what is already known.

    `before` is the head as last searched, `mark` an earlier frontier of the same partition: both bound it, as append
    times never go back.
    """
    if before is not None and before.offset == offset:
        return before
    low = before.low if before is not None and before.offset < offset else None
    high = latest_ms
    if mark is not None and mark.append_ms is not None:
        if mark.offset <= offset:
            low = mark.append_ms if low is None else max(low, mark.append_ms)
        if mark.offset >= offset:
            high = min(high, mark.append_ms)
    # Only where brokers' clocks have gone back can the bounds contradict each other; the younger time is the safer one.
    return Head(offset, None if low is None else min(low, high), high)


def probe(of: Head) -> int:
    """The time to ask for next; not for a head whose time is known exactly."""
    if of.low is None:
        return max(0, of.high - of.step_ms)
    return (of.low + of.high + 1) // 2


def learn(of: Head, asked_ms: int, found: Found | None) -> Head:
    """The head after the answer to a probe; each answer narrows the bounds, whatever it says."""
    if found is not None and found.offset == of.offset:
        at = min(found.append_ms, of.high)
        return replace(of, low=at, high=at)
    if found is not None and found.offset < of.offset:
        return replace(of, low=min(max(found.append_ms, asked_ms), of.high))
    if asked_ms <= 0:  # nothing older is left, though the head should be: it has just been deleted
        return replace(of, low=of.high)
    high = max(asked_ms - 1, of.low or 0)
    return replace(of, high=high, step_ms=of.step_ms * STEP_FACTOR)


def searched(heads: Mapping[tuple[str, int], tuple[Head, int]]) -> dict[tuple[str, int], Head]:
    """The heads of one group that may still turn out to be due before all others; each comes with its topic's delay."""
    if not heads:
        return {}
    first = min(found.high + delay_ms for found, delay_ms in heads.values())
    return {
        key: found
        for key, (found, delay_ms) in heads.items()
        if not found.exact and (found.low is None or found.low + delay_ms < first)
    }
