"""Offsets that retention deleted are passed once: no seek and no commit goes back into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Gap, Record, Records, Run
from fleet_consumer.retry.failure import HttpStatus
from fleet_consumer.retry.headers import ReplayEpoch
from fleet_consumer.worker.consume.crash_guard import CrashMarker
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, Bench, values

COMMIT, START, END = 10, 100, 104
ALL = [10, 100, 101, 102, 103]
WRONG = HttpStatus(404, "404")
WRONG.endpoint = True


class Deleted:
    """A worker whose partition held 10, and then 100 to 103; the record at 100 stays three times.

    `told`: the poll that passes the gap tells of it; else the record behind it comes before the consumer could.
    `died`: its last owner died, so that records are handed out with care.
    """

    def __init__(self, *, told: bool = True, died: bool = False, calls: int = 0) -> None:
        self.handled: list[int] = []
        self.refusals = 3
        self.executor = ManualExecutor(self.handle, calls) if calls else None
        concurrency = Concurrency.sized(batch=False, size=calls, max_poll_records=20) if calls else None
        self.bench = Bench(self.handle, {P0: values(END)}, executor=self.executor, concurrency=concurrency)
        self.consumer = self.bench.consumer
        self.consumer.offsets[P0] = COMMIT
        self.consumer.metadata[P0] = " ".join(
            [CrashMarker(None, by="a").text] * died + [ReplayEpoch().metadata(COMMIT)]
        )
        self.skipped = 0
        self.lowest = END
        self._told = told
        self._poll: Callable[..., Records] = self.consumer.poll
        self.consumer.poll = self.poll

    def handle(self, record: Record) -> None:
        if record.offset == START and self.refusals:
            self.refusals -= 1
            raise WRONG
        self.handled.append(record.offset)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        position = self.consumer._positions.get(P0)
        if position is None:
            return self._poll(timeout_s, max_records=0)  # the assignment
        if position == COMMIT:
            return self._poll(timeout_s, max_records=1 if max_records is None else min(1, max_records))
        if max_records == 0 or position >= START or P0 in self.consumer._paused:
            return self._poll(timeout_s, max_records=max_records)
        self.skipped += START - position
        self.consumer._positions[P0] = START
        return Records([], {P0: Gap(position, START)}) if self._told else self._poll(timeout_s, max_records=max_records)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.bench.clock.now += 1
            self.bench.steps(1)
            while self.executor is not None and self.executor.jobs:
                self.executor.finish()
            if self.skipped:
                self.lowest = min(self.lowest, self.consumer.position(P0))


@pytest.mark.parametrize("died", [False, True], ids=["alone", "with care"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_record_that_stays_behind_deleted_offsets_is_sought_back_to_and_they_are_not(told: bool, died: bool) -> None:
    deleted = Deleted(told=told, died=died)
    deleted.steps(40)
    assert (deleted.refusals, deleted.handled) == (0, ALL)
    assert (deleted.skipped, deleted.lowest) == (89, 100)
    assert deleted.consumer.offsets == {P0: 104}


def test_record_that_cannot_be_handed_out_behind_deleted_offsets_is_sought_back_to() -> None:
    deleted = Deleted(told=False, died=True)
    admit = deleted.bench.loop.crash_markers.admit_records
    refusals = [(0, None)] * 3
    deleted.bench.loop.crash_markers.admit_records = lambda *about: (
        refusals.pop() if refusals and deleted.handled else admit(*about)
    )
    deleted.steps(40)
    assert (deleted.handled, deleted.skipped) == (ALL, 89)


@pytest.mark.parametrize("calls", [0, 2], ids=["alone", "concurrent"])
def test_no_commit_goes_back_into_deleted_offsets(calls: int) -> None:
    deleted = Deleted(died=True, calls=calls)
    # The crash marker of a record in hand cannot be written.
    admit = deleted.bench.loop.crash_markers.admit_records
    deleted.bench.loop.crash_markers.admit_records = lambda *about: admit(*about) if not deleted.handled else (0, None)
    committed: list[int] = []
    commit = deleted.consumer.commit

    def recorded(offsets: dict[Any, OffsetAndMetadata], timeout_s: float) -> None:
        committed.extend(entry.offset for entry in offsets.values())
        commit(offsets, timeout_s)

    deleted.consumer.commit = recorded
    deleted.steps(40)
    assert START in committed
    assert committed == sorted(committed)


@pytest.mark.parametrize("died", [False, True], ids=["alone", "with care"])
def test_second_run_of_a_partition_waits_for_the_first_that_was_sought_back_to(died: bool) -> None:
    deleted = Deleted(died=died)
    poll = deleted.consumer.poll

    def halves(*about: Any, **more: Any) -> Records:
        records = poll(*about, **more)
        parts = [Run(P0, half) for run in records.runs for half in (run.records[:2], run.records[2:]) if half]
        return Records(parts, records.gaps)

    deleted.consumer.poll = halves
    deleted.steps(40)
    assert deleted.handled == ALL


def test_record_that_stays_in_a_log_that_was_cut_is_sought_back_to() -> None:
    """The record handled last lies above it: it was of the log before."""
    deleted = Deleted()
    deleted.steps(2)
    assert deleted.handled == [COMMIT]
    deleted.bench.loop.partitions[P0].position = 500
    deleted.steps(40)
    assert deleted.handled == ALL
