"""Lag of a group in records and in time.

A status shows buckets with hysteresis, so that the status changes rarely. Metrics have exact numbers. Unknown values
are None, never zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from fleet_operator.planning.observation import GroupObservation, OffsetSample
from fleet_operator.planning.times import duration_text

ResetPolicy = Literal["Earliest", "Latest", "None"]

HYSTERESIS: Final = 0.25
"""A value leaves its bucket when it passes a limit of the bucket by more than this share of the limit."""

BEHIND_STEPS_S: Final = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800),
)
"""Steps, in seconds, in which a status shows how far a group is behind: about three steps for each factor of ten."""

UNKNOWN_TEXT: Final = "unknown"
CAUGHT_UP_TEXT: Final = "0s"


@dataclass(frozen=True, slots=True)
class Behind:
    """Age of the oldest uncommitted record. With `at_least`, the age is a lower bound, because the record is older than
    all samples of the end offset."""

    seconds: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a group. `partitions`: None for an unknown lag. `total`: sum of the known lags; None if all are unknown.
    `complete`: all lags are known. `behind`: age of the oldest uncommitted record in any partition; None while
    unknown."""

    partitions: Mapping[tuple[str, int], int | None]
    total: int | None
    complete: bool
    behind: Behind | None


def partition_lag(committed: int | None, end: int | None, start: int | None, reset: ResetPolicy) -> int | None:
    """Records between the committed offset and the end of the log; None while unknown.

    Commits and end offsets are read at different times. So a commit may be slightly beyond the end, because it was read
    later than the end. The lag is then 0. If the commit is below the start of the log, the lag counts from the start,
    because earlier records are deleted. Without a commit, `Earliest` counts the whole log, and `Latest` counts nothing
    yet."""
    if end is None:
        return None
    if committed is not None:
        return max(0, end - max(committed, start or 0))
    if reset == "Earliest":
        return None if start is None else max(0, end - start)
    return 0 if reset == "Latest" else None


def group_lag(group: GroupObservation, partitions: Iterable[tuple[str, int]], reset: ResetPolicy) -> GroupLag:
    """Lag of all partitions of the group's topics, with or without commits.

    The lag is unknown in a partition whose log ends before an old commit, because the topic was recreated or lost its
    last records. With `Latest`, the lag is also unknown in a partition without a commit if other partitions of the
    topic have commits. If such a partition was added later, workers read it from its start. Otherwise the offset at
    which they start is unknown."""
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
    """The longest time by which a partition is behind; None if this time is unknown for any partition with lag."""
    found = [
        time_behind(group.end_offsets[key] - lag, group.end_history.get(key, ()), group.observed_at)
        for key, lag in lags.items()
        if lag
    ]
    known = [behind for behind in found if behind is not None]
    caught_up = Behind(0.0) if 0 in lags.values() else None
    worst = max(known, key=lambda behind: (behind.seconds, behind.at_least), default=caught_up)
    return worst if len(known) == len(found) else None


def time_behind(next_offset: int, history: Sequence[OffsetSample], now: float) -> Behind | None:
    """Age at `now` of the record at `next_offset`, estimated from samples of the end offset (oldest first).

    The produce rate between two samples is assumed to be constant. If the record is older than the first sample, the
    age of this sample is returned as a lower bound. None without a sample, or if there is only one sample and the
    record is older."""
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
    """The largest power of two not above `lag`; 0 only for 0. The `previous` bucket is kept while `lag` is near that
    bucket."""
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
    """The largest step not above the time: `~5m`, or `>5m` for a lower bound. The `previous` text is kept while the
    time is near its step."""
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
    """Round a growing count for a status: exact below 1000, otherwise rounded up to two leading digits."""
    if count < 1000:
        return count
    unit: int = 10 ** (len(str(count)) - 2)
    return -(-count // unit) * unit
