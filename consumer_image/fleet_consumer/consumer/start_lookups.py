"""Lookups of starting positions, repeated for each partition until it has one."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleet_consumer.consumer.log_watch import LogWatch
from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, RETRY_S, Start
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.coordinator.starts import StartQuery, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import PartitionBuffer
from fleet_consumer.group import errors
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

LOOKUP_RETRY_S = 5.0
"""The delay before refused starting positions are looked up again, so that their error is not raised hotly."""
PATIENT_ATTEMPTS = 4
"""After this many failed attempts, about three seconds, a partition without a start is reported: no election takes that
long."""


@dataclass(slots=True)
class _Search:
    """The conditions of one partition's lookup, and its attempts so far."""

    # The position that its log no longer has.
    lost: Start | None = None
    # Its topic was deleted and created again.
    remade: bool = False
    # The end of the log that the user sought.
    edge: ResetPolicy | None = None
    # Failed attempts in a row, and the reason of the last one.
    attempts: int = 0
    why: str = ""
    # The last position that was out of range, and how often in a row it had been before.
    refused: tuple[int, int] = (-1, 0)


class StartLookups:
    """The lookups of one consumer. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings, log_watch: LogWatch) -> None:
        self._group = group
        self._settings = settings
        self._log_watch = log_watch
        self._searches: defaultdict[TopicPartition, _Search] = defaultdict(_Search)
        # Partitions that appeared after the first assignment: they begin at their beginning.
        self._appeared: frozenset[TopicPartition] = frozenset()
        self.pending: dict[Ticket[Starts], frozenset[TopicPartition]] = {}
        # Replaced as a whole; any thread may read it.
        self.last_error: errors.OffsetLookupFailed | None = None

    def add_appeared(self, partitions: frozenset[TopicPartition]) -> None:
        """Have these begin at their beginning."""
        self._appeared |= partitions

    def look_up(self, partitions: Iterable[TopicPartition], *, delay_s: float = 0.0) -> None:
        """Look up where these begin, after `delay_s`.

        Committed offsets must not lead back to a position that does not exist: the lookup gets lost positions instead.
        """
        by_edge: dict[ResetPolicy | None, list[TopicPartition]] = {}
        for part in partitions:
            by_edge.setdefault(self._searches[part].edge, []).append(part)
        for edge, parts in by_edge.items():
            searches = {part: self._searches[part] for part in parts}
            query = StartQuery(
                tuple(parts),
                appeared=frozenset() if edge else self._appeared,
                policy=edge or self._settings.reset_policy,
                read_committed=self._settings.read_committed,
                lost={part: search.lost for part, search in searches.items() if search.lost is not None},
                remade=frozenset(part for part, search in searches.items() if search.remade),
                # A seek to an end of the log holds whatever became of the log.
                former={} if edge else self._log_watch.ids(parts),
                use_committed=edge is None and self._settings.group_id is not None,
                delay_s=delay_s,
            )
            self.pending[self._group.find_starts(query)] = frozenset(parts)

    def ended(self) -> Iterator[tuple[frozenset[TopicPartition], Ticket[Starts]]]:
        """Take the lookups that have ended, with the partitions that each was for."""
        for ticket in [ticket for ticket in self.pending if ticket.done]:
            yield self.pending.pop(ticket), ticket

    def ignore(self, partitions: frozenset[TopicPartition]) -> None:
        """Discard answers for these: they are outdated once a partition is given back, even if it returns, or
        sought."""
        for ticket, parts in list(self.pending.items()):
            if parts <= partitions:
                ticket.cancel()
                del self.pending[ticket]
            else:
                self.pending[ticket] = parts - partitions

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """Drop the state of partitions that are no longer owned."""
        self.ignore(partitions)
        for part in partitions:
            self._searches.pop(part, None)
        self.note_error()

    # Changes of what is to be looked up.

    def set_lost(self, buffer: PartitionBuffer, *, remade: bool) -> None:
        """Note that the log no longer has the position of `buffer`, or was `remade`: deleted and created again."""
        search = self._searches[buffer.topic_partition]
        search.lost = Start(buffer.position, buffer.leader_epoch)
        search.remade = search.remade or remade

    def seek(self, partition: TopicPartition) -> Start | None:
        """Clear what an earlier seek or lookup left; returns the lost position, if the log was in doubt."""
        search = self._searches[partition]
        lost, search.lost, search.edge, search.attempts = search.lost, None, None, 0
        return lost

    def seek_in_doubt(self, partition: TopicPartition, place: Start) -> None:
        """Look up a place that was sought while the log was in doubt: it may lie behind a cut, too."""
        self._searches[partition].lost = place
        self.ignore(frozenset((partition,)))
        self.look_up((partition,))

    def seek_to_edge(self, partitions: Iterable[TopicPartition], edge: ResetPolicy) -> None:
        """Replace all conditions of these by an end of the log; `look_up` is to follow."""
        self.ignore(frozenset(partitions))
        for part in partitions:
            self._searches[part] = _Search(edge=edge)

    def out_of_range(self, partition: TopicPartition, position: int) -> None:
        """Look up a partition whose broker does not have its position.

        A position that the lookup confirms and the broker refuses over and over must not be looked up hotly.
        """
        search = self._searches[partition]
        last, times = search.refused
        times = times + 1 if last == position else 0
        search.refused = position, times
        self.look_up((partition,), delay_s=_backoff_s(times))

    # Answers.

    def found(self, partition: TopicPartition) -> Start | None:
        """Note that a start was found; returns the lost position that it replaces."""
        search = self._searches[partition]
        lost, search.lost, search.edge, search.remade = search.lost, None, None, False
        return lost

    def look_up_missing(self, partitions: Iterable[TopicPartition], starts: Starts) -> list[Exception]:
        """Look up again, ever more slowly, what has no start yet; one that has none delays no other.

        Returns the errors to raise: refusals, and NoOffsetForPartition under the policy `none`.
        """
        again: dict[float, list[TopicPartition]] = {}
        for part in partitions:
            search = self._searches[part]
            if part in starts.waiting:
                search.attempts += 1
                search.why = starts.waiting[part]
                again.setdefault(max(starts.patience_s, _backoff_s(search.attempts)), []).append(part)
            elif part in starts.refused:
                again.setdefault(LOOKUP_RETRY_S, []).append(part)
            else:
                search.attempts = 0
        for delay_s, parts in again.items():
            self.look_up(parts, delay_s=delay_s)
        raised: list[Exception] = [starts.refused[part] for part in partitions if part in starts.refused]
        without = [part for part in partitions if part in starts.without]
        if without:
            raised.append(
                errors.NoOffsetForPartition(
                    f"group {self._settings.group_id!r}: no usable offset for {names(without)} and auto_offset_reset "
                    "is none; seek these partitions or commit offsets for them",
                    without,
                )
            )
        return raised

    def note_error(self) -> None:
        """Set `last_error` to what has had no start for longer than an election takes."""
        stuck = [part for part, search in self._searches.items() if search.attempts >= PATIENT_ATTEMPTS]
        if not stuck:
            self.last_error = None
            return
        first = min(stuck)
        others = f", and {len(stuck) - 1} more partitions" if len(stuck) > 1 else ""
        text = (
            f"group {self._settings.group_id!r}: no start found yet for {names((first,))}{others}: "
            f"{self._searches[first].why}; asked again"
        )
        if self.last_error is None:
            logger.warning("%s", text)
        if self.last_error is None or str(self.last_error) != text:
            self.last_error = errors.OffsetLookupFailed(text)


def _backoff_s(times: int) -> float:
    """The delay after so many failed attempts: none, then growing."""
    return min(RETRY_S * 2.0 ** min(times - 1, 30), RETRY_MAX_S) if times else 0.0


def names(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for messages: `topic-number`, separated by commas."""
    return ", ".join(f"{part.topic}-{part.partition}" for part in partitions)
