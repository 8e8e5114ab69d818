"""Forged headers: every record is handled, damage is counted, and nothing is skipped."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.broker.retry_fleet import MESSAGE_BYTES_MAX
from tests.broker.workers import Kafka
from tests.retries.scene import Flow, metric

pytestmark = pytest.mark.together

CENTURY_MS = 100 * 365 * 86_400_000
Headers = list[tuple[str, bytes | None]]


def good(flow: Flow, offset: int = 7) -> dict[str, bytes | None]:
    """Headers in the form of a retry publish."""
    now = str(int(time.time() * 1000)).encode()
    return {
        "kr-attempt": b"1",
        "kr-not-before": now,
        "kr-delay-ms": b"1000",
        "kr-policy": f"standard@{flow.current}".encode(),
        "kr-first-failed-at": now,
        "kr-failed-at": now,
        "kr-group": flow.group.encode(),
        "kr-origin-topic": flow.source.encode(),
        "kr-origin-partition": b"0",
        "kr-origin-offset": str(offset).encode(),
        "kr-origin-timestamp": now,
    }


def forgeries(flow: Flow) -> list[Headers]:
    """One list of headers for each forged or damaged record."""
    century = str(int(time.time() * 1000) + CENTURY_MS).encode()
    garbage = os.urandom(200)
    changes: list[dict[str, bytes | None]] = [
        {"kr-attempt": b"1000000000"},
        {"kr-attempt": b"-1"},
        {"kr-attempt": b"9" * 400},
        {"kr-attempt": b""},
        {"kr-attempt": None},
        {"kr-attempt": "١".encode()},  # a digit only for Python's int
        {"kr-not-before": century, "kr-delay-ms": b"3153600000000"},
        {"kr-first-failed-at": century, "kr-failed-at": century},
        {"kr-first-failed-at": b"0"},
        {"kr-origin-topic": b"../../etc/passwd"},
        {"kr-origin-topic": flow.failed.encode(), "kr-origin-partition": b"2147483648"},
        {"kr-origin-offset": b"-9223372036854775809", "kr-origin-timestamp": b"nan"},
        {"kr-policy": garbage},
        {"kr-policy": b"standard@ffffffffff"},
        {"kr-redrive-count": b"1000000000", "kr-redrive-id": garbage, "kr-redriven-at": century},
    ]
    found = [list({**good(flow), **change}.items()) for change in changes]
    found.append([(name, garbage) for name in good(flow)])
    found.append([])
    found.append([*good(flow).items(), *[("kr-attempt", b"%d" % n) for n in range(50)], ("kr-attempt", b"1")])
    found.append([("kr-attempt", b"1")] * 5_000)
    found.append([(f"kr-{n}", b"") for n in range(5_000)])
    return found


@pytest.mark.parametrize("asked", ["fail", "ok"])
def test_forged_and_damaged_headers_in_a_retry_topic(kafka: Kafka, tmp_path: Path, asked: str) -> None:
    flow = Flow(kafka, tmp_path, "1s", "1s", "2s", partitions=1)
    forged = forgeries(flow)
    records = [record(n, asked, headers) for n, headers in enumerate(forged)]
    flow.write(flow.retry_topic("1s"), records)
    with flow.retry_worker() as retry:
        flow.wait_drained()
        damaged = metric(retry, "damaged_headers_total")
        unknown = metric(retry, "unknown_policies_total")
    deliveries = flow.assert_none_early()
    assert {each.n for each in deliveries} == set(range(len(forged))), "none is skipped"
    assert max(each.attempt for each in deliveries) <= 3, "attempts are clamped to the policy's"
    assert damaged >= 10
    assert unknown >= (1 if asked == "fail" else 0)
    failed = kafka.read(flow.failed)
    if asked == "ok":
        assert not failed
        return
    assert sorted(json.loads(each.value or b"")["n"] for each in failed) == list(range(len(forged)))
    for each in failed:
        assert each.headers["kr-reason"] == b"exhausted"
        assert int(each.headers["kr-attempt"] or b"") <= 3
        assert int(each.headers["kr-first-failed-at"] or b"") <= time.time() * 1000
    assert kafka.topics() >= {flow.source}
    assert flow.managed() == {"retry.1s", "retry.2s", "failed", "redrive"}, "no header names a target"


def test_forged_headers_on_the_source_topic_mean_nothing(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    forged = forgeries(flow)
    flow.write(flow.source, [record(n, "fail", headers) for n, headers in enumerate(forged)])
    with flow.worker(), flow.retry_worker():
        flow.wait_failed(len(forged))
        flow.wait_drained()
    deliveries = flow.assert_none_early()
    assert sorted((each.n, each.attempt) for each in deliveries) == [(n, k) for n in range(len(forged)) for k in (0, 1)]
    assert {each.origin[:3] for each in deliveries} == {(flow.source, 0, n) for n in range(len(forged))}


@pytest.mark.parametrize("name", ["kr-origin-topic", "x-foreign"])
def test_as_many_headers_as_fit(kafka: Kafka, tmp_path: Path, name: str) -> None:
    """Tens of thousands; ours are replaced, so the next retry publish has room for them, and others stay unchanged."""
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    many = fill(name, MESSAGE_BYTES_MAX)
    flow.write(flow.retry_topic("1s"), [record(0, "fail", many), record(1, "ok", many)])
    with flow.retry_worker() as retry:
        (failed,) = flow.wait_failed(1)
        flow.wait_drained()
        assert metric(retry, "damaged_headers_total") >= 2
    assert failed.headers["kr-reason"] == b"exhausted"
    assert failed.headers[name] == (b"x" if name == "x-foreign" else flow.retry_topic("1s").encode())
    assert {each.n for each in flow.assert_none_early()} == {0, 1}


def test_a_record_that_no_retry_publish_can_carry_ends_in_the_failed_topic(kafka: Kafka, tmp_path: Path) -> None:
    """Forged to the retry topic's limit, and no compression helps: its next retry publish would be too large."""
    flow = Flow(kafka, tmp_path, "1s", "1s", partitions=1)
    value = os.urandom(MESSAGE_BYTES_MAX - 200)
    flow.write(flow.retry_topic("1s"), [record(0, "fail", [("x-foreign", value)]), record(1, "ok", [])])
    with flow.retry_worker():
        (failed,) = flow.wait_failed(1)
        flow.wait_drained()
    assert failed.headers["x-foreign"] == value
    assert failed.headers["kr-reason"] == b"fatal"
    assert failed.headers["kr-attempt"] == b"0"


def record(n: int, asked: str, headers: Headers) -> dict[str, Any]:
    """A record for `Flow.write`."""
    return {"key": b"k", "value": json.dumps({"n": n, "do": asked}).encode(), "headers": headers, "partition": 0}


def fill(name: str, limit: int) -> Headers:
    """As many headers of this name as a record of this many bytes holds, with some spare room."""
    each = len(name) + 2 + 1
    return [(name, b"x")] * ((limit - 1_000) // (each + 1))
