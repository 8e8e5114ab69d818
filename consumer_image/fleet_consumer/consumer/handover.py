"""Records between the thread that polls them and the task that takes them."""

from __future__ import annotations

import threading
from collections import deque

from fleet_consumer.record import Gap, Record, Records, Run, TopicPartition


class Handover:
    """Records, or an error, of polls, not taken yet. Any thread; no method waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[Run] = deque()
        # Offsets without records behind the runs of their partitions. They come out with or after the last of these.
        self._gaps: dict[TopicPartition, Gap] = {}
        # The number of records taken from the first run.
        self._taken = 0
        self._failure: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._runs or self._gaps)

    def put(self, records: Records) -> None:
        """Add the records of a poll."""
        with self._lock:
            for run in records.runs:
                self._gaps.pop(run.topic_partition, None)
            self._runs.extend(records.runs)
            self._gaps.update(records.gaps)

    def fail(self, error: Exception) -> None:
        """Keep the error of a poll."""
        with self._lock:
            self._failure = error

    def raise_failure(self) -> None:
        """Raise the error of the last poll, once."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def take(self, limit: int | None) -> Records:
        """Take at most `limit` records; they count as given out."""
        runs: list[Run] = []
        with self._lock:
            room = sum(len(run.records) for run in self._runs) if limit is None else limit
            while room > 0 and self._runs:
                first, start = self._runs[0], self._taken
                piece = first.records[start : start + room]
                room -= len(piece)
                self._advance(len(piece))
                runs.append(first if len(piece) == len(first.records) else Run(first.topic_partition, piece))
            return Records(runs, self._passed())

    def take_one(self) -> Record | None:
        """Take the next record, None when there is none. Gaps are passed over."""
        with self._lock:
            self._passed()
            if not self._runs:
                return None
            record = self._runs[0].records[self._taken]
            self._advance(1)
            return record

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that was not taken."""
        with self._lock:
            return self._firsts()

    def drop(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        """Drop the records of these; returns the first offset of each."""
        with self._lock:
            for part in partitions:
                self._gaps.pop(part, None)
            firsts = {part: offset for part, offset in self._firsts().items() if part in partitions}
            if self._runs and self._runs[0].topic_partition in partitions:
                self._taken = 0
            self._runs = deque(run for run in self._runs if run.topic_partition not in partitions)
            return firsts

    def _advance(self, count: int) -> None:
        self._taken += count
        if self._taken == len(self._runs[0].records):
            self._runs.popleft()
            self._taken = 0

    def _passed(self) -> dict[TopicPartition, Gap]:
        """Take the gaps that have no record before them any more."""
        behind = {run.topic_partition for run in self._runs}
        passed = {part: gap for part, gap in self._gaps.items() if part not in behind}
        self._gaps = {part: gap for part, gap in self._gaps.items() if part in behind}
        return passed

    def _firsts(self) -> dict[TopicPartition, int]:
        firsts: dict[TopicPartition, int] = {}
        for number, run in enumerate(self._runs):
            firsts.setdefault(run.topic_partition, run.records[0 if number else self._taken].offset)
        return firsts
