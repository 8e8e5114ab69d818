"""One run of a Redrive, from its settings to what it came to: the shell around `selection`.

The order is what makes a kill harmless at any point: a batch is written and acknowledged, then its offsets are
committed. Killed in between, the next start finds the batch in the ledger and counts it without writing it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.fetch.bounded import BoundedReader
from fleet_consumer.fetch.producer import ProduceFailed, RecordProducer, SendHandle
from fleet_consumer.group.errors import DataPlaneFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.naming import failed_topic, redrive_topic
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.redrive.config import RedriveConfig
from fleet_consumer.redrive.progress import Pace, Progress, parse_metadata
from fleet_consumer.redrive.selection import Choice, Decision, Ledger, Selection, place
from fleet_consumer.retry.headers import redriven_headers
from fleet_consumer.retry.routing import partition_of

LOG = logging.getLogger("fleet_consumer.redrive")

BATCH_RECORDS: Final = 500
"""How many records are written before they are waited for and committed."""
ACK_TIMEOUT_S: Final = 120.0
STALL_S: Final = 120.0
"""How long nothing may come from a partition that has more: brokers that restart take less. The Job tries again."""
TELL_INTERVAL_S: Final = 10.0

REFUSED_REASONS: Final = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_RECORD"})
"""The redrive topic will never take this record; it stays in the failed topic, is told, and holds up no other."""


class Stopped(Exception):
    """The run was asked to stop before its end; the next start goes on from what is committed."""

    reason = "Stopped"


@dataclass(slots=True)
class Outcome:
    """What a run has come to, earlier starts included. `refused` counts only what this start was refused."""

    selected: int = 0
    moved: int = 0
    guarded: int = 0
    refused: int = 0


class Run:
    """One start of a run. `reader` keeps its offsets in the run's own group; `stop` is set to end it early.

    `run` may be called once. It raises what reader and producer raise, after which a new start goes on; nothing is
    lost or moved twice.
    """

    def __init__(
        self,
        config: RedriveConfig,
        reader: BoundedReader,
        producer: RecordProducer,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._config = config
        self._reader = reader
        self._producer = producer
        self._stop = stop
        self._clock = clock
        self._target = redrive_topic(config.group_id)
        self._ledger = Ledger(config.id)
        self._selection = Selection(config.filter, self._ledger, redrive_id=config.id, max_redrives=config.max_redrives)
        self._pace = Pace(config.records_per_second)
        self._batch = min(BATCH_RECORDS, config.records_per_second or BATCH_RECORDS)
        self._progress: dict[TopicPartition, Progress] = {}
        self._refused = 0
        self._tell_at = float("-inf")

    def run(self) -> Outcome:
        """Move everything that is selected. Partitions go one after the other: a dry run sees the same order."""
        starts = self._begin()
        self._read_ledger()
        LOG.info("redrive begins", extra=_fields(records=self._left(starts), ledger=len(self._ledger)))
        for partition, start in starts.items():
            if not self._partition(partition, start):
                break
        return self._outcome()

    def _begin(self) -> dict[TopicPartition, int]:
        """Where each partition is taken up. The ends are fixed and stored before anything is moved: what fails again
        while the run lasts, perhaps because of it, is not for this run."""
        partitions = self._reader.partitions(failed_topic(self._config.group_id))
        bounds = self._reader.bounds(partitions)
        committed = self._reader.committed(partitions)
        starts, fresh = {}, {}
        for partition in partitions:
            first, end = bounds[partition]
            known = committed.get(partition)
            progress = parse_metadata(known.metadata) if known is not None else None
            if progress is None or known is None:
                progress = Progress(end)
                known = fresh[partition] = OffsetAndMetadata(first, -1, progress.metadata())
            # A topic that was made anew, or that lost its end, has less; what is not there cannot be waited for.
            progress.end = min(progress.end, end)
            if self._config.dry_run:
                # Nothing of a dry run is in the ledger, so only from the beginning can it tell copies.
                progress, known = Progress(progress.end), OffsetAndMetadata(first)
            self._progress[partition] = progress
            starts[partition] = max(known.offset, first)
        if fresh:
            self._reader.commit(fresh)
        return starts

    def _read_ledger(self) -> None:
        for partition, (first, end) in self._reader.bounds(self._reader.partitions(self._target)).items():
            for records in self._patiently(partition, first, end):
                now_ms = self._now_ms()
                for record in records:
                    self._ledger.note(record, now_ms)

    def _partition(self, partition: TopicPartition, start: int) -> bool:
        """Go through one partition; False when the run has moved all that it may."""
        progress = self._progress[partition]
        for records in self._patiently(partition, start, progress.end):
            moves: list[Choice] = []
            for record in records:
                choice = self._selection.choose(record, self._now_ms())
                if choice.decision is Decision.GUARDED:
                    progress.guarded += 1
                if choice.decision not in (Decision.MOVE, Decision.MOVED_BEFORE):
                    continue
                if self._full():
                    self._settle(partition, record.offset, moves)
                    return False
                self._selection.take(choice)
                progress.selected += 1
                if choice.decision is Decision.MOVED_BEFORE:
                    progress.moved += 1
                elif not self._config.dry_run:
                    moves.append(choice)
                if len(moves) >= self._batch:
                    self._settle(partition, record.offset + 1, moves)
                    moves = []
            self._settle(partition, records[-1].offset + 1, moves)
        self._settle(partition, max(start, progress.end), [])
        return True

    def _full(self) -> bool:
        most = self._config.max_records
        return most is not None and sum(each.selected for each in self._progress.values()) >= most

    def _settle(self, partition: TopicPartition, offset: int, moves: list[Choice]) -> None:
        """Write a batch, wait for it, and store that everything before `offset` is done."""
        if moves:
            self._wait(self._pace.wait_s(len(moves), self._clock.monotonic()))
            self._write(partition, moves)
        self._reader.commit({partition: OffsetAndMetadata(offset, -1, self._progress[partition].metadata())})
        if self._clock.monotonic() >= self._tell_at:
            self._tell_at = self._clock.monotonic() + TELL_INTERVAL_S
            told = self._outcome()
            counts = {"selected": told.selected, "moved": told.moved, "guarded": told.guarded, "refused": told.refused}
            LOG.info("redrive goes on", extra=_fields(partition=partition.partition, offset=offset, **counts))
        self._wait(0)

    def _write(self, partition: TopicPartition, moves: list[Choice]) -> None:
        handles = [self._send(move) for move in moves]
        self._producer.flush(ACK_TIMEOUT_S)
        for move, handle in zip(moves, handles, strict=True):
            if not handle.done:
                raise ProduceFailed(self._target, "NotAcknowledged", f"not within {ACK_TIMEOUT_S:g} s")
            if handle.error is None:
                self._progress[partition].moved += 1
            elif handle.error.reason in REFUSED_REASONS:
                self._refused += 1
                where = {"partition": partition.partition, "offset": move.record.offset}
                LOG.error("record refused by the redrive topic", extra=_fields(error=str(handle.error), **where))
            else:
                raise handle.error

    def _send(self, move: Choice) -> SendHandle:
        record, story = move.record, move.story
        headers = redriven_headers(
            record.headers, story, redrive_id=self._config.id, source=place(record), now_ms=self._now_ms()
        )
        where = partition_of(record.key, story.origin, self._config.partitions)
        return self._producer.send(self._target, key=record.key, value=record.value, headers=headers, partition=where)

    def _patiently(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        """The runs of a partition; raises when nothing comes for too long, or the run is to stop."""
        since = self._clock.monotonic()
        for records in self._reader.read(partition, start, end):
            self._wait(0)
            if records:
                yield records
                since = self._clock.monotonic()
            elif self._clock.monotonic() - since >= STALL_S:
                raise DataPlaneFailed(f"{partition.topic}-{partition.partition}: nothing came for {STALL_S:g} s")

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds) if seconds > 0 else self._stop.is_set():
            raise Stopped("stopped before the end; the next start goes on from here")

    def _outcome(self) -> Outcome:
        parts = self._progress.values()
        return Outcome(
            sum(each.selected for each in parts),
            sum(each.moved for each in parts),
            sum(each.guarded for each in parts),
            self._refused,
        )

    def _left(self, starts: dict[TopicPartition, int]) -> int:
        return sum(max(0, self._progress[partition].end - start) for partition, start in starts.items())

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _fields(**values: object) -> dict[str, object]:
    return {"fields": values}
