"""The intake, a filter between polls and handlers. Main workers admit all records, retry workers only due records.

After an assignment, a retry worker first seeks each partition back, to a little before the committed offset. The
records in between are not handled. They only fill the window in which duplicate retry publishes are found
(`retry.suppression`). The seek never goes below the start of the log, where the reset policy would apply. If the log
ends before the committed offset, or an offset lower than the previous one arrives, the topic was recreated or
truncated. All records of the partition are then new and are handled.

From the committed offset on, each record is handled once, when it is due (`retry.due`), with the coordinates of its
origin. A partition whose next record is not due is paused, and the consumer seeks back to this record, so waiting
records use no memory. Only records that are due within a second are kept in memory. Polls continue during the wait.

The state of a partition is dropped when the partition is revoked or lost. Only the consume loop's thread uses an
intake; any thread may read `heads`. Decision: docs/decisions/0014-waiting-and-stopping.md.
"""

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
from fleet_consumer.retry.headers import RetryHistory, clamped, read
from fleet_consumer.retry.routing import retried
from fleet_consumer.retry.suppression import REBUILD_RECORDS, Window, identity
from fleet_consumer.worker.consume.outcomes import Handle, PassedOver
from fleet_consumer.worker.consume.progress import NOT_DUE, Partitions, Pauses, record_start
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.logs import LineBudget, about, fields
from fleet_consumer.worker.stats import Stats


class Intake:
    """The intake of main workers: admits all records. Used by the consume loop's thread only."""

    present: Callable[[Record], Record | None] | None = None
    """Function that builds the record for the handler from the record that was read. It returns None for a duplicate.
    If this attribute is None, the handler gets the record that was read."""

    heads: Mapping[TopicPartition, Waiting] = MappingProxyType({})
    """The next record of each partition whose next record is not due yet. Any thread may read this mapping."""

    def present_again(self, record: Record) -> Record:
        """Build the record for the handler again, from the record that was read."""
        return record

    def handling(self, handle: Handle, watch: Watch) -> Handle:
        """Return a function for records as they were read. It calls `handle` with the record for the handler."""
        return handle

    def before_poll(self, partitions: Partitions, most_s: float) -> float:
        """Resume partitions whose next record is due. Returns the next poll's timeout, at most `most_s` seconds."""
        return most_s

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """Return the records that may be handled now. All others are kept in memory, or read again after a seek."""
        for run in runs:
            partitions[run.topic_partition].admitting(as_read(run.records[0]).offset)
        return runs

    def not_needed(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """Return the offset to continue at if the unreadable data at `offset` may be skipped, otherwise None."""
        return None

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the state of partitions that are no longer owned."""


LOG = logging.getLogger("fleet_consumer.worker")

WAKE_EVERY_S: Final = 0.02
"""Minimum interval in seconds between two checks for due records, so each check finds many. The interval is less than
a tenth of the allowed lateness."""

KEEP_MS: Final = 1_000
"""Records due within this many milliseconds are kept in memory, because fetching them again takes almost as long."""

KEEP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit for the keys and values of all kept records in bytes. Records beyond the limit are fetched again."""

REBUILD_BYTES: Final = 64 * 1024 * 1024
"""Approximate number of bytes read after an assignment to fill the windows for duplicates, shared equally by the
partitions. The limit bounds the time until the first due record is handled. A limit in records would not bound this
time, because records may be large."""

ONLY_NOT_DUE: Final = frozenset((NOT_DUE,))

BOUNDS_WAIT_S: Final = 5.0
"""Timeout of the lookup of first and end offsets in seconds. Without a response, the windows start empty, so duplicates
of earlier records are not found."""


@dataclass(slots=True)
class _History:
    """A partition's records below offset `until`, which were committed before this assignment.

    `reached` is the next offset to read. A record below `reached` is new, because the topic was truncated or recreated.
    `read` and `size` are the number and total bytes of the records read since the last jump. `share` is the approximate
    number of bytes that may be read.
    """

    reached: int
    until: int
    share: int
    read: int = 0
    size: int = 0

    def jump(self) -> int | None:
        """Return the offset to seek to if more than `share` bytes were read and the rest would not fit `share` either.

        Otherwise returns None. The records from the returned offset to `until` fit the share, estimated from the mean
        size of the records already read. The last records before the committed offset are the most useful, because most
        duplicates refer to recent records.
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
    """The records of a polled run that will be due soon, and their size in bytes.

    `position` is the consumer's position at the time when the records were kept. The position may be beyond the end of
    the run, because a poll also passes offsets without records.
    """

    run: Run
    position: int | None
    size: int


class RetryIntake(Intake):
    """The intake of retry workers: admits due records. `group_id` is the group of the main workers."""

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
        self._histories: dict[TopicPartition, _History] = {}
        # Runs in memory that wait until they are due. Their partitions are paused.
        self._kept: dict[TopicPartition, _Kept] = {}
        # Time of the next check for due records, in monotonic seconds, because the wall clock may be set back.
        self._wake_at = float("-inf")
        self.present = self._present

    def present_again(self, record: Record) -> Record:
        return retried(record, self._followed(self._history(record)))

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
        # One millisecond longer: a poll that ended slightly too early would find no due record and be repeated.
        return min(most_s, max(0.0, (next_ms - now_ms) / 1000, self._wake_at - now) + 0.001)

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """Return the due records from the committed offset on. Earlier records (history) only fill the windows."""
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
        # Join the runs of each partition. Otherwise a later run could be admitted while earlier records are kept, or
        # are to be read again after a seek.
        fresh: dict[TopicPartition, list[Record]] = {}
        for run in runs:
            if run.topic_partition not in sought and (records := self._without_history(run, sought)):
                fresh.setdefault(run.topic_partition, []).extend(records)
        for topic_partition, records in fresh.items():
            partitions[topic_partition].admitting(records[0].offset)
            self._admit(Run(topic_partition, records), now_ms, admitted)
        self.heads = self._due.waiting
        return admitted

    def _admit(self, run: Run, now_ms: int, admitted: list[Run]) -> None:
        """Admit the due records of a run.

        The other records are kept if they are due soon, because fetching them again would take as long. Otherwise the
        consumer seeks back to these records, so they use no memory.
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
        """Return the partitions whose kept records are due. Partitions that are also paused for another reason are left
        out.

        If a seek was made in a partition since its records were kept, these records are dropped, because they are
        fetched again. If the log was truncated, the consumer's position is the truncation offset. The method seeks to
        the first kept record if this record is lower than the position.
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
        """Allow skipping history only. No waiting record is lost, but duplicates of skipped records are not found."""
        history = self._histories.get(topic_partition)
        if history is None or offset >= history.until:
            return None
        del self._histories[topic_partition]
        return history.until

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            self._windows.pop(topic_partition, None)
            self._histories.pop(topic_partition, None)
            self._kept.pop(topic_partition, None)
            self._due.discard_partitions([topic_partition])
        self.heads = self._due.waiting

    def _begin(self, partitions: Partitions) -> set[TopicPartition]:
        """Seek back to the history of each new partition with a known starting position. Returns the partitions in
        which a seek was made.

        Partitions without new records are included, because a duplicate of a committed record may arrive later.
        """
        starts: dict[TopicPartition, int] = {}
        for topic_partition, partition in partitions.items():
            if topic_partition not in self._windows:
                if partition.start is None:
                    record_start(self._consumer, partition)
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
            # Never seek below the start of the log, where the reset policy would apply. If the log ends before the
            # starting position, do not seek: the topic was recreated, so its records are not the committed ones.
            offset = max(start - REBUILD_RECORDS, first)
            if offset < start <= end:
                self._histories[topic_partition] = _History(offset, start, share)
                self._consumer.seek(topic_partition, offset)
                sought.add(topic_partition)
        return sought

    def _bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset and the end offset of each partition; an empty mapping after an error."""
        try:
            first = self._consumer.beginning_offsets(partitions, BOUNDS_WAIT_S)
            end = self._consumer.end_offsets(partitions, BOUNDS_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            LOG.warning(
                "lookup of offsets failed; duplicates of earlier records are not found", extra=fields(error=str(error))
            )
            return {}
        return {each: (first[each], end[each]) for each in first}

    def _without_history(self, run: Run, sought: set[TopicPartition]) -> list[Record]:
        """Return the records from the starting position on. Earlier records only fill the window for duplicates.

        If the earlier records are large, the consumer seeks past some of them, and the partition is added to `sought`.
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
                window.duplicate(identity(self._history(record), record.key, record.value), record.offset)
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
        """Return the record for the handler; None for a duplicate. Repeated calls for a record have the same result."""
        found = self._history(record)
        window = self._windows.get(TopicPartition(record.topic, record.partition))
        # Compute the identity from the headers that were read. With headers clamped to a shorter sequence of delays,
        # two different attempts would have the same identity.
        if window is not None and window.duplicate(identity(found, record.key, record.value), record.offset):
            self._stats.suppressed += 1
            allowed, left_out = self._budget.spend(self._clock.monotonic())
            if left_out:
                LOG.info("suppressed log lines about duplicates", extra=fields(count=left_out))
            if allowed:
                LOG.info("duplicate skipped", extra=fields(**about(retried(record, found))))
            return None
        history = self._followed(found)
        self._stats.damaged_headers += history.damaged
        delay_s = self._delay_s(record.topic)
        if delay_s and record.timestamp >= 0:
            self._stats.lateness.observe(max(0.0, self._clock.wall() - record.timestamp / 1000 - delay_s))
        return retried(record, history)

    def _history(self, record: Record) -> RetryHistory:
        return read(record, now_ms=self._now_ms())

    def _followed(self, found: RetryHistory) -> RetryHistory:
        policies = self._policies()
        return found if policies is None else clamped(found, policies)

    def _delay_s(self, topic: str) -> int:
        if not topic.startswith(self._retry_prefix):
            return 0
        return naming.parse_delay(topic.removeprefix(self._retry_prefix))

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _size(records: Iterable[Record]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)
