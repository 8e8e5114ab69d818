"""Records that `spec.offsets.skip` names go to the failed topic and not to their handler; no other is touched."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.skips import Place, render_skips
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.retry.failure import Skipped
from fleet_consumer.retry.headers import HeaderList
from fleet_consumer.worker.config.mounted_file import CHECK_INTERVAL_S, skip_file
from fleet_consumer.worker.consume.crash_guard import DEATHS_MAX, CrashMarker
from fleet_consumer.worker.consume.pending import Concurrency
from fleet_consumer.worker.consume.skips import Skips
from tests.support.clock import StillClock
from tests.unit.retry.policies import policies
from tests.unit.worker.consume.test_retry_intake import R0, START_MS, waiting_headers
from tests.unit.worker.consume.test_retry_intake import Shop as RetryShop
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, P1, Bench

FAILED = "_fleet.g.failed"
KINDS = ("alone", "executor", "batch")
COUNT = 40


class Shop:
    """A loop over two partitions, its skip file, and a handler that keeps what it gets."""

    def __init__(self, kind: str, folder: Path, *, found: Any = lambda: None) -> None:
        self.path = folder / "skip.json"
        self.handled: list[tuple[int, int]] = []
        self.executor: ManualExecutor | None = None
        self.kind, self.found = kind, found

    def write(self, places: Iterable[Place]) -> None:
        self.path.write_text(json.dumps(render_skips("u", places)))

    def open(self, *, metadata: dict[TopicPartition, str] | None = None) -> Bench:
        concurrency = None
        if self.kind != "alone":
            batch = self.kind == "batch"
            self.executor = ManualExecutor(self._handle_batch if batch else self._handle, 4, batch=batch)
            concurrency = Concurrency.sized(batch=batch, size=4, max_poll_records=20)
        self.bench = Bench(
            self._handle,
            {each: [b"%d-%d" % (each.partition, n) for n in range(COUNT)] for each in (P0, P1)},
            per_poll=20,
            executor=self.executor,
            concurrency=concurrency,
            policies=self.found,
            skips=str(self.path),
        )
        self.bench.consumer.key = lambda value: None
        if metadata is not None:
            self.bench.consumer.metadata.update(metadata)
            self.bench.consumer.offsets.update(dict.fromkeys(metadata, 0))
        return self.bench

    def _handle(self, record: Record) -> None:
        self.handled.append((record.partition, record.offset))

    def _handle_batch(self, records: list[Record]) -> None:
        for record in records:
            self._handle(record)

    def run(self, steps: int = 60) -> None:
        for _ in range(steps):
            self.bench.clock.now += CHECK_INTERVAL_S
            self.bench.steps(1)
            while self.executor is not None and self.executor.jobs:
                self.executor.finish()

    @property
    def failed(self) -> list[tuple[Any, ...]]:
        """Value, reason and origin of the records in the failed topic."""
        named = ("kr-reason", "kr-error-class")
        return [
            (value, *((dict(headers)[name] or b"").decode() for name in named))
            for topic, _, value, headers in self.bench.producer.written
            if topic == FAILED
        ]


def everything() -> set[tuple[int, int]]:
    return set(itertools.product((0, 1), range(COUNT)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offsets", [(0,), (7,), (39,), (3, 4, 5), (0, 19, 20, 39)])
def test_named_records_fail_and_all_others_are_handled_once(
    kind: str, offsets: tuple[int, ...], tmp_path: Path
) -> None:
    shop = Shop(kind, tmp_path)
    shop.write([Place("t", 1, offset) for offset in offsets])
    shop.open()
    shop.run()
    assert sorted(shop.handled) == sorted(everything() - {(1, offset) for offset in offsets})
    assert shop.failed == [(b"1-%d" % offset, "skipped", "Skipped") for offset in offsets]
    assert shop.bench.consumer.offsets == {P0: COUNT, P1: COUNT}
    assert set(shop.bench.stats.skipped) == {Place("t", 1, offset) for offset in offsets}
    assert shop.bench.stats.failures == {"skipped": len(offsets)}


@pytest.mark.parametrize("kind", KINDS)
def test_no_rule_of_the_policy_decides_about_a_skipped_record(kind: str, tmp_path: Path) -> None:
    rules = policies("5s", classify=[{"when": {"exception": "Skipped"}, "then": "Retry"}])
    shop = Shop(kind, tmp_path, found=lambda: rules)
    shop.write([Place("t", 0, 2)])
    shop.open()
    shop.run()
    assert shop.failed == [(b"0-2", "skipped", "Skipped")]


@pytest.mark.parametrize("kind", KINDS)
def test_list_that_changes_is_followed_by_a_running_worker(kind: str, tmp_path: Path) -> None:
    shop = Shop(kind, tmp_path)
    shop.open()
    shop.bench.steps(1)
    shop.write([Place("t", 0, 35), Place("t", 1, 35)])
    shop.run()
    assert (0, 35) not in shop.handled
    assert (1, 35) not in shop.handled
    assert len(shop.failed) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_record_that_killed_its_process_is_skipped_before_it_kills_again(kind: str, tmp_path: Path) -> None:
    """The last owner died with this record in hand, so it would be handed out first, and alone."""
    shop = Shop(kind, tmp_path)
    shop.write([Place("t", 0, 0), Place("t", 0, 3)])
    dead = CrashMarker(1, deaths=1, by="dead").text
    shop.open(metadata={P0: f"{dead} fleet-replay-epoch=0"})
    shop.bench.loop.crash_markers._by = "b" * 8
    shop.run()
    assert not {(0, 0), (0, 3)} & set(shop.handled)
    assert [reason for _, reason, _ in shop.failed] == ["skipped", "skipped"]
    assert sorted(shop.handled) == sorted(everything() - {(0, 0), (0, 3)})


@pytest.mark.parametrize("kind", KINDS)
def test_place_that_was_passed_or_never_comes_changes_nothing(kind: str, tmp_path: Path) -> None:
    shop = Shop(kind, tmp_path)
    shop.open()
    shop.run()
    shop.write([Place("t", 0, 3), Place("t", 0, 10_000), Place("t", 7, 0), Place("elsewhere", 0, 3)])
    shop.run()
    assert sorted(shop.handled) == sorted(everything())
    assert shop.failed == []


def retries(kind: str, laid: list[HeaderList], *, skips: str | None = None, metadata: str = "") -> RetryShop:
    """A retry worker that has handled a partition of copies; its `handled` are the origins that came to its handler."""
    handled: list[int] = []

    def handle(given: Any) -> None:
        handled.extend(each.offset for each in (given if isinstance(given, list) else [given]))

    executor = None if kind == "alone" else ManualExecutor(handle, 4, batch=kind == "batch")
    due = [(START_MS - 5_000, headers) for headers in laid]
    shop = RetryShop(
        handle, due, executor=executor, batch=kind == "batch", skips=skips, committed=0 if metadata else None
    )
    if metadata:
        shop.consumer.metadata[R0] = metadata
        shop.bench.loop.crash_markers._by = "b" * 8
    for _ in range(40):
        shop.bench.clock.now += CHECK_INTERVAL_S
        shop.bench.steps(1)
        while executor is not None and executor.jobs:
            executor.finish()
    shop.handled = handled
    return shop


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 2])
def test_skipped_copies_of_a_retry_publish_count_as_copies(kind: str, place: int, tmp_path: Path) -> None:
    """The first one goes to the failed topic, and the second is passed over; not the other way round, and not both."""
    path = tmp_path / "skip.json"
    path.write_text(json.dumps(render_skips("u", [Place(R0.topic, 0, place)])))
    shop = retries(
        kind, [waiting_headers(7), waiting_headers(8), waiting_headers(7), waiting_headers(9)], skips=str(path)
    )
    assert sorted(shop.handled) == ([8, 9] if place == 0 else [7, 8, 9])
    assert len(shop.bench.topic(FAILED)) == (1 if place == 0 else 0)
    assert shop.bench.stats.suppressed == 1
    assert shop.consumer.offsets == {R0: 4}


@pytest.mark.parametrize("kind", KINDS)
def test_condemned_record_is_noted_so_that_its_copy_is_passed_over(kind: str) -> None:
    dead = CrashMarker(1, deaths=DEATHS_MAX, by="dead").text
    shop = retries(
        kind, [waiting_headers(7), waiting_headers(8), waiting_headers(7)], metadata=f"{dead} fleet-replay-epoch=0"
    )
    assert shop.handled == [8]
    assert len(shop.bench.topic(FAILED)) == 1
    assert shop.bench.stats.suppressed == 1


def test_run_is_divided_at_the_named_records_only(tmp_path: Path) -> None:
    path = tmp_path / "skip.json"
    skips = Skips(skip_file(str(path), "u", StillClock()))
    run = Run(P0, [Record("t", 0, offset, 0, None, b"") for offset in range(5)])
    assert [(part.records, error) for part, error in skips.parts(run)] == [(run.records, None)]
    path.write_text(json.dumps(render_skips("u", [Place("t", 0, 0), Place("t", 0, 3), Place("t", 1, 1)])))
    skips = Skips(skip_file(str(path), "u", StillClock()))
    parts = [
        ([record.offset for record in part.records], isinstance(error, Skipped)) for part, error in skips.parts(run)
    ]
    assert parts == [([0], True), ([1, 2], False), ([3], True), ([4], False)]


def test_unreadable_list_keeps_the_last_one_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    path, clock = tmp_path / "skip.json", StillClock()
    file = skip_file(str(path), "u", clock)

    def reload() -> frozenset[Place]:
        clock.now += CHECK_INTERVAL_S
        file.reload()
        return file.content or frozenset()

    assert reload() == frozenset()
    path.write_text(json.dumps(render_skips("u", [Place("t", 0, 1)])))
    assert reload() == {Place("t", 0, 1)}
    foreign = json.dumps(render_skips("v", [Place("t", 0, 2)]))
    for broken in ("", "{", "[]", '{"version": 1}', foreign):
        path.write_text(broken)
        assert reload() == {Place("t", 0, 1)}
    path.write_text(json.dumps(render_skips("u", [])))
    assert reload() == frozenset()
    path.write_text(json.dumps(render_skips("u", [Place("t", 0, 1)])))
    assert reload() == {Place("t", 0, 1)}
    path.unlink()
    assert reload() == frozenset()
