"""Careful handling of a partition after its last owner died, by notes in its commits. Pure.

A record that kills its process leaves nothing behind but the last commit, so the suspects are noted there
beforehand, in the metadata: `fleet-hand=open` while a partition is handled as always. Who gives it back in order
takes that away. Whoever finds it knows that the one before died, but not at which record: any from the committed offset
on may have been in hand. From there on it is careful: it commits before it hands out, and says how many records it has
in hand, at first one (`fleet-hand=1`), with nothing else of the worker in hand beside them. So the next death names its
suspects. A record that was alone in hand at a death, or the first of those that may have been, counts it
(`deaths=1`); the third ends its life here. `fleet-hand=none` says that a careful owner had nothing in hand: its death
says nothing about this partition.

A lost session may commit nothing, so its note stays though its process lives. The processes counted as dead stand in a
word of their own behind the note (`fleet-dead=0a,0b`), which workers of before do not read: one that finds itself among
them takes itself out of the count. So a partition that moves to and fro between living workers condemns nothing.

Any progress clears the count, for then another record is the first. Care ends when everything that the dead owner can
have read is behind, or when more time was spent with care than an owner can work between two commits: should the record
lie even further on, the next death finds a commit that lies further on, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.retry.failure import Poison

DEATHS_MAX: Final = 3
"""Number of deaths at one record, with no progress in between, after which it goes its policy's way."""

PART_S: Final = 0.5
"""Records are taken twice as many each time, as long as all of them together take less: else commits would take longer
than handlers."""
COUNT_MAX: Final = 256

CAREFUL_LEAST_S: Final = 5.0
"""Longer than twice the commit interval, for commits that came late."""

_NOTE: Final = re.compile(
    r"fleet-hand=(open|none|[1-9][0-9]{0,6})(?:;deaths=([0-9]{1,3}))?(?:;named=([0-9]{1,7}))?(?:;by=([0-9a-f]{1,16}))?"
)
_DEAD: Final = re.compile(rf"fleet-dead=([0-9a-f]{{1,16}}(?:,[0-9a-f]{{1,16}}){{0,{DEATHS_MAX - 1}}})")
_NAMED: Final[dict[str, int | None]] = {"open": None, "none": 0}


def poison(deaths: int) -> Poison:
    """The error of a record that is not handed out any more."""
    return Poison(f"{deaths} processes died with this record in hand; it is not handed out any more")


@dataclass(frozen=True, slots=True)
class Note:
    """The note of a commit: `count` records from its offset on were in hand, None: any number may have been.

    So many as `named` were in hand at an earlier death, and have not been alone in hand since. `by` is the process that
    says so: one that finds its own note has lost the partition meanwhile, and not died. `dead` are the latest of the
    processes that `deaths` counts.
    """

    count: int | None
    deaths: int = 0
    by: str = ""
    named: int = 0
    dead: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        count = "open" if self.count is None else "none" if not self.count else str(self.count)
        deaths = f";deaths={self.deaths}" if self.deaths else ""
        named = f";named={self.named}" if self.named > 1 else ""
        by = f";by={self.by}" if self.by else ""
        return f"fleet-hand={count}{deaths}{named}{by}" + (f" fleet-dead={','.join(self.dead)}" if self.dead else "")


def read_note(metadata: str) -> Note | None:
    """The note among a commit's metadata. Metadata is anybody's who may commit, so it is read strictly."""
    note: Note | None = None
    dead: tuple[str, ...] = ()
    for part in metadata.split(" "):
        if note is None and (found := _NOTE.fullmatch(part)) is not None:
            count = _NAMED[found[1]] if found[1] in _NAMED else int(found[1])
            note = Note(count, int(found[2] or 0), found[4] or "", int(found[3] or 0))
        elif (listed := _DEAD.fullmatch(part)) is not None:
            dead = tuple(listed[1].split(","))
    return None if note is None else replace(note, dead=dead)


class Caution:
    """One partition during one assignment. `found` is the note of the commit at which it begins, None: a clean one.

    `by` is the process that takes the partition now. `at_once` is how many records may be in hand at once where there
    is no need for care. `end` is the offset behind the last record that the one before can have read, None where
    it is unknown.
    """

    def __init__(
        self,
        found: Note | None,
        start: int,
        *,
        by: str = "",
        end: int | None = None,
        at_once: int = 1,
        careful_s: float = 0.0,
    ) -> None:
        ours = found is not None and found.by == by
        nobody = end is not None and start >= end  # has had a record from here on: there was none
        self.careful = found is not None and not nobody and not (ours and found.count is None)
        self._by = by
        self._head = start
        self._end = end
        self._careful_s = max(CAREFUL_LEAST_S, careful_s)
        self._at_once = at_once
        self._spent_s = 0.0
        self._handled = 0
        self._count = 1
        self.deaths = 0
        self._dead: tuple[str, ...] = ()
        # So many records go alone: a death has named them.
        self._alone = 1
        if found is not None and self.careful:
            self._count_deaths(found, died=found.count != 0 and not ours)
            self._alone = max(1, found.named, found.count or 0)
        self._settle()

    def _count_deaths(self, found: Note, *, died: bool) -> None:
        self.deaths, dead = found.deaths + died, found.dead
        if died and found.by:
            dead += (found.by,)
        if self._by in dead:  # it lives: its session was lost, and its note stayed
            self.deaths = max(0, self.deaths - 1)
        self._dead = tuple(each for each in dead if each != self._by)[-DEATHS_MAX:]

    @property
    def condemned(self) -> bool:
        """True when the record that comes next is not to be handed out any more."""
        return self.careful and self.deaths >= DEATHS_MAX

    @property
    def waiting(self) -> str:
        """The note while nothing is in hand, or no care is taken."""
        return self._note(0) if self.careful else Note(None, by=self._by).text

    @property
    def released(self) -> str:
        """The note of the last commit of this assignment."""
        return self._note(0) if self.careful else ""

    def take(self, available: int) -> tuple[int, str]:
        """Number of next records that may be in hand now, and the note of the commit before."""
        count = 1 if self.deaths or self._alone > 0 else min(self._count, available)
        return count, self._note(count)

    def _note(self, count: int) -> str:
        return Note(count, self.deaths, self._by, self._alone, self._dead).text

    def came_back(self, position: int, count: int, seconds: float) -> bool:
        """Note that so many records are through their handlers; `position` is the next offset. True while care goes
        on."""
        self._spent_s += seconds
        self._handled += count
        self._alone -= count
        if position > self._head:
            self._head, self.deaths, self._dead = position, 0, ()
        lasting = int(PART_S * count / seconds) if seconds > 0 else COUNT_MAX
        # Handlers that wait would take so many times as long one after the other as they took side by side.
        least = max(1, self._at_once // 8)
        self._count = max(least, min(self._count * 2, COUNT_MAX, lasting))
        self._settle()
        return self.careful

    def _settle(self) -> None:
        if not self.careful or self.deaths:
            return
        behind = self._end is not None and self._head >= self._end
        enough = self._spent_s >= self._careful_s and self._handled >= 2 * self._at_once
        if behind or (enough and self._alone <= 0):
            self.careful = False
