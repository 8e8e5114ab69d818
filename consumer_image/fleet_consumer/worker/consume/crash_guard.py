"""Careful handling of a partition whose last owner died, based on crash markers in the metadata of its commits. Pure.

A record that kills its process leaves nothing behind but the last commit, so the marker is committed beforehand:

- `fleet-hand=open` is the marker of normal handling. An owner removes it when the partition is revoked. A worker that
  finds it knows that the previous owner died, but not at which record, because any record from the committed offset on
  may have been in its handler.
- `fleet-hand=1` is the marker of careful handling. The worker commits it before it hands out records. Its value is the
  number of these records, at first one. The worker handles no other record meanwhile, so if it dies, the marker names
  the suspected records.
- `deaths=1` counts deaths at the record that was handled alone, or at the first of several records. After the third
  death this record is not handed out again.
- `fleet-hand=none` means that a careful owner was handling no record of this partition, so its death is unrelated to
  the partition.
- `fleet-dead=0a,0b` is a separate field that older workers ignore: the processes counted as dead. A worker that lost
  its session cannot commit, so its marker remains although its process lives. A process that finds itself in the list
  removes itself from the count. So no record counts as poison merely because its partition moves between living
  workers.

Any progress clears the count, because the count belongs to one record. Records that were being handled at an earlier
death are handed out one by one. A handler that hangs in an executor counts as a death: the process ends because of it,
and the last commit keeps the marker.

Careful handling ends when all records that the dead owner can have read are handled. It also ends after a time
(`careful_s`) that is longer than an owner works between two commits. If the record that kills processes is still ahead,
the next death leaves a later commit, and careful handling starts again there.

Decision: docs/decisions/0024-crash-guard.md.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.retry.failure import Poison

DEATHS_MAX: Final = 3
"""Number of deaths at one record, without progress in between, after which the record is treated as poison."""

PART_S: Final = 0.5
"""Chunks (the records handed out after one commit) are doubled until their handling takes about this time in seconds.
With smaller chunks, commits would take longer than handlers."""
COUNT_MAX: Final = 256

CAREFUL_LEAST_S: Final = 5.0
"""Lower limit of `careful_s` in seconds. The caller passes twice the commit interval, which may be too short, because
commits may be late."""

_MARKER: Final = re.compile(
    r"fleet-hand=(open|none|[1-9][0-9]{0,6})(?:;deaths=([0-9]{1,3}))?(?:;named=([0-9]{1,7}))?(?:;by=([0-9a-f]{1,16}))?"
)
_DEAD: Final = re.compile(rf"fleet-dead=([0-9a-f]{{1,16}}(?:,[0-9a-f]{{1,16}}){{0,{DEATHS_MAX - 1}}})")
_NAMED: Final[dict[str, int | None]] = {"open": None, "none": 0}


def poison(deaths: int) -> Poison:
    return Poison(f"{deaths} processes died while this record was being handled; the handler does not get it again")


@dataclass(frozen=True, slots=True)
class CrashMarker:
    """The crash marker of a commit.

    `count` records from its offset on were being handled; None if any number may have been. `named` records were being
    handled at an earlier death, and have not been handled alone since. `by` is the process that wrote the marker; a
    process that finds its own marker has lost the partition in between, and did not die. `dead` are the latest
    processes counted in `deaths`.
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


def read_crash_marker(metadata: str) -> CrashMarker | None:
    """Return a commit's crash marker, or None. Parsing is strict: anybody who may commit can write metadata."""
    marker: CrashMarker | None = None
    dead: tuple[str, ...] = ()
    for part in metadata.split(" "):
        if marker is None and (found := _MARKER.fullmatch(part)) is not None:
            count = _NAMED[found[1]] if found[1] in _NAMED else int(found[1])
            marker = CrashMarker(count, int(found[2] or 0), found[4] or "", int(found[3] or 0))
        elif (listed := _DEAD.fullmatch(part)) is not None:
            dead = tuple(listed[1].split(","))
    return None if marker is None else replace(marker, dead=dead)


class CrashGuard:
    """The crash guard of one partition during one assignment.

    `found` is the crash marker of the commit at which the assignment starts (None without a marker), `by` this process.
    `at_once` is the maximum number of records that are handled at the same time in normal handling, `end` the offset
    after the last record that the previous owner can have read (None if unknown). After `careful_s` seconds careful
    handling may end.
    """

    def __init__(
        self,
        found: CrashMarker | None,
        start: int,
        *,
        by: str = "",
        end: int | None = None,
        at_once: int = 1,
        careful_s: float = 0.0,
    ) -> None:
        ours = found is not None and found.by == by
        unread = end is not None and start >= end  # the previous owner had no record from `start` on
        self.careful = found is not None and not unread and not (ours and found.count is None)
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
        # Number of records to hand out one by one, because they were being handled at an earlier death.
        self._alone = 1
        if found is not None and self.careful:
            self._count_deaths(found, died=found.count != 0 and not ours)
            self._alone = max(1, found.named, found.count or 0)
        self._settle()

    def _count_deaths(self, found: CrashMarker, *, died: bool) -> None:
        self.deaths, dead = found.deaths + died, found.dead
        if died and found.by:
            dead += (found.by,)
        if self._by in dead:  # this process lives: it lost its session, and its marker stayed
            self.deaths = max(0, self.deaths - 1)
        self._dead = tuple(each for each in dead if each != self._by)[-DEATHS_MAX:]

    @property
    def condemned(self) -> bool:
        """True if the next record must not be handed out again."""
        return self.careful and self.deaths >= DEATHS_MAX

    @property
    def waiting(self) -> str:
        """The marker to commit during normal handling, or between two chunks of careful handling."""
        return self._marker(0) if self.careful else CrashMarker(None, by=self._by).text

    @property
    def released(self) -> str:
        """The marker of the last commit of this assignment."""
        return self._marker(0) if self.careful else ""

    def next_count(self, available: int) -> tuple[int, str]:
        """Return how many of the next records may be handed out now, and the marker to commit first."""
        count = 1 if self.deaths or self._alone > 0 else min(self._count, available)
        return count, self._marker(count)

    def _marker(self, count: int) -> str:
        return CrashMarker(count, self.deaths, self._by, self._alone, self._dead).text

    def count_handled(self, position: int, count: int, seconds: float) -> bool:
        """Note that `count` records before `position` were handled. Returns True if careful handling goes on."""
        self._spent_s += seconds
        self._handled += count
        self._alone -= count
        if position > self._head:
            self._head, self.deaths, self._dead = position, 0, ()
        lasting = int(PART_S * count / seconds) if seconds > 0 else COUNT_MAX
        # Even with slow handlers, a chunk uses an eighth of the concurrency, because handling one by one would take
        # much longer.
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
