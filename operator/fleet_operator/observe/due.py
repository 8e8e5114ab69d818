"""Determines due times of the records in a retry topic. Pure.

A record is due at its append time plus its topic's delay, so the records of a partition become due in order. Kafka has
no request for the append time of a given offset. But for a given time, ListOffsets returns the first record that was
appended then or later, with its offset and append time. With such requests, two records of each partition are found:

- The frontier: the first record that is not due. A request for the time `now - delay` finds it. No further request is
  needed for the partition until the frontier's record is due, because the answer would be the same.
- The head: the first waiting record. If it is overdue, its append time is found by bisection. The bounds of the append
  time stay valid while the partition has the same head, so the next poll continues the search.

If the clock of a new leader is behind the clock of the previous leader, append times decrease. The due lag is then
wrong until the affected records have been handled. Times are epoch milliseconds, as in the protocol.

Decision: docs/decisions/0016-due-lag.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

FIRST_STEP_MS: Final = 1_000
STEP_FACTOR: Final = 8
"""The search for a head's append time begins with steps back in time, until it has reached a time before the head. The
first step is FIRST_STEP_MS, which is small, because most overdue heads are young. Each further step is STEP_FACTOR
times as long."""
COARSE_MS: Final = 1_000
COARSE_SHARE: Final = 16
"""Precision of the append time at which a poll ends its search for a head. COARSE_MS is enough, and so is
1/COARSE_SHARE of the time for which the head has been due; the larger of the two applies."""


def position(committed: int | None, start: int, end: int) -> int:
    """The offset at which retry workers continue in a partition with these log start and end offsets.

    This is the committed offset. Without a commit, or if the committed offset is outside the log, it is the offset of
    the first record. A committed offset can be outside the log because of retention, a recreated topic, or a leader
    that lagged behind.
    """
    return committed if committed is not None and start <= committed <= end else start


class Found(NamedTuple):
    """The first record at or after a time, as ListOffsets returns it."""

    offset: int
    append_ms: int


@dataclass(frozen=True, slots=True)
class Frontier:
    """A partition's first record that is not due. If all records are due, `offset` is the log end, and `append_ms` is
    None."""

    offset: int
    append_ms: int | None

    def holds(self, *, delay_ms: int, end: int, now_ms: int) -> bool:
        """True if a new request would return the same frontier: the frontier's record is still not due or, if all
        records were due, no record was appended."""
        if self.append_ms is None:
            return self.offset == end
        return self.offset < end and now_ms < self.append_ms + delay_ms


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a partition, which is the record at `offset`, with the bounds `low` and `high` of its append time.
    `low` is None until a probe has found the head or an older record. Until then, the next probe is `step_ms` before
    `high`."""

    offset: int
    low: int | None
    high: int
    step_ms: int = FIRST_STEP_MS

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def coarse(self, overdue_ms: int) -> bool:
        """True if this poll must narrow the bounds further. `overdue_ms`: minimum time for which the head has been
        due."""
        return self.low is None or self.high - self.low > max(COARSE_MS, overdue_ms // COARSE_SHARE)


def head(before: Head | None, frontier: Frontier | None, offset: int, latest_ms: int) -> Head:
    """Return the head at `offset` with the bounds that are already known. The head was appended at `latest_ms` or
    before.

    `before` is the head of the last search, `frontier` an earlier frontier of the partition. The append times of both
    are bounds, because append times do not decrease.
    """
    if before is not None and before.offset == offset:
        return before
    low = before.low if before is not None and before.offset < offset else None
    high = latest_ms
    if frontier is not None and frontier.append_ms is not None:
        if frontier.offset <= offset:
            low = frontier.append_ms if low is None else max(low, frontier.append_ms)
        if frontier.offset >= offset:
            high = min(high, frontier.append_ms)
    # If a broker's clock was set back, `low` may be above `high`; it is then reduced to `high`.
    return Head(offset, None if low is None else min(low, high), high)


def probe(of: Head) -> int:
    """The time of the next ListOffsets request that narrows a head's bounds. The bounds must not be equal yet."""
    if of.low is None:
        return max(0, of.high - of.step_ms)
    return (of.low + of.high + 1) // 2


def learn(of: Head, asked_ms: int, found: Found | None) -> Head:
    """Return the head with the bounds that the answer to a probe has narrowed."""
    if found is not None and found.offset == of.offset:
        at = min(found.append_ms, of.high)
        return replace(of, low=at, high=at)
    if found is not None and found.offset < of.offset:
        return replace(of, low=min(max(found.append_ms, asked_ms), of.high))
    if asked_ms <= 0:  # the head was just deleted, as even a request for time 0 does not find it
        return replace(of, low=of.high)
    high = max(asked_ms - 1, of.low or 0)
    return replace(of, high=high, step_ms=of.step_ms * STEP_FACTOR)


def searched(heads: Mapping[tuple[str, int], tuple[Head, int]]) -> dict[tuple[str, int], Head]:
    """The heads of one group whose bounds must still be narrowed. Each of them may be the record that became due first;
    the other heads became due later, or their append time is known. `heads` has all heads of the group, each with the
    delay of its topic in milliseconds."""
    if not heads:
        return {}
    first = min(found.high + delay_ms for found, delay_ms in heads.values())
    return {
        key: found
        for key, (found, delay_ms) in heads.items()
        if not found.exact and (found.low is None or found.low + delay_ms < first)
    }
