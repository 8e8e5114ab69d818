"""One run of a Redrive: reads, writes and commits according to the decisions of `selection`.

A kill at any point is harmless. Each batch is written and acknowledged before its offsets are committed. If the process
is killed between the two, the next start finds the batch's records in the ledger (the redrive topic). It counts these
records without writing them again.

Decision: docs/decisions/0030-failed-after-redrives.md.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract.naming import redrive_topic
from fleet_consumer.contract.redrive_config import COUNTS, RedriveConfig
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import DataPlaneFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.bounded import BoundedReader, Step
from fleet_consumer.librdkafka.producer import ProduceFailed, RecordProducer, SendHandle
from fleet_consumer.record import TopicPartition, names
from fleet_consumer.redrive.selection import (
    Choice,
    Decision,
    Ledger,
    RateLimit,
    RedriveProgress,
    RoundRobinBuffer,
    Selection,
    parse_metadata,
    place,
)
from fleet_consumer.retry.headers import redriven_headers
from fleet_consumer.retry.routing import partition_of

LOG = logging.getLogger("fleet_consumer.redrive")

BATCH_RECORDS: Final = 500
"""Maximum number of records per batch. After each batch, the run waits for acknowledgements and commits its
progress."""
ACK_TIMEOUT_S: Final = 120.0
STALL_S: Final = 120.0
"""Seconds without records after which the run fails, and the Job retries it. This is longer than a broker's restart
takes."""
LOG_INTERVAL_S: Final = 10.0


class Stopped(Exception):
    """The run was stopped before its end; the next start resumes from the commits."""

    reason = "Stopped"


class Run:
    """One start of a run over a failed topic; call `run` once. `reader` commits in the run's own group. Setting `stop`
    ends the run early.

    `run` raises the errors of reader and producer; a new start resumes without loss or duplicates.
    """

    def __init__(
        self,
        config: RedriveConfig,
        topic: str,
        reader: BoundedReader,
        producer: RecordProducer,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._config = config
        self._topic = topic
        self._reader = reader
        self._producer = producer
        self._stop = stop
        self._clock = clock
        self._target = redrive_topic(config.group_id)
        self._ledger = Ledger(config.id)
        self._selection = Selection(config.filter, self._ledger, redrive_id=config.id, max_redrives=config.max_redrives)
        self._rate_limit = RateLimit(config.records_per_second)
        self._batch = min(BATCH_RECORDS, config.records_per_second or BATCH_RECORDS)
        self._progress: dict[TopicPartition, RedriveProgress] = {}
        # Log start of every partition of the failed topic, including partitions that this run does not read.
        self._starts: dict[TopicPartition, int] = {}
        # For each record examined since the last commit: its partition and its key in the ledger.
        self._examined: list[tuple[TopicPartition, bytes]] = []
        # The offset after the last examined record, keyed by partition; `_stored` has the committed offsets.
        self._examined_to: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self._refused = 0
        self._log_at = float("-inf")

    def run(self) -> dict[str, int]:
        """Move all selected records, round robin over the partitions, and return the counts.

        Raises SettingsInvalid if the topic lacks a partition that the filter names. A partition without a leader blocks
        no other partition: the run raises DataPlaneFailed after all others are done.
        """
        ranges, leaderless = self._begin()
        self._read_ledger()
        remaining = sum(end - start for start, end in ranges.values())
        LOG.info("redrive begins", extra=_fields(records=remaining, ledger=len(self._ledger)))
        if self._go_through(ranges) and leaderless:
            raise DataPlaneFailed(f"{names(leaderless)}: no leader available; all other partitions are done")
        return self._counts()

    def _begin(self) -> tuple[dict[TopicPartition, tuple[int, int]], list[TopicPartition]]:
        """Return the range of offsets for each partition, and the partitions without a leader. The ends are committed
        before any record is moved: records that fail again during the run must not be part of the run."""
        places = self._config.filter.places
        every = self._reader.partitions(self._topic)
        for number, offsets in (places or {}).items():
            if TopicPartition(self._topic, number) not in every:
                problem = f"topic {self._topic} has no partition {number}; it has {len(every)}"
                raise SettingsInvalid("", f"record {number}:{min(offsets)}: {problem}")
        partitions = [each for each in every if places is None or each.partition in places]
        bounds = self._reader.bounds(every)
        self._starts = {partition: first for partition, (first, _) in bounds.items()}
        committed = self._reader.committed(partitions)
        ranges, fresh = {}, {}
        for partition in partitions:
            if partition not in bounds:
                continue
            log_start, log_end = first, end = bounds[partition]
            if places is not None:
                first = max(first, min(places[partition.partition]))
                end = max(first, min(end, max(places[partition.partition]) + 1))
            known = committed.get(partition)
            progress = parse_metadata(known.metadata) if known is not None else None
            if progress is None or known is None:
                progress = RedriveProgress(end, start=log_start)
                known = fresh[partition] = OffsetAndMetadata(first, -1, progress.metadata())
            # A recreated or truncated topic may end before the stored end. The run must not wait for the missing
            # records.
            if progress.end > log_end:
                # The stored counts are about records that no longer exist.
                progress.start = progress.put_back = 0
            progress.end = min(progress.end, end)
            if self._config.dry_run:
                # A dry run writes no ledger, so it reads from the beginning to detect copies.
                progress, known = RedriveProgress(progress.end, start=log_start), OffsetAndMetadata(first)
            self._progress[partition] = progress
            start = max(known.offset, first)
            ranges[partition] = (start, max(start, progress.end))
            self._examined_to[partition] = start
        if fresh:
            self._reader.commit(fresh)
        return ranges, [each for each in partitions if each not in bounds]

    def _read_ledger(self) -> None:
        """Read the whole ledger. Records missing from the ledger would be moved twice."""
        partitions = self._reader.partitions(self._target)
        bounds = self._reader.bounds(partitions)
        unknown = [each for each in partitions if each not in bounds]
        if unknown:
            raise DataPlaneFailed(
                f"{names(unknown)}: no leader available, so the records that earlier runs moved are unknown"
            )
        for step in self._read_ranges(bounds):
            now_ms = self._now_ms()
            for records in step.records.values():
                for record in records:
                    self._ledger.record_moved(record, now_ms)

    def _go_through(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Examine every record. Returns False if the run stopped at its maximum of selected records."""
        buffer, done = RoundRobinBuffer(), set[TopicPartition]()
        for step in self._read_ranges(ranges):
            for partition, records in step.records.items():
                buffer.put(partition, records)
            done |= step.done
            # Buffer records as long as they arrive without a pause, so that the round robin has records of more
            # partitions to alternate between.
            if (buffer.full or not step.records) and not self._move_buffered(buffer, ranges, done):
                return False
        return self._move_buffered(buffer, ranges, done)

    def _move_buffered(
        self, buffer: RoundRobinBuffer, ranges: Mapping[TopicPartition, tuple[int, int]], done: set[TopicPartition]
    ) -> bool:
        """Examine the buffered records and move those selected. Returns False if the run stopped at its maximum of
        selected records."""
        moves: list[tuple[TopicPartition, Choice]] = []
        for partition, record in buffer.drain():
            choice = self._selection.choose(record, self._now_ms())
            progress = self._progress[partition]
            if choice.decision in (Decision.MOVE, Decision.MOVED_BEFORE):
                if self._full():
                    self._settle(moves)
                    return False
                self._ledger.add(choice.digest, record)
                progress.selected += 1
                progress.moved += choice.decision is Decision.MOVED_BEFORE
                progress.failed_again += choice.history.redrive_count > 0
                if choice.decision is Decision.MOVE and not self._config.dry_run:
                    moves.append((partition, choice))
            self._examined.append((partition, choice.digest))
            progress.guarded += choice.decision is Decision.GUARDED
            progress.moved_before += choice.decision is Decision.KNOWN
            self._examined_to[partition] = record.offset + 1
            if len(moves) >= self._batch:
                self._settle(moves)
                moves = []
        for partition in done:
            self._examined_to[partition] = ranges[partition][1]
        self._settle(moves)
        return True

    def _full(self) -> bool:
        most = self._config.max_records
        return most is not None and sum(each.selected for each in self._progress.values()) >= most

    def _settle(self, moves: list[tuple[TopicPartition, Choice]]) -> None:
        """Write a batch, wait for its acknowledgement, and commit the progress."""
        if moves:
            self._wait(self._rate_limit.wait_s(len(moves), self._clock.monotonic()))
            self._write(moves)
        # Counted only after the write: a copy counts as put back only if the record itself was written and not refused.
        for partition, digest in self._examined:
            self._progress[partition].put_back += self._ledger.holds(digest)
        self._examined.clear()
        changes = {
            each: OffsetAndMetadata(at, -1, self._progress[each].metadata()) for each, at in self._examined_to.items()
        }
        changes = {each: entry for each, entry in changes.items() if self._stored.get(each) != entry}
        if changes:
            self._reader.commit(changes)
            self._stored |= changes
        if self._clock.monotonic() >= self._log_at:
            self._log_at = self._clock.monotonic() + LOG_INTERVAL_S
            counts = self._counts()
            shown = {name: counts[name] for name in ("selected", "moved", "guarded", "refused")}
            LOG.info("redrive in progress", extra=_fields(**shown))
        self._wait(0)

    def _write(self, moves: list[tuple[TopicPartition, Choice]]) -> None:
        handles = [self._send(move) for _, move in moves]
        self._producer.flush(ACK_TIMEOUT_S)
        for (partition, move), handle in zip(moves, handles, strict=True):
            if not handle.done:
                raise ProduceFailed(self._target, "NotAcknowledged", f"no acknowledgement within {ACK_TIMEOUT_S:g} s")
            if handle.error is None:
                self._progress[partition].moved += 1
                self._ledger.written(move.digest)
            elif handle.error.refuses_record:
                # The record stays in the failed topic, is counted as refused, and blocks no other record.
                self._refused += 1
                where = {"partition": partition.partition, "offset": move.record.offset}
                LOG.error("record refused by the redrive topic", extra=_fields(error=str(handle.error), **where))
            else:
                raise handle.error

    def _send(self, move: Choice) -> SendHandle:
        record, history = move.record, move.history
        headers = redriven_headers(
            record.headers, history, redrive_id=self._config.id, source=place(record), now_ms=self._now_ms()
        )
        where = partition_of(record.key, history.origin, self._config.partitions)
        return self._producer.send(self._target, key=record.key, value=record.value, headers=headers, partition=where)

    def _read_ranges(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Step]:
        """Yield the records of these ranges, step by step. Raises DataPlaneFailed on a stall, and Stopped."""
        missing = set(ranges)
        # Only the wait for brokers counts as a stall, because the rate limit may delay the processing.
        idle_s, asked_at = 0.0, self._clock.monotonic()
        for step in self._reader.read(ranges):
            self._wait(0)
            missing -= step.done
            idle_s = 0.0 if step.records or step.done else idle_s + self._clock.monotonic() - asked_at
            if idle_s >= STALL_S:
                raise DataPlaneFailed(
                    f"{names(sorted(missing))}: no records for {STALL_S:g} s; all other partitions are done"
                )
            yield step
            asked_at = self._clock.monotonic()

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds) if seconds > 0 else self._stop.is_set():
            raise Stopped("stopped before the end; the next start resumes from here")

    def _counts(self) -> dict[str, int]:
        """Return the counts of all starts of the run, keyed by their published names; `refused` counts this start only.

        `redrivenTo` is the sum of `RedriveProgress.redriven_to` over all partitions of the failed topic. It tells how
        many failed records are left: at any later time, at most the sum of the partitions' log end offsets minus
        `redrivenTo`. Records that were only selected (dry run, refusal), and copies of these records, count as left.
        """
        known = self._progress.values()
        counts = {name: sum(getattr(each, field) for each in known) for name, field in COUNTS.items()}
        # For a partition that the filter excludes, the log start is added. A partition without a leader is left out.
        unread = RedriveProgress(0)
        redriven_to = sum(self._progress.get(each, unread).redriven_to(first) for each, first in self._starts.items())
        return {**counts, "refused": self._refused, "redrivenTo": redriven_to}

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _fields(**values: object) -> dict[str, object]:
    return {"fields": values}
