"""Starting positions of partitions, from the committed offset, the end of a truncated ("cut") log, or the reset policy.

A position is an offset with its leader epoch. If the partition's leader answers that the epoch ends before the offset,
the log was truncated: an unclean election lost records that were already read, and other records may have the same
offsets now. Reading continues at the end of the epoch, because the log is unchanged up to this offset. If a position is
below the start of the log, reading continues at the start. In both cases the reset policy would repeat or skip records,
so it applies only to partitions without a position.

A position after control records of a later leader may resemble a position in a truncated log. Then it is moved back to
the end of the older epoch. No record is read twice, because only control records are between the two positions.

A lookup makes one attempt for all its partitions. Partitions without an answer do not delay the others. They are
returned as waiting or refused, and the caller tries again.

`ResetPolicy` is Kafka's `auto.offset.reset`, with durations (KIP-1106).

Decision: docs/decisions/0019-truncated-logs.md.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from fleet_consumer.coordinator.flows import Flow, Pause
from fleet_consumer.coordinator.lookups import (
    Attempt,
    Start,
    see_ids,
    see_logs,
    try_committed,
    try_epoch_ends,
    try_offsets,
    try_remade,
)
from fleet_consumer.group import errors
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.topics import EARLIEST, LATEST

WORDS = "use earliest, latest, none or by_duration:<ISO-8601 duration>, such as by_duration:PT1H"

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:[.,]\d{1,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """A reset policy. `by_duration` starts at the first record that is at most `duration_ms` milliseconds old."""

    word: str
    duration_ms: int | None = None

    EARLIEST: "ClassVar[ResetPolicy]"
    LATEST: "ClassVar[ResetPolicy]"
    NONE: "ClassVar[ResetPolicy]"

    @classmethod
    def parse(cls, text: str) -> "ResetPolicy":
        """Parse the value of `auto_offset_reset`. Raises ValueError, which names the allowed values."""
        word, colon, duration = text.partition(":")
        if word in ("earliest", "latest", "none") and not colon:
            return cls(word)
        if word == "by_duration" and colon:
            return cls(word, _milliseconds(duration))
        raise ValueError(f"auto_offset_reset is {text!r}; {WORDS}")

    def __str__(self) -> str:
        return self.word if self.duration_ms is None else f"{self.word} {self.duration_ms / 1000:g} s"


ResetPolicy.EARLIEST = ResetPolicy("earliest")
ResetPolicy.LATEST = ResetPolicy("latest")
ResetPolicy.NONE = ResetPolicy("none")


def _milliseconds(duration: str) -> int:
    """Parse a duration as Java's `Duration.parse` does, but without signs. Raises ValueError."""
    match = _DURATION.fullmatch(duration)
    parts = {unit: float(text.replace(",", ".")) for unit, text in (match.groupdict() if match else {}).items() if text}
    if not parts:
        raise ValueError(f"auto_offset_reset: {duration!r} is not a duration; {WORDS}")
    seconds = parts.get("days", 0) * 86_400 + parts.get("hours", 0) * 3_600 + parts.get("minutes", 0) * 60
    return round((seconds + parts.get("seconds", 0)) * 1000)


@dataclass(slots=True)
class Starts:
    """The outcome of one attempt to find starting positions.

    - `without`: partitions that have no offset, under the policy `none`.
    - `cut`: for each partition with a truncated log, the earlier position, which is no longer in the log.
    - `remade`: partitions whose topic was recreated.
    - `waiting`: reasons why partitions cannot start yet. The caller must repeat their lookup after `patience_s`
      seconds.
    - `refused`: errors of partitions for which a person must act. The caller must repeat their lookup, too.
    """

    found: dict[TopicPartition, Start] = field(default_factory=dict)
    without: tuple[TopicPartition, ...] = ()
    cut: dict[TopicPartition, int] = field(default_factory=dict)
    remade: set[TopicPartition] = field(default_factory=set)
    ids: dict[TopicPartition, UUID] = field(default_factory=dict)
    waiting: dict[TopicPartition, str] = field(default_factory=dict)
    refused: dict[TopicPartition, errors.ConsumerError] = field(default_factory=dict)
    patience_s: float = 0.0

    def put_off(self, attempt: Attempt[Any]) -> None:
        self.waiting |= attempt.waiting
        self.refused |= attempt.refused
        self.patience_s = max(self.patience_s, attempt.patience_s)


@dataclass(frozen=True, slots=True)
class StartQuery:
    """The parameters of a lookup of starting positions.

    - `policy` decides for partitions without a committed offset, or for all partitions if `use_committed` is False.
    - `appeared`: partitions that did not exist when the member subscribed; they start at their beginning.
    - `lost`: positions that are out of range or must be checked; used instead of committed offsets.
    - `remade`: the partitions in `lost` whose topic was recreated.
    - `former`: the topic ids under which partitions were read before. A partition with a new topic id and no committed
      offset starts at its beginning.
    """

    partitions: tuple[TopicPartition, ...]
    policy: ResetPolicy
    read_committed: bool
    appeared: frozenset[TopicPartition] = frozenset()
    lost: Mapping[TopicPartition, Start] = field(default_factory=dict)
    remade: frozenset[TopicPartition] = frozenset()
    former: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    use_committed: bool = True
    delay_s: float = 0.0

    def times(
        self, partitions: Iterable[TopicPartition], recreated: frozenset[TopicPartition], now_ms: int
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """Return the time to look up for each partition, and the partitions that the policy `none` leaves without a
        start. Partitions in `recreated` start at their beginning. `now_ms` is the wall-clock time, for
        `by_duration`."""
        times: dict[TopicPartition, int] = {}
        without: list[TopicPartition] = []
        for part in partitions:
            if part in self.appeared or part in recreated or self.policy == ResetPolicy.EARLIEST:
                times[part] = EARLIEST
            elif self.policy == ResetPolicy.LATEST:
                times[part] = LATEST
            elif self.policy.duration_ms is not None:
                times[part] = max(0, now_ms - self.policy.duration_ms)
            else:
                without.append(part)
        return times, without


def find_starts(group_id: str, query: StartQuery, *, now_ms: int = 0) -> Flow[Starts]:
    """Find starting positions as the module's docstring describes. Raises GroupAuthorizationFailed."""
    if query.delay_s:
        yield Pause(query.delay_s)
    partitions, lost = query.partitions, query.lost
    starts = Starts(ids=(yield from see_ids(partitions)))
    remade = query.remade | (yield from _by_id(query, starts))
    positions = {part: start for part, start in lost.items() if part not in remade and part not in starts.waiting}
    starts.remade |= remade
    starts.cut |= {part: start.offset for part, start in lost.items() if part in remade}
    unplaced: list[TopicPartition] = []
    asked = tuple(part for part in partitions if part not in lost and part not in remade)
    if not query.use_committed:
        unplaced += asked
    elif asked:
        committed = yield from try_committed(group_id, asked)
        starts.put_off(committed)
        unplaced += [part for part, entry in committed.found.items() if entry is None]
        positions |= {part: Start(entry.offset, entry.leader_epoch) for part, entry in committed.found.items() if entry}
    valid = yield from _by_epoch(positions, starts)
    uncertain = {part: start for part, start in valid.items() if part in lost}
    starts.found |= {part: start for part, start in valid.items() if part not in uncertain}
    unplaced += yield from _by_range(uncertain, starts)
    recreated = frozenset(part for part, id_ in query.former.items() if starts.ids.get(part, id_) != id_)
    times, without = query.times(unplaced, recreated, now_ms)
    starts.without = tuple(without)
    yield from _by_time(times | dict.fromkeys(starts.remade, EARLIEST), starts, read_committed=query.read_committed)
    return starts


def _by_id(query: StartQuery, starts: Starts) -> Flow[frozenset[TopicPartition]]:
    """Return the partitions in `query.lost` whose position belongs to a former topic of the same name. Such a position
    is invalid even if the new log is longer, because the new log's records were never read. Partitions wait while the
    brokers disagree about the topic's id."""
    former = {part: query.former[part] for part in query.lost.keys() & query.former.keys() - query.remade}
    others = {part: id_ for part, id_ in former.items() if starts.ids.get(part, id_) != id_}
    if not others:
        return frozenset()
    seen = yield from see_logs(others, delay_s=0.0)
    for part in others.keys() - seen.remade:
        if part in seen.ids:
            starts.ids[part] = seen.ids[part]
        else:
            starts.waiting[part] = "its topic was deleted and created again, and not every broker knows the new id yet"
    return seen.remade


def _by_epoch(positions: Mapping[TopicPartition, Start], starts: Starts) -> Flow[dict[TopicPartition, Start]]:
    """Start at the end of the position's epoch if the log was truncated. Returns the positions that are valid in their
    epochs."""
    epochs = {part: start.leader_epoch for part, start in positions.items() if start.leader_epoch >= 0}
    if not epochs:
        return dict(positions)
    ends = yield from try_epoch_ends(epochs)
    valid = {part: start for part, start in positions.items() if part not in epochs or part in ends.unsupported}
    ahead = {}
    for part, end in ends.found.items():
        position = positions[part]
        if end.offset < 0:
            ahead[part] = position.leader_epoch
        elif end.offset < position.offset and end.current == position.leader_epoch:
            # A leader loses no records of its own epoch, and a new leader would have a later epoch. So the topic was
            # recreated.
            starts.remade.add(part)
            starts.cut[part] = position.offset
        elif end.offset < position.offset:
            starts.found[part], starts.cut[part] = Start(end.offset, end.leader_epoch), position.offset
        else:
            valid[part] = position
    for part in ends.unsupported:
        del ends.refused[part]
    starts.put_off(ends)
    if ahead:
        remade = yield from try_remade(ahead)
        starts.put_off(remade)
        starts.remade |= remade.found.keys()
        starts.cut |= {part: positions[part].offset for part in remade.found}
    return valid


def _by_range(positions: Mapping[TopicPartition, Start], starts: Starts) -> Flow[list[TopicPartition]]:
    """Find starts for positions that a broker has refused. A position within the log is a valid start. A position below
    the log's start is replaced by the log's start.

    Returns the partitions whose position has no epoch and is above the log's end.
    """
    if not positions:
        return []
    first = yield from try_offsets(dict.fromkeys(positions, EARLIEST), read_committed=False)
    last = yield from try_offsets(dict.fromkeys(first.found, LATEST), read_committed=False)
    starts.put_off(first)
    starts.put_off(last)
    outside = []
    for part, end in last.found.items():
        position = positions[part]
        if position.offset < first.found[part].offset:
            starts.found[part] = first.found[part]
        elif position.offset <= end.offset:
            starts.found[part] = position
        elif position.offset > end.offset and position.leader_epoch >= 0:
            # The position is valid in its epoch, so a newly elected leader does not know the high watermark yet.
            starts.waiting[part] = f"its leader's end offset {end.offset} is still below the position {position.offset}"
        else:
            outside.append(part)
    return outside


def _by_time(times: Mapping[TopicPartition, int], starts: Starts, *, read_committed: bool) -> Flow[None]:
    """Find starting positions at these times. A partition without records at or after this time starts at its end."""
    asked = times
    while asked:
        listed = yield from try_offsets(asked, read_committed=read_committed)
        starts.put_off(listed)
        starts.found |= {part: start for part, start in listed.found.items() if start.offset >= 0}
        asked = {part: LATEST for part, start in listed.found.items() if start.offset < 0 and asked[part] != LATEST}
