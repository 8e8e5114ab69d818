"""Lag of a group in records and in time.

A status must not change all the time, so it shows buckets with hysteresis; exact numbers are metrics. Unknown values
are None, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from fleet_operator.planning.observation import GroupObservation, OffsetSample
from fleet_operator.planning.times import duration_text

ResetPolicy = Literal["Earliest", "Latest", "None"]

HYSTERESIS: Final = 0.25
"""Share beyond its edge at which a value leaves its bucket."""

BEHIND_STEPS_S: Final = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800),
)
"""The shown estimates of time behind, in seconds: about three for each factor of ten."""

UNKNOWN_TEXT: Final = "unknown"
CAUGHT_UP_TEXT: Final = "0s"


@dataclass(frozen=True, slots=True)
class Behind:
    """Age of the oldest uncommitted record; `at_least` when the history does not reach back to it."""

    seconds: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of each partition in question (None where unknown), their sum, and the time behind.

    `total` counts only known partitions and is None when none is known; `complete`: all are known.
    """

    partitions: Mapping[tuple[str, int], int | None]
    total: int | None
    complete: bool
    behind: Behind | None


def partition_lag(committed: int | None, end: int | None, start: int | None, reset: ResetPolicy) -> int | None:
    """Records between the committed offset and the end of the log; None while unknown.

    Commits and ends are read at different moments: a commit that is a little ahead of the end is newer. One below the
    log's start counts from the start: the records between are gone. Without a commit, a group that starts at the
    earliest record owes the whole log, one that starts at the latest owes nothing yet.
    """
    if end is None:
        return None
    if committed is not None:
        return max(0, end - max(committed, start or 0))
    if reset == "Earliest":
        return None if start is None else max(0, end - start)
    return 0 if reset == "Latest" else None


def group_lag(group: GroupObservation, partitions: Iterable[tuple[str, int]], reset: ResetPolicy) -> GroupLag:
    """Lag over the given partitions: all of the group's topics, with or without commits.

    It is unknown where the log ends before an old commit (the topic was recreated, or lost its end), and for a group
    that starts at the latest record where a topic has commits, but not in this partition: one that was added later is
    read from its beginning, and of the others nobody knows where they were begun.
    """
    begun = {topic for topic, _ in group.committed}
    lags = {
        key: None
        if key in group.beyond_end or (reset == "Latest" and key not in group.committed and key[0] in begun)
        else partition_lag(group.committed.get(key), group.end_offsets.get(key), group.log_starts.get(key), reset)
        for key in partitions
    }
    known = [lag for lag in lags.values() if lag is not None]
    complete = bool(lags) and len(known) == len(lags)
    return GroupLag(lags, sum(known) if known else None, complete, _group_behind(group, lags))


def _group_behind(group: GroupObservation, lags: Mapping[tuple[str, int], int | None]) -> Behind | None:
    """The largest time behind of any partition; None while that of any which lags is unknown."""
    found = []
    for key, lag in lags.items():
        if lag is None:
            continue
        if lag == 0:
            found.append(Behind(0.0))
            continue
        next_offset = group.end_offsets[key] - lag
        behind = time_behind(next_offset, group.end_history.get(key, ()), group.observed_at)
        if behind is None:
            return None
        found.append(behind)
    return max(found, key=lambda behind: (behind.seconds, behind.at_least), default=None)


def time_behind(next_offset: int, history: Sequence[OffsetSample], now: float) -> Behind | None:
    """Age of the record at `next_offset` at time `now`, from samples of the end offset (oldest first).

    Between two samples an even rate is assumed. A record older than the first sample is at least as old
    as that sample. None without samples, and where a single one says nothing but that the record is older.
    """
    if not history:
        return None
    if next_offset < history[0].end_offset:
        if len(history) == 1:
            return None
        return Behind(max(0.0, now - history[0].at), at_least=True)
    for earlier, later in pairwise(history):
        if earlier.end_offset <= next_offset < later.end_offset:
            share = (next_offset - earlier.end_offset) / (later.end_offset - earlier.end_offset)
            return Behind(max(0.0, now - (earlier.at + share * (later.at - earlier.at))))
    return Behind(0.0)


def lag_bucket(lag: int, previous: int | None = None) -> int:
    """The power of two at or below `lag`; the previous bucket while `lag` is not clearly outside it; 0 only for 0."""
    if lag <= 0:
        return 0
    inside = previous and previous * (1 - HYSTERESIS) <= lag < 2 * previous * (1 + HYSTERESIS)
    return previous if inside and previous else 1 << (lag.bit_length() - 1)


def lag_text(bucket: int) -> str:
    """A bucket as text: `0`, `~512`, `~64k`, `~2M` (powers of 1024)."""
    if bucket == 0:
        return "0"
    for factor, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if bucket >= factor:
            return f"~{bucket // factor}{unit}"
    return f"~{bucket}"


def behind_text(behind: Behind | None, previous: str = "") -> str:
    """The nearest step at or below, as `~5m`, or `>5m` when it is at least that; the previous text while near to it."""
    if behind is None:
        return UNKNOWN_TEXT
    if behind.seconds < BEHIND_STEPS_S[0]:
        return UNKNOWN_TEXT if behind.at_least else CAUGHT_UP_TEXT
    sign = ">" if behind.at_least else "~"
    steps = {f"{sign}{duration_text(step)}": index for index, step in enumerate(BEHIND_STEPS_S)}
    index = steps.get(previous)
    if index is not None:
        upper = BEHIND_STEPS_S[index + 1] if index + 1 < len(BEHIND_STEPS_S) else float("inf")
        if BEHIND_STEPS_S[index] * (1 - HYSTERESIS) <= behind.seconds < upper * (1 + HYSTERESIS):
            return previous
    return f"{sign}{duration_text(max(step for step in BEHIND_STEPS_S if step <= behind.seconds))}"


def count_bucket(count: int) -> int:
    """A growing count for a status: exact below 1000, then rounded up to two leading digits, never too few."""
    if count < 1000:
        return count
    unit: int = 10 ** (len(str(count)) - 2)
    return -(-count // unit) * unit
