"""Judgement of recorded histories, for the fault tests and the soak: lost, repeated and overlapping records. Pure.

Every member records its history: ranges of offsets that it handed out, commits with their results, assignments. All
clocks are the machine's one monotonic clock, so histories of several processes are comparable. Three rules (M4 in the
mechanisms):

- Nothing is lost: every record that was written was handed out by somebody.
- A record that was handed out twice is explained: when its second reader began, no accepted commit covered it, or the
  reader began exactly at the end of a commit without a response. A coordinator that hung may store such a commit after
  later ones: it reads it from a connection that its client has given up.
- Two stints of one partition may overlap in time only if no commit was accepted that the older stint requested after
  the younger one began.

Decision: docs/decisions/0012-ownership-from-histories.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Commit", "History", "Stint", "Verdict", "holes", "judge"]

UNANSWERED = ("Retriable", "Timeout", "TIMED_OUT", "_TRANSPORT")
"""Phrases in the errors of commits with an unknown outcome: ours, Java's and librdkafka's."""

FINDINGS_MAX = 20
"""The most findings of a kind that are listed; the rest is counted."""


@dataclass(slots=True)
class Commit:
    """One partition's part of a commit; `accepted` is None without a response, permanently if its sender died."""

    partition: int
    generation: int
    offset: int
    asked_at: float
    answered_at: float | None = None
    error: str | None = None

    @property
    def accepted(self) -> bool:
        """True if the coordinator accepted it."""
        return self.answered_at is not None and self.error is None

    @property
    def unsure(self) -> bool:
        """True if the coordinator may have stored it, or may still do so."""
        return self.answered_at is None or any(word in (self.error or "") for word in UNANSWERED)


@dataclass(slots=True)
class Stint:
    """An unbroken range of offsets of one partition, handed out by one member under one assignment.

    `given_back_at` is when that assignment ended for the member; until then it may commit.
    """

    member: str
    partition: int
    generation: int
    first: int
    last: int
    began_at: float
    ended_at: float
    given_back_at: float = math.inf

    def __str__(self) -> str:
        return (
            f"{self.member} (generation {self.generation}) partition {self.partition} offsets {self.first}-{self.last} "
            f"at {self.began_at:.3f}-{self.ended_at:.3f}"
        )


@dataclass(slots=True)
class History:
    """One life of one member; `add` gets the rows that it writes, in order.

    Rows are lists: `["h", partition, generation, first, last, from, to]` handed out; `["c", number, generation,
    {partition: offset}, asked]` and `["k", number, answered, error or None]` commits; `["a" | "r" | "l", partitions,
    generation, at]` assigned, revoked, lost; `["x", error]` what the consumer raised.
    """

    member: str
    stints: list[Stint] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    holds: frozenset[int] = frozenset()
    generation: int = -1
    errors: list[str] = field(default_factory=list)
    calls: list[tuple[str, tuple[int, ...], int, float]] = field(default_factory=list)
    _open: dict[int, Stint] = field(default_factory=dict)
    _asked: dict[int, list[Commit]] = field(default_factory=dict)

    def add(self, row: Sequence[Any]) -> None:
        """Take the next row."""
        kind = row[0]
        if kind == "h":
            self._handed(*row[1:])
        elif kind == "c":
            number, generation, offsets, at = row[1:]
            self._asked[number] = [Commit(int(part), generation, offset, at) for part, offset in offsets.items()]
            self.commits += self._asked[number]
        elif kind == "k":
            for commit in self._asked.pop(row[1]):
                commit.answered_at, commit.error = row[2], row[3]
        elif kind == "x":
            self.errors.append(row[1])
        else:
            self._called(kind, tuple(row[1]), row[2], row[3])

    def _handed(self, partition: int, generation: int, first: int, last: int, began: float, ended: float) -> None:
        stint = self._open.get(partition)
        if stint is not None and stint.last + 1 == first:
            stint.last, stint.ended_at = last, ended
            return
        stint = Stint(self.member, partition, generation, first, last, began, ended)
        self._open[partition] = stint
        self.stints.append(stint)

    def _called(self, kind: str, partitions: tuple[int, ...], generation: int, at: float) -> None:
        for partition in partitions:
            stint = self._open.pop(partition, None)
            if stint is not None:
                stint.given_back_at = at
        self.calls.append((kind, partitions, generation, at))
        if kind == "a":
            self.holds = self.holds.union(partitions)
            self.generation = generation
        else:
            self.holds = self.holds.difference(partitions)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of `judge`. `lost`, `unexplained` and `overlaps` hold at most `FINDINGS_MAX` sentences each."""

    handed: int
    duplicates: int
    explained: int
    lost: Sequence[str]
    lost_count: int
    unexplained: Sequence[str]
    overlaps: Sequence[str]
    refused_commits: Mapping[str, int]
    """Number by the first word of the error."""

    @property
    def good(self) -> bool:
        """Nothing lost, nothing unexplained, no wrong overlap."""
        return not (self.lost_count or self.unexplained or self.overlaps)

    def __str__(self) -> str:
        findings = [*self.lost, *self.unexplained, *self.overlaps]
        counts = (
            f"{self.handed} handed out, {self.duplicates} of them again, {self.lost_count} lost; "
            f"commits refused: {dict(self.refused_commits)}"
        )
        return "\n  ".join([counts, *findings])


def holes(ranges: Iterable[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """The offsets 0 to `end` - 1 that no (first, last) of `ranges` covers, as (first, last)."""
    found, position = [], 0
    for first, last in sorted(ranges):
        if first > position:
            found.append((position, min(first, end) - 1))
        position = max(position, last + 1)
        if position >= end:
            return found
    return [*found, (position, end - 1)] if position < end else found


def judge(histories: Iterable[History], written: Mapping[int, int]) -> Verdict:
    """Compare the histories; `written` is the number of records of each partition, from offset 0."""
    lives = list(histories)
    stints: dict[int, list[Stint]] = {partition: [] for partition in written}
    commits: dict[int, list[Commit]] = {partition: [] for partition in written}
    whose: dict[int, str] = {}
    for life in lives:
        for stint in life.stints:
            stints.setdefault(stint.partition, []).append(stint)
        for commit in life.commits:
            commits.setdefault(commit.partition, []).append(commit)
            whose[id(commit)] = life.member
    lost, lost_count, unexplained, overlaps, handed, again, explained = [], 0, [], [], 0, 0, 0
    for partition, mine in sorted(stints.items()):
        mine.sort(key=lambda stint: stint.began_at)
        for first, last in holes(((stint.first, stint.last) for stint in mine), written.get(partition, 0)):
            lost_count += last - first + 1
            lost.append(f"partition {partition}: offsets {first}-{last} were never handed out")
        handed += sum(stint.last - stint.first + 1 for stint in mine)
        twice, accounted, sentences = _duplicates(mine, commits.get(partition, []))
        again, explained = again + twice, explained + accounted
        unexplained += sentences
        overlaps += _overlaps(mine, commits.get(partition, []), whose)
    return Verdict(
        handed=handed,
        duplicates=again,
        explained=explained,
        lost=lost[:FINDINGS_MAX],
        lost_count=lost_count,
        unexplained=unexplained[:FINDINGS_MAX],
        overlaps=overlaps[:FINDINGS_MAX],
        refused_commits=Counter(
            commit.error.split(":")[0] for life in lives for commit in life.commits if commit.error is not None
        ),
    )


def _duplicates(stints: Sequence[Stint], commits: Sequence[Commit]) -> tuple[int, int, list[str]]:
    """Count the repeated records and those that no accepted commit covered, and list unexplained ones."""
    again, explained, wrong = 0, 0, []
    accepted = sorted(
        (commit.answered_at, commit.offset) for commit in commits if commit.answered_at is not None and commit.accepted
    )
    # Ends of commits that may still be stored, and the time of the first request of each.
    unsure: dict[int, float] = {}
    for commit in commits:
        if commit.unsure:
            unsure[commit.offset] = min(commit.asked_at, unsure.get(commit.offset, math.inf))
    reached, at, covered = 0, 0, 0
    for stint in stints:
        while at < len(accepted) and accepted[at][0] <= stint.began_at:
            covered = max(covered, accepted[at][1])
            at += 1
        repeated = min(stint.last + 1, reached) - stint.first
        if repeated > 0:
            again += repeated
            known = stint.first if unsure.get(stint.first, math.inf) < stint.began_at else covered
            explained += min(stint.last + 1, reached) - min(max(stint.first, known), reached, stint.last + 1)
            if known > stint.first:
                wrong.append(f"handed out again although {covered} was committed before: {stint}")
        reached = max(reached, stint.last + 1)
    return again, explained, wrong


def _overlaps(stints: Sequence[Stint], commits: Sequence[Commit], whose: Mapping[int, str]) -> list[str]:
    wrong = []
    latest: list[Stint] = []
    for stint in stints:
        latest = [older for older in latest if older.ended_at > stint.began_at]
        for older in latest:
            if older.member == stint.member:
                continue
            if any(
                commit.accepted and stint.began_at < commit.asked_at <= older.given_back_at
                for commit in commits
                if whose[id(commit)] == older.member
            ):
                wrong.append(f"{older} overlaps {stint}, and a commit that it asked for later was accepted")
        latest.append(stint)
    return wrong
