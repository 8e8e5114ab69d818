"""Threaded, asynchronous and batch handlers go through the same retries; other outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.broker.workers import Kafka, Written
from tests.retries.scene import Flow

pytestmark = pytest.mark.together

RECORDS = 400
OTHERS = """


async def handle_async(record):
    handle(record)


def handle_batch(records):
    return [outcome(record) for record in records]


def outcome(record):
    try:
        return handle(record)
    except Exception as error:
        return error
"""
KINDS: dict[str, dict[str, Any]] = {
    "threads": {"handler__concurrency": 8},
    "asynchronous": {"handler__concurrency": 8, "handler__python__callable": "handler:handle_async"},
    "batches": {"handler__python__callable": "handler:handle_batch"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_handler_retries_each_record_by_its_policy(kafka: Kafka, tmp_path: Path, kind: str) -> None:
    flow = Flow(kafka, tmp_path, "1s", "1s", "2s")
    handler = tmp_path / "handler.py"
    handler.write_text(handler.read_text() + OTHERS)
    ways: dict[int, dict[str, Any]] = {0: {"do": "fail"}, 1: {"do": "fail-until", "attempt": 2}, 2: {"do": "fatal"}}
    wishes = [{"n": n, **ways.get(n % 8, {})} for n in range(RECORDS)]
    flow.put(wishes, partition=None)
    changes = KINDS[kind]
    with flow.worker(**changes), flow.retry_worker(**changes):
        failed = flow.wait_failed(RECORDS // 4, 90)
        flow.wait_drained(90)
    ends = Counter(each.headers["kr-reason"] for each in failed)
    assert ends == {b"exhausted": RECORDS // 8, b"fatal": RECORDS // 8}
    deliveries = flow.assert_none_early()
    tried = Counter(each.n for each in deliveries)
    expected = {n: {0: 4, 1: 3}.get(n % 8, 1) for n in range(RECORDS)}
    assert tried == expected
    assert all(each.origin[0] == flow.source for each in deliveries)


def test_records_without_a_key_are_retried_where_their_copies_would_be_found(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=4)
    records = [{"value": b'{"n": %d, "do": "fail"}' % n, "key": None, "partition": n % 4} for n in range(100)]
    flow.write(flow.source, records)
    with flow.worker(), flow.retry_worker():
        failed = flow.wait_failed(100)
        flow.wait_drained()
    assert [each.key for each in failed] == [None] * 100
    waited = kafka.read(flow.retry_topic("1s"))
    assert len({each.partition for each in waited}) == 4, "they are spread"
    places, again = places_of(waited), places_of(failed)
    assert places == again, "by their origin, and by nothing else"
    flow.assert_none_early()


def places_of(records: Sequence[Written]) -> dict[tuple[bytes | None, bytes | None], int]:
    """The partition of each record, by its origin."""
    names = ("kr-origin-partition", "kr-origin-offset")
    return {(each.headers[names[0]], each.headers[names[1]]): each.partition for each in records}


def test_a_budget_may_fail_records_at_once_while_too_much_fails(kafka: Kafka, tmp_path: Path) -> None:
    budget = {"maxFailurePercent": 50, "windowSeconds": 60, "minRecords": 20, "action": "Fail", "cooldownSeconds": 3600}
    flow = Flow(kafka, tmp_path, "1s", budget=budget)
    flow.put({"n": n, "do": "fail"} for n in range(100))
    with flow.worker() as main, flow.retry_worker():
        flow.wait_failed(100)
        flow.wait_drained()
        assert main.member()["breaker"]["state"] == "Open"
        failed = flow.wait_failed(100)
    reasons = Counter(each.headers["kr-reason"] for each in failed)
    assert set(reasons) == {b"breaker", b"exhausted"}
    assert 19 <= reasons[b"exhausted"] <= 20, reasons


def test_failed_records_carry_the_headers_that_springs_tools_read(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", headerProfile="Spring")
    flow.put([{"n": 1, "do": "fail"}])
    with flow.worker(), flow.retry_worker():
        (failed,) = flow.wait_failed(1)
        flow.wait_drained()
    assert failed.headers["kafka_dlt-original-topic"] == flow.source.encode()
    assert int.from_bytes(failed.headers["kafka_dlt-original-partition"] or b"", "big") == 0
    assert int.from_bytes(failed.headers["kafka_dlt-original-offset"] or b"", "big") == 0
    assert failed.headers["kafka_dlt-exception-message"] == b"asked to fail: 1"
    assert failed.headers["kr-origin-topic"] == flow.source.encode()
