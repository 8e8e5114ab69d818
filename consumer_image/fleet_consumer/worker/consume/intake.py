"""The intake, the filter between polls and handlers: main workers handle everything, retry workers what is due.

After an assignment retry workers read each partition again from a little before its committed offset; those records
only fill the window in which copies of a hop are found (`retry.suppression`), and move nothing. From the committed
offset on records are handled when they are due (`retry.due`), once each, with their origin's coordinates: a partition
whose head is not is paused there and sought back to it, so that nothing of it is held in memory, and read again when
the head is due. Only what is due within a second is kept. Polls go on all the time.

Whatever is known here of a partition ends with its assignment. Used by the consume loop's thread, except `heads`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract import naming
from fleet_consumer.contract.policies import Policies
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.retry.due import DueClock, Waiting
from fleet_consumer.retry.headers import Story, clamped, read
from fleet_consumer.retry.routing import retried
from fleet_consumer.retry.suppression import REBUILD_RECORDS, Window, identity
from fleet_consumer.worker.consume.outcomes import Handle, PassedOver
from fleet_consumer.worker.consume.progress import NOT_DUE, Partitions, Pauses, note_start
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.logs import LineBudget, about, fields
from fleet_consumer.worker.stats import Stats


class Intake:
    """Stands between polls and handlers: that of main workers. Used by the consume loop's thread only."""

    present: Callable[[Record], Record | None] | None = None
    """Turns a record as it was read into the handler's, None for a copy that is passed over; None in place of the
    function where both are the same record."""

    heads: Mapping[TopicPartition, Waiting] = MappingProxyType({})
    """The records that are waited for now. Any thread."""

    def retell(self, record: Record) -> Record:
        """A record as its handler knows it, from the record as it was read."""
        return record

    def handling(self, handle: Handle, watch: Watch) -> Handle:
        """`handle` for a loop that calls it with records as they were read."""
        return handle

    def before_poll(self, partitions: Partitions, most_s: float) -> float:
        """Resume partitions that are due; returns how many of `most_s` seconds the next poll may wait for records."""
        return most_s

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """The records that may be handled now. Those left out are sought back to, and come again later."""
        for run in runs:
            partitions[run.topic_partition].comes(as_read(run.records[0]).offset)
        return runs

    def not_needed(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """The offset to go on at if data at `offset` cannot be read and are not needed; None where they are."""
        return None

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more."""


LOG = logging.getLogger("fleet_consumer.worker")

WAKE_EVERY_S: Final = 0.02
"""Least time between two wake-ups of partitions, so that many records are due at once. Less than a tenth of the
lateness that is allowed."""

KEEP_MS: Final = 1_000
"""The rest of a run is kept for so long instead of being fetched again: the length of a poll, and a little more."""

KEEP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of keys and values that are kept so, of all partitions. What is beyond is fetched again."""

REBUILD_BYTES: Final = 64 * 1024 * 1024
"""About how much is read in all to fill the windows after an assignment; each partition has an equal share. With large
records it is this, and not their number, that bounds the time until the first due record is handled."""

ONLY_NOT_DUE: Final = frozenset((NOT_DUE,))

BOUNDS_WAIT_S: Final = 5.0
"""Timeout of the look-up of first and last offsets; without an answer copies are found from now on only."""


@dataclass(slots=True)
class _History:
    """Records below `until` were committed before this assignment, as long as they are read in order: `reached` is the
    offset that comes next. When an earlier one comes, the log was cut or made anew, and what it holds now is new.
    `read` records of `size` bytes were read since the last jump; about `share` bytes may be."""

    reached: int
    until: int
    share: int
    read: int = 0
    size: int = 0

    def jump(self) -> int | None:
        """The offset to go on at so that the rest fits the share, by the size of the records read; None to read on.

        The records just before the commit are worth the most: copies lie near it.
        """
        if self.size <= self.share:
            return None
        fitting = max(1, self.share * self.read // self.size)
        target = self.until - fitting
        if target <= self.reached:
            return None
        self.reached, self.read, self.size = target, 0, 0
        return target


class _Kept(NamedTuple):
    """The rest of a poll's run that is due within a moment, and how many bytes it has. `position` is the consumer's at
    that time, which may be behind the run's end: the poll may have passed the end of the partition."""

    run: Run
    position: int | None
    size: int


class RetryIntake(Intake):
    """The intake of retry workers of group `group_id`."""

    def __init__(
        self,
        consumer: Consumer,
        pauses: Pauses,
        policies: Callable[[], Policies | None],
        *,
        group_id: str,
        stats: Stats,
        clock: Clock,
    ) -> None:
        self._consumer = consumer
        self._pauses = pauses
        self._policies = policies
        self._retry_prefix = naming.retry_topic(group_id, "")
        self._stats = stats
        self._clock = clock
        self._budget = LineBudget()
        self._due = DueClock()
        self._windows: dict[TopicPartition, Window] = {}
        # Of partitions whose history is being read.
        self._histories: dict[TopicPartition, _History] = {}
        # Partitions with a kept run are paused meanwhile.
        self._kept: dict[TopicPartition, _Kept] = {}
        # Monotonic: the time of day may be set back.
        self._wake_at = float("-inf")
        self.present = self._present

    def retell(self, record: Record) -> Record:
        return retried(record, self._followed(self._story(record)))

    def handling(self, handle: Handle, watch: Watch) -> Handle:
        def present_and_handle(record: Record) -> Any:
            shown = self._present(record)
            if shown is None:
                raise PassedOver
            watch.record = shown
            return handle(shown)

        return present_and_handle

    def before_poll(self, partitions: Partitions, most_s: float) -> float:
        self._begin(partitions)
        now_ms, now = self._now_ms(), self._clock.monotonic()
        if now >= self._wake_at and (due := self._due.take_due(now_ms)):
            self._wake_at = now + WAKE_EVERY_S
            for topic_partition in due:
                if topic_partition not in self._kept:
                    self._pauses.resume(topic_partition, NOT_DUE)
            self.heads = self._due.waiting
        if self._ready():
            return 0.0
        next_ms = self._due.next_due_at
        if next_ms is None:
            return most_s
        # A millisecond more: a poll that ends a moment too early would only be followed by another.
        return min(most_s, max(0.0, (next_ms - now_ms) / 1000, self._wake_at - now) + 0.001)

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """Leave out history, and what is not due yet."""
        ready = self._ready()
        if not runs and not ready:
            return runs
        sought = self._begin(partitions)
        now_ms = self._now_ms()
        admitted: list[Run] = []
        for topic_partition in ready:
            self._admit(self._kept.pop(topic_partition).run, now_ms, admitted)
            if topic_partition not in self._due.waiting:
                self._pauses.resume(topic_partition, NOT_DUE)
        # One run of each partition: what is kept or sought back to is then all that there is behind it.
        fresh: dict[TopicPartition, list[Record]] = {}
        for run in runs:
            if run.topic_partition not in sought and (records := self._without_history(run, sought)):
                fresh.setdefault(run.topic_partition, []).extend(records)
        for topic_partition, records in fresh.items():
            partitions[topic_partition].comes(records[0].offset)
            self._admit(Run(topic_partition, records), now_ms, admitted)
        self.heads = self._due.waiting
        return admitted

    def _admit(self, run: Run, now_ms: int, admitted: list[Run]) -> None:
        """Admit what is due of a run, and see to the rest.

        The rest is kept for a moment when it is due within one, because fetching it again would take as long; else it
        is sought back to, and nothing of it stays in memory.
        """
        topic_partition, records = run.topic_partition, run.records
        count = self._due.split(topic_partition, records, now_ms)
        if count:
            admitted.append(Run(topic_partition, records[:count]))
        if count == len(records):
            return
        self._pauses.pause(topic_partition, NOT_DUE)
        rest = Run(topic_partition, records[count:])
        soon = self._due.waiting[topic_partition].due_at - now_ms <= KEEP_MS
        if soon and sum(kept.size for kept in self._kept.values()) + (size := _size(rest.records)) <= KEEP_BYTES_MAX:
            self._kept[topic_partition] = _Kept(rest, self._consumer.position(topic_partition), size)
        else:
            self._consumer.seek(topic_partition, records[count].offset)

    def _ready(self) -> list[TopicPartition]:
        """Partitions with kept records that are due, and that nothing else makes stand still.

        Kept records are dropped where the partition was sought since, because its records are to come again. Where its
        log was cut since, the consumer has gone back to the cut by itself: those kept from below it are sought back to.
        """
        if not self._kept:
            return []
        ready, waiting = [], self._due.waiting
        for topic_partition, kept in list(self._kept.items()):
            position, first = self._consumer.position(topic_partition), kept.run.records[0].offset
            if position != kept.position:
                del self._kept[topic_partition]
                if position is not None and first < position:
                    self._consumer.seek(topic_partition, first)
                self._due.assign(topic_partition, self._delay_s(topic_partition.topic))
                self._pauses.resume(topic_partition, NOT_DUE)
                self.heads = self._due.waiting
            elif topic_partition not in waiting and self._pauses.reasons.get(topic_partition) == ONLY_NOT_DUE:
                ready.append(topic_partition)
        return ready

    def not_needed(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """Copies of what is passed over so are not found; nothing that waits is passed over."""
        history = self._histories.get(topic_partition)
        if history is None or offset >= history.until:
            return None
        del self._histories[topic_partition]
        return history.until

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            self._windows.pop(topic_partition, None)
            self._histories.pop(topic_partition, None)
            self._kept.pop(topic_partition, None)
            self._due.forget([topic_partition])
        self.heads = self._due.waiting

    def _begin(self, partitions: Partitions) -> set[TopicPartition]:
        """Go back a little in partitions that are new, now that it is known where they begin; which were sought.

        Also in one that has nothing to read: a copy may come later of what was committed before.
        """
        starts: dict[TopicPartition, int] = {}
        for topic_partition, partition in partitions.items():
            if topic_partition not in self._windows:
                if partition.start is None:
                    note_start(self._consumer, partition)
                if partition.start is not None:
                    starts[topic_partition] = partition.start
        if not starts:
            return set()
        bounds = self._bounds(starts)
        share = REBUILD_BYTES // len(partitions)
        sought = set()
        for topic_partition, start in starts.items():
            self._windows[topic_partition] = Window()
            self._due.assign(topic_partition, self._delay_s(topic_partition.topic))
            first, end = bounds.get(topic_partition, (start, start))
            # Never before the beginning of the log: it would count as skipped what was handled. Nor where the log ends
            # before the start: what is below it now is not what was committed.
            offset = max(start - REBUILD_RECORDS, first)
            if offset < start <= end:
                self._histories[topic_partition] = _History(offset, start, share)
                self._consumer.seek(topic_partition, offset)
                sought.add(topic_partition)
        return sought

    def _bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset of each and the one behind its last; empty after an error."""
        try:
            first = self._consumer.beginning_offsets(partitions, BOUNDS_WAIT_S)
            end = self._consumer.end_offsets(partitions, BOUNDS_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            LOG.warning("first and last offsets unknown; earlier copies are not found", extra=fields(error=str(error)))
            return {}
        return {each: (first[each], end[each]) for each in first}

    def _without_history(self, run: Run, sought: set[TopicPartition]) -> list[Record]:
        """The records from where this assignment began; those before it only fill the window.

        Where they are large, some of them are passed over: the partition is sought then, and stands in `sought`.
        """
        topic_partition, records = run.topic_partition, run.records
        history = self._histories.get(topic_partition)
        if history is None:
            return records
        count = 0
        if records[0].offset >= history.reached:
            window = self._windows[topic_partition]
            for record in records:
                if record.offset >= history.until:
                    break
                window.duplicate(identity(self._story(record), record.key, record.value), record.offset)
                count += 1
        history.reached = run.next_offset
        if count < len(records) or history.reached >= history.until:
            del self._histories[topic_partition]
            return records[count:]
        history.read += count
        history.size += _size(records)
        target = history.jump()
        if target is not None:
            self._consumer.seek(topic_partition, target)
            sought.add(topic_partition)
        return []

    def _present(self, record: Record) -> Record | None:
        """The record for its handler, None for a copy. Asked again about the same record it answers the same."""
        found = self._story(record)
        window = self._windows.get(TopicPartition(record.topic, record.partition))
        # By the headers as read: clamped to a shorter sequence, two attempts would be copies of each other.
        if window is not None and window.duplicate(identity(found, record.key, record.value), record.offset):
            self._stats.suppressed += 1
            allowed, left_out = self._budget.spend(self._clock.monotonic())
            if left_out:
                LOG.info("log lines about duplicates were left out", extra=fields(count=left_out))
            if allowed:
                LOG.info("duplicate skipped", extra=fields(**about(retried(record, found))))
            return None
        story = self._followed(found)
        self._stats.damaged_headers += story.damaged
        delay_s = self._delay_s(record.topic)
        if delay_s and record.timestamp >= 0:
            self._stats.lateness.observe(max(0.0, self._clock.wall() - record.timestamp / 1000 - delay_s))
        return retried(record, story)

    def _story(self, record: Record) -> Story:
        return read(record, now_ms=self._now_ms())

    def _followed(self, found: Story) -> Story:
        """A record's story under the policy that it follows."""
        policies = self._policies()
        return found if policies is None else clamped(found, policies)

    def _delay_s(self, topic: str) -> int:
        """The delay in a topic's name, which the group's own settings gave it; none for what is no retry topic."""
        if not topic.startswith(self._retry_prefix):
            return 0
        return naming.parse_delay(topic.removeprefix(self._retry_prefix))

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _size(records: Iterable[Record]) -> int:
    """Bytes of keys and values, as they were read."""
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)
