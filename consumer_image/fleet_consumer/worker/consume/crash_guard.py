"""Careful handling of a partition whose last owner died, based on crash markers in the metadata of its commits. Pure.

If a record kills the worker's process, only the last commit survives. The marker is therefore committed beforehand:

- `fleet-hand=open` is the marker of normal handling. An owner removes it when the partition is revoked. A worker that
  finds this marker knows that the previous owner died, but not at which record. Any record from the committed offset on
  may have been in the dead worker's handler.
- `fleet-hand=1` is the marker of careful handling. The worker commits this marker before it calls the handler. The
  value is the number of records that are handled next, from the committed offset on. The first value is 1. The worker
  handles no other records at this time. If the worker dies, the marker therefore names the suspected records.
- `deaths=1` counts the processes that died while they handled the record at the committed offset, alone or with later
  records. After the third death, the handler is not called for this record again.
- `fleet-hand=none` means that a careful owner was handling no record of this partition. If such an owner dies, the
  partition's records are not the cause.
- `fleet-dead=0a,0b` lists the processes that are counted as dead. It is a separate field, which older workers ignore. A
  worker that lost its session cannot commit, so its marker remains although its process lives. A process that finds
  itself in the list removes itself, and lowers the count by one. So no record counts as poison merely because its
  partition moves between living workers.

Any progress clears the count, because the count belongs to one record. Records that were being handled at an earlier
death are handled one by one. A handler that hangs in an executor counts as a death: the hanging call ends the process,
and the last commit keeps the marker.

Careful handling ends when all records that the dead owner can have read are handled. It also ends after a time
(`careful_s`) that is longer than the time between two commits of an owner. If the record that kills processes is still
ahead, the next crash leaves a later commit, and careful handling starts again at that offset.

Decision: docs/decisions/0024-crash-guard.md.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.retry.failure import Poison

DEATHS_MAX: Final = 3
"""A record is treated as poison after this many deaths without progress in between."""

PART_S: Final = 0.5
"""Target duration of a chunk (the records handled after one commit) in seconds. Chunk sizes are doubled until
chunks take about this long. With smaller chunks, commits would take longer than handlers."""
COUNT_MAX: Final = 256

CAREFUL_LEAST_S: Final = 5.0
"""Lower limit of `careful_s` in seconds. The caller passes twice the commit interval. This alone may be too short,
because commits may be late."""

_MARKER: Final = re.compile(
    r"fleet-hand=(open|none|[1-9][0-9]{0,6})(?:;deaths=([0-9]{1,3}))?(?:;named=([0-9]{1,7}))?(?:;by=([0-9a-f]{1,16}))?"
)
_DEAD: Final = re.compile(rf"fleet-dead=([0-9a-f]{{1,16}}(?:,[0-9a-f]{{1,16}}){{0,{DEATHS_MAX - 1}}})")
_NAMED: Final[dict[str, int | None]] = {"open": None, "none": 0}


def poison(deaths: int) -> Poison:
    return Poison(f"{deaths} processes died while handling this record; the handler is not called for it again")


@dataclass(frozen=True, slots=True)
class CrashMarker:
    """The crash marker of a commit.

    `count` is the number of records from the committed offset on that were being handled; None if unknown. `named` is
    the number of records that were being handled at an earlier death and have not been handled alone since. `by` is the
    process that wrote the marker. A process that finds its own marker did not die, but has lost the partition in
    between. `dead` are the latest processes counted in `deaths`.
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
    """Return the crash marker in a commit's metadata, or None. Parsing is strict, because any client that may commit
    can write metadata."""
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

    `found` is the crash marker of the commit at which the assignment starts; None without a marker. `by` is this
    process. `at_once` is the maximum number of records that normal handling processes concurrently. `end` is the offset
    after the last record that the previous owner can have read; None if unknown. Careful handling may end when its
    chunks have taken `careful_s` seconds in total.
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
        unread = end is not None and start >= end  # the previous owner had read no record at or after `start`
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
        # Number of next records to handle one by one, because they were being handled at an earlier death.
        self._alone = 1
        if found is not None and self.careful:
            self._count_deaths(found, died=found.count != 0 and not ours)
            self._alone = max(1, found.named, found.count or 0)
        self._settle()

    def _count_deaths(self, found: CrashMarker, *, died: bool) -> None:
        self.deaths, dead = found.deaths + died, found.dead
        if died and found.by:
            dead += (found.by,)
        if self._by in dead:  # this process lost its session, so its marker stayed, but it did not die
            self.deaths = max(0, self.deaths - 1)
        self._dead = tuple(each for each in dead if each != self._by)[-DEATHS_MAX:]

    @property
    def condemned(self) -> bool:
        """True if the handler must not be called again for the next record."""
        return self.careful and self.deaths >= DEATHS_MAX

    @property
    def waiting(self) -> str:
        """The marker for commits during normal handling, and between two chunks of careful handling."""
        return self._marker(0) if self.careful else CrashMarker(None, by=self._by).text

    @property
    def released(self) -> str:
        """The marker for the last commit before the partition is revoked; empty in normal handling."""
        return self._marker(0) if self.careful else ""

    def next_count(self, available: int) -> tuple[int, str]:
        """Return the number of records that may be handled next, and the marker to commit before they are handled."""
        count = 1 if self.deaths or self._alone > 0 else min(self._count, available)
        return count, self._marker(count)

    def _marker(self, count: int) -> str:
        return CrashMarker(count, self.deaths, self._by, self._alone, self._dead).text

    def count_handled(self, position: int, count: int, seconds: float) -> bool:
        """Note that the last `count` records before `position` were handled in `seconds`. Returns True if careful
        handling continues."""
        self._spent_s += seconds
        self._handled += count
        self._alone -= count
        if position > self._head:
            self._head, self.deaths, self._dead = position, 0, ()
        lasting = int(PART_S * count / seconds) if seconds > 0 else COUNT_MAX
        # Even with slow handlers, a chunk uses at least an eighth of the concurrency. Handling one record at a time
        # would take much longer.
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
