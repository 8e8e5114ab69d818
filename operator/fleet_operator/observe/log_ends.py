"""First and last offsets of topics' logs as last read, with a few earlier last offsets.

Many groups read one topic, and nothing arrives in most topics for most of the time. So this is kept once for a topic,
whoever reads it, and as long as nothing changes its mappings are the same objects. Pure but for its memory; used by one
thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fleet_operator.observe import folding
from fleet_operator.observe.folding import NOT_READ, History, Offsets, TopicLog
from fleet_operator.planning.observation import OffsetSample


@dataclass(slots=True)
class _Ends:
    """The ends of one topic; `confirmed` is when they were last read (epoch seconds), `repeated` that they had not
    changed then."""

    ends: Offsets
    history: History
    confirmed: float
    repeated: bool = False


Address = tuple[bool, str]
"""A topic as read: True where open transactions are left out (`read_committed`), and its name."""


class LogEnds:
    """All topics that one observer reads."""

    def __init__(self) -> None:
        self._ends: dict[Address, _Ends] = {}
        self._starts: dict[str, Offsets] = {}
        self._logs: dict[Address, TopicLog] = {}

    def take_ends(self, read_committed: bool, read: Mapping[str, Offsets], now: float) -> None:
        """Take in the ends that were read just now, by topic."""
        for topic, ends in read.items():
            known = self._ends.get((read_committed, topic))
            if known is None:
                self._ends[read_committed, topic] = _Ends(ends, folding.extend_history({}, ends, now), now)
            elif known.ends == ends:
                if not known.repeated:  # two samples say more than one: the records are older than the first
                    known.history = folding.extend_history(known.history, ends, now)
                known.confirmed, known.repeated = now, True
            else:
                history = known.history
                if known.repeated:
                    # Until then nothing arrived: the estimate must not spread the new records over that time.
                    history = folding.extend_history(history, known.ends, known.confirmed)
                self._ends[read_committed, topic] = _Ends(ends, folding.extend_history(history, ends, now), now)

    def take_starts(self, read: Mapping[str, Offsets]) -> None:
        """Take in the starts that were read just now, by topic."""
        for topic, starts in read.items():
            if self._starts.get(topic) != starts:
                self._starts[topic] = starts

    def log(self, read_committed: bool, topic: str, *, ends: bool, starts: bool) -> TopicLog:
        """The log of a topic as known; `ends` and `starts` say whether they were answered just now, or do not count."""
        found = self._ends.get((read_committed, topic))
        first = self._starts.get(topic, NOT_READ.starts) if starts else NOT_READ.starts
        known = self._logs.get((read_committed, topic))
        history = NOT_READ.history if found is None else found.history
        ends_now = found.ends if ends and found is not None else NOT_READ.ends
        as_before = known is not None and all(
            map(_same, (known.ends, known.history, known.starts), (ends_now, history, first))
        )
        if known is None or not as_before:
            known = self._logs[read_committed, topic] = TopicLog(ends_now, history, first)
        return known

    def retain(self, topics: AbstractSet[str]) -> None:
        """Forget all other topics."""
        self._ends = {address: ends for address, ends in self._ends.items() if address[1] in topics}
        self._logs = {address: log for address, log in self._logs.items() if address[1] in topics}
        self._starts = {topic: starts for topic, starts in self._starts.items() if topic in topics}


class JoinedLogs:
    """The logs of several topics as one, for the groups of one part; those that a look did not need are forgotten."""

    def __init__(self) -> None:
        self._known: dict[tuple[bool, tuple[str, ...]], tuple[tuple[TopicLog, ...], TopicLog]] = {}
        self._needed: dict[tuple[bool, tuple[str, ...]], tuple[tuple[TopicLog, ...], TopicLog]] = {}

    def of(self, read_committed: bool, topics: tuple[str, ...], logs: Iterable[TopicLog]) -> TopicLog:
        """The logs of these topics as one; the same object as long as those are."""
        parts = tuple(logs)
        if len(parts) == 1:
            return parts[0]
        address = read_committed, topics
        for known in (self._needed.get(address), self._known.get(address)):
            if known is not None and all(map(_same, known[0], parts)):
                self._needed[address] = known
                return known[1]
        ends: Offsets = {}
        starts: Offsets = {}
        history: dict[tuple[str, int], tuple[OffsetSample, ...]] = {}
        for log in parts:
            ends |= log.ends
            starts |= log.starts
            history |= log.history
        joined = TopicLog(ends, history, starts)
        self._needed[address] = (parts, joined)
        return joined

    def end_look(self) -> None:
        self._known, self._needed = self._needed, {}


def _same(one: object, other: object) -> bool:
    return one is other
