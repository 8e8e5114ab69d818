"""Start positions of partitions: the committed offset, the end of a cut log, or the reset policy.

A position is an offset with its leader epoch. If the partition's leader answers that the epoch ends before the offset,
the log was cut (truncated): an unclean election lost records that were read already, and other records may have their
offsets by now. Reading goes on at the end of the epoch, up to which the log is what was read. A position that retention
has overtaken goes on at the first record of the log. The reset policy is for partitions without a position, and would
repeat or skip records in both cases.

One lookup is one attempt at all its partitions. Those without an answer do not hold up the others: they come back as
waiting or refused, and the caller tries again.

`ResetPolicy` is Kafka's `auto.offset.reset`, with durations (KIP-1106).
"""

from __future__ import annotations

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
    """A policy by its word; `duration_ms` only with `by_duration`: begin at records of at most that age."""

    word: str
    duration_ms: int | None = None

    EARLIEST: ClassVar[ResetPolicy]
    LATEST: ClassVar[ResetPolicy]
    NONE: ClassVar[ResetPolicy]

    @classmethod
    def parse(cls, text: str) -> ResetPolicy:
        """Parse a setting. Raises ValueError with the allowed values."""
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
    """Parse as Java's `Duration.parse`, without signs: days, hours, minutes, seconds, at least one of them."""
    match = _DURATION.fullmatch(duration)
    parts = {unit: float(text.replace(",", ".")) for unit, text in (match.groupdict() if match else {}).items() if text}
    if not parts:
        raise ValueError(f"auto_offset_reset: {duration!r} is not a duration; {WORDS}")
    seconds = parts.get("days", 0) * 86_400 + parts.get("hours", 0) * 3_600 + parts.get("minutes", 0) * 60
    return round((seconds + parts.get("seconds", 0)) * 1000)


@dataclass(slots=True)
class Starts:
    """The outcome of one attempt.

    `found` has the start positions. Of these, `cut` has the earlier positions that the log no longer has, and `remade`
    the partitions whose topic was made anew. `without` are those for which the policy `none` decides. `waiting` has the
    reasons of partitions that cannot begin yet, `refused` those that need a change by a person; look both up again.
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
        """Take over the unanswered partitions of an attempt."""
        self.waiting |= attempt.waiting
        self.refused |= attempt.refused
        self.patience_s = max(self.patience_s, attempt.patience_s)


@dataclass(frozen=True, slots=True)
class StartQuery:
    """A lookup of start positions. Partitions without a committed offset begin by `policy`.

    Those that `appeared` after the first assignment begin at their beginning, whatever the policy. `lost` has positions
    that a broker did not have; they count in place of committed offsets. Of these, `remade` are of a topic that was
    made anew. `former` has the ids under which partitions were read before: a topic that has another id, and no
    committed offset, is new. Without `use_committed` the policy alone decides. `delay_s` delays the retry of a failed
    lookup.
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
        self, partitions: Iterable[TopicPartition], anew: frozenset[TopicPartition], now_ms: int
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """Times to ask the leaders for, and the partitions for which the policy is `none`.

        Partitions `anew` begin at their beginning. `now_ms` is the wall clock, for a policy by duration.
        """
        times: dict[TopicPartition, int] = {}
        without: list[TopicPartition] = []
        for part in partitions:
            if part in self.appeared or part in anew or self.policy == ResetPolicy.EARLIEST:
                times[part] = EARLIEST
            elif self.policy == ResetPolicy.LATEST:
                times[part] = LATEST
            elif self.policy.duration_ms is not None:
                times[part] = max(0, now_ms - self.policy.duration_ms)
            else:
                without.append(part)
        return times, without


def find_starts(group_id: str, query: StartQuery, *, now_ms: int = 0) -> Flow[Starts]:
    """Find where partitions begin: at the committed offset if it stands, else by the policy.

    Raises GroupAuthorizationFailed.
    """
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
    standing = yield from _by_epoch(positions, starts)
    doubted = {part: start for part, start in standing.items() if part in lost}
    starts.found |= {part: start for part, start in standing.items() if part not in doubted}
    unplaced += yield from _by_range(doubted, starts)
    anew = frozenset(part for part, id_ in query.former.items() if starts.ids.get(part, id_) != id_)
    times, without = query.times(unplaced, anew, now_ms)
    starts.without = tuple(without)
    yield from _by_time(times | dict.fromkeys(starts.remade, EARLIEST), starts, read_committed=query.read_committed)
    return starts


def _by_id(query: StartQuery, starts: Starts) -> Flow[frozenset[TopicPartition]]:
    """Find refused positions that are of a former topic: the new log may have grown past them since, with records of
    which none was read. They wait while the brokers differ about the topic's id."""
    former = {part: query.former[part] for part in query.lost.keys() & query.former.keys() - query.remade}
    others = {part: id_ for part, id_ in former.items() if starts.ids.get(part, id_) != id_}
    if not others:
        return frozenset()
    seen = yield from see_logs(others, delay_s=0.0)
    for part in others.keys() - seen.remade:
        if part in seen.ids:
            starts.ids[part] = seen.ids[part]
        else:
            starts.waiting[part] = "not every broker has the id of its topic, which was deleted and created again"
    return seen.remade


def _by_epoch(positions: Mapping[TopicPartition, Start], starts: Starts) -> Flow[dict[TopicPartition, Start]]:
    """Begin at the ends of cut logs. Returns the positions that their epochs do not contradict."""
    epochs = {part: start.leader_epoch for part, start in positions.items() if start.leader_epoch >= 0}
    if not epochs:
        return dict(positions)
    ends = yield from try_epoch_ends(epochs)
    standing = {part: start for part, start in positions.items() if part not in epochs or part in ends.unsupported}
    ahead = {}
    for part, end in ends.found.items():
        position = positions[part]
        if end.offset < 0:
            ahead[part] = position.leader_epoch
        elif end.offset < position.offset and end.current == position.leader_epoch:
            # A leader loses no records of its own epoch, and another leader would have a later one: the topic was made
            # anew.
            starts.remade.add(part)
            starts.cut[part] = position.offset
        elif end.offset < position.offset:
            starts.found[part], starts.cut[part] = Start(end.offset, end.leader_epoch), position.offset
        else:
            standing[part] = position
    for part in ends.unsupported:
        del ends.refused[part]
    starts.put_off(ends)
    if ahead:
        remade = yield from try_remade(ahead)
        starts.put_off(remade)
        starts.remade |= remade.found.keys()
        starts.cut |= {part: positions[part].offset for part in remade.found}
    return standing


def _by_range(positions: Mapping[TopicPartition, Start], starts: Starts) -> Flow[list[TopicPartition]]:
    """Go on at positions inside of the log, although a broker refused them before, and at its start instead of those
    below it. Returns the others."""
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
            # The epoch reaches this far: after an election the leader does not know the high watermark yet.
            starts.waiting[part] = (
                f"its leader's end offset {end.offset} is still before the position {position.offset}"
            )
        else:
            outside.append(part)
    return outside


def _by_time(times: Mapping[TopicPartition, int], starts: Starts, *, read_committed: bool) -> Flow[None]:
    """Begin at these times; a partition without so late a record begins at its end."""
    asked = times
    while asked:
        listed = yield from try_offsets(asked, read_committed=read_committed)
        starts.put_off(listed)
        starts.found |= {part: start for part, start in listed.found.items() if start.offset >= 0}
        asked = {part: LATEST for part, start in listed.found.items() if start.offset < 0 and asked[part] != LATEST}
