"""Retries on a real broker: a record that always fails waits through its whole sequence, and never too short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker.retry_fleet import RetryFleet
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.metrics import sample
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

RECORDER = '''
"""Writes down each delivery and fails as long as a record asks for it."""
import json
import time
from pathlib import Path

SEEN = Path(__file__).with_name("seen.jsonl")

def handle(record):
    call = {
        "at": time.time() * 1000,
        "origin": [record.topic, record.partition, record.offset, record.timestamp],
        "read": [record.delivery.topic, record.delivery.partition, record.delivery.offset],
        "append": record.delivery.timestamp,
        "attempt": record.attempt,
        "headers": [[name, value.decode()] for name, value in record.headers],
    }
    with SEEN.open("a") as file:
        file.write(json.dumps(call) + "\\n")
    if record.value["do"] == "fail":
        raise ValueError("asked to fail")
'''


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_record_walks_through_the_sequence_into_the_failed_topic(
    kafka: Kafka, tmp_path: Path, concurrency: int
) -> None:
    fleet = RetryFleet(kafka, tmp_path, f"walk-{concurrency}", sequence=("1s", "1s", "2s"))
    (tmp_path / "handler.py").write_text(RECORDER)
    fleet.send({"do": "fail", "n": 0}, {"do": "ok", "n": 1}, partition=1)
    with fleet.worker(handler__concurrency=concurrency), fleet.retry_worker(handler__concurrency=concurrency) as retry:
        eventually(lambda: sum(kafka.end_offsets(fleet.failed).values()) == 1, what="the record to fail")
        metrics = retry.get("/metrics")[1]
        member = retry.member()
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    (behind,) = [each for each in seen if each["origin"][2] == 1]
    first, *retries = [each for each in seen if each["origin"][2] == 0]
    assert (first["attempt"], behind["attempt"]) == (0, 0)
    assert behind["at"] < retries[0]["at"], "those behind go on at once"
    assert [each["attempt"] for each in retries] == [1, 2, 3]
    assert all(each["origin"] == first["origin"] and each["headers"] == [["trace", "t-1"]] for each in retries)
    assert [each["read"][0] for each in retries] == [fleet.retry_topic(delay) for delay in ("1s", "1s", "2s")]
    for each, delay_ms in zip(retries, (1000, 1000, 2000), strict=True):
        assert each["at"] >= each["append"] + delay_ms, "never early"
    (failed,) = kafka.read(fleet.failed)
    headers = {name: value.decode() for name, value in failed.headers.items() if value is not None}
    assert (failed.key, headers["trace"], headers["kr-attempt"], headers["kr-reason"]) == (
        b"key-1",
        "t-1",
        "3",
        "exhausted",
    )
    assert [headers[f"kr-origin-{each}"] for each in ("topic", "partition", "offset")] == [fleet.source, "1", "0"]
    assert headers["kr-policy"].startswith("standard@")
    assert headers["kr-error-class"] == "ValueError"
    assert sample(metrics, "consumer_fleet_worker_retry_publishes_total", delay="2s") == 1
    assert (member["retry"]["role"], member["retry"]["policy"]["name"]) == ("retry", "standard")
