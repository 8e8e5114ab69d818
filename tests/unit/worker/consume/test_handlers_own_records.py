"""A record is its handler's own: whatever is assigned to it, what goes on and what is committed is what was read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.record import Produce, Record
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, Bench

RETRY_TOPIC = "_fleet.g.retry.5s"
TRACE = ("trace", b"t")


def ruin(record: Record) -> None:
    """Everything that a handler can do to its record."""
    record.headers.append(("mine", b"x"))  # type: ignore[attr-defined]
    for field in ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "leader_epoch", "attempt"):
        setattr(record, field, {"not": "bytes"})


def with_header(record: Record) -> Record:
    record.headers = [TRACE]
    return record


def loop(handle: Callable[[Any], Any], kind: str, **settings: Any) -> tuple[Bench, ManualExecutor | None]:
    if kind == "alone":
        bench, executor = Bench(handle, {P0: [b"0", b"1", b"2"]}, **settings), None
    else:
        batch = kind == "batch"
        executor = ManualExecutor(handle, 2, batch=batch)
        concurrency = Concurrency.sized(batch=batch, size=2, max_poll_records=500)
        bench = Bench(lambda r: None, {P0: [b"0", b"1", b"2"]}, executor=executor, concurrency=concurrency, **settings)
    bench.consumer.record = with_header
    return bench, executor


def run(bench: Bench, executor: ManualExecutor | None) -> None:
    for _ in range(12):
        bench.steps(1)
        while executor is not None and executor.jobs:
            executor.finish()
    bench.loop.close(1)


def as_read(written: list[tuple[str, Any, Any, list[tuple[str, bytes | None]]]]) -> list[tuple[Any, ...]]:
    return [
        (topic, key, value, [header for header in headers if not header[0].startswith("kr-")])
        for topic, key, value, headers in written
    ]


@pytest.mark.parametrize("kind", ["alone", "executor", "batch"])
@pytest.mark.parametrize("filled", [False, True])
def test_failed_record_is_written_as_it_was_read(kind: str, filled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(given: Any) -> None:
        for record in given if isinstance(given, list) else [given]:
            ruin(record)
        raise ConnectionError("down")

    from fleet_consumer.librdkafka.fetched import FetchedRecord

    monkeypatch.setattr(FetchedRecord.habits, "fill", filled)
    bench, executor = loop(handle, kind, policies=lambda: policies("5s"))
    run(bench, executor)
    assert as_read(bench.producer.written) == [(RETRY_TOPIC, b"k", value, [TRACE]) for value in (b"0", b"1", b"2")]
    assert bench.consumer.offsets == {P0: 3}
    origins = [dict(headers)["kr-origin-offset"] for _, _, _, headers in bench.producer.written]
    assert origins == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["alone", "executor", "batch"])
def test_handler_may_assign_to_its_record_and_succeed(kind: str) -> None:
    def handle(given: Any) -> Any:
        if isinstance(given, list):
            return [handle(each) for each in given]
        value = given.value
        ruin(given)
        return Produce("out", value)

    bench, executor = loop(handle, kind)
    run(bench, executor)
    assert bench.topic("out") == [b"0", b"1", b"2"]
    assert (bench.consumer.offsets, bench.stats.done) == ({P0: 3}, 3)


def test_batch_that_failed_is_handled_again_with_records_as_they_were_read() -> None:
    seen: list[Any] = []

    def handle_batch(records: list[Record]) -> None:
        for record in records:
            seen.append(record.value)
            record.value = json.loads(record.value)
        several = len(records) > 1
        records.clear()
        if several:
            raise ConnectionError("down")

    bench, executor = loop(handle_batch, "batch")
    run(bench, executor)
    assert seen == [b"0", b"1", b"2"] * 2
    assert (bench.stats.done, bench.stats.failed, bench.consumer.offsets) == (3, 0, {P0: 3})


@pytest.mark.parametrize("kind", ["alone", "executor"])
def test_record_that_a_breaker_kept_comes_again_as_it_was_read(kind: str) -> None:
    budget = {"maxFailurePercent": 1, "windowSeconds": 60, "minRecords": 1, "action": "Pause", "cooldownSeconds": 1}
    seen: list[Any] = []

    def handle(record: Record) -> None:
        seen.append((record.offset, record.value, record.headers))
        ruin(record)
        if len(seen) < 4:
            raise ConnectionError("down")

    bench, executor = loop(handle, kind, policies=lambda: policies("5s", budget=budget))
    for _ in range(30):
        bench.steps(1)
        bench.clock.now += 1
        while executor is not None and executor.jobs:
            executor.finish()
    read = [(offset, str(offset).encode(), [TRACE]) for offset, _, _ in seen if isinstance(offset, int)]
    assert [(offset, value) for offset, value, _ in seen] == [(offset, value) for offset, value, _ in read]
    assert bench.consumer.offsets == {P0: 3}
