"""Metrics and logs of worker processes on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract import naming
from tests.broker.retry_fleet import RetryFleet
from tests.broker.workers import Fleet, Kafka, Worker
from tests.support.kafka import KafkaBroker
from tests.support.metrics import documented, exported, sample, samples
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
PREFIX = "consumer_fleet_worker_"
GROUP_LABELS = ("group_namespace", "group_name", "group_id", "role")

TALKATIVE = """
import logging
import os
import time

LOG = logging.getLogger("shop")


def handle(record):
    while os.path.exists(os.path.join(os.path.dirname(__file__), "wait")) and record.offset >= 2:
        time.sleep(0.05)
    print("printed", record.offset)
    LOG.debug("details")
    LOG.info("taken", extra={"orderId": "o-%d" % record.offset})
    try:
        raise ValueError("two\\nlines")
    except ValueError:
        LOG.exception("noted")
"""


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


def talkative(kafka: Kafka, folder: Path, name: str) -> Fleet:
    fleet = Fleet(kafka, folder, name)
    (folder / "talkative.py").write_text(TALKATIVE)
    return fleet


def test_page_of_both_roles_has_exactly_the_documented_metrics(kafka: Kafka, tmp_path: Path) -> None:
    fleet = RetryFleet(kafka, tmp_path, "listed", sequence=("1s",), partitions=2)
    fleet.send({"do": "ok"}, {"do": "fail", "n": 1}, partition=0)
    wanted = documented(PAGE, PREFIX, GROUP_LABELS)
    unneeded = {f"{PREFIX}breaker_state"}  # there is no budget
    only_main = {f"{PREFIX}retry_publishes_total", f"{PREFIX}partition_behind_seconds"}

    def shows_all(worker: Worker, absent: set[str]) -> bool:
        found = exported(worker.get("/metrics")[1], "consumer_fleet_")
        assert found.items() <= wanted.items()
        assert set(wanted) - set(found) == absent
        return True

    with fleet.worker() as main, fleet.retry_worker() as retry:
        eventually(lambda: kafka.read(fleet.failed), what="the record to fail for good")
        eventually(lambda: shows_all(main, unneeded), what="all series of the main worker")
        eventually(lambda: shows_all(retry, unneeded | only_main), what="all series of the retry worker")
        for worker, group_id, role in ((main, "listed", "main"), (retry, naming.retry_group("listed"), "retry")):
            ((labels, _),) = samples(worker.get("/metrics")[1], f"{PREFIX}info")
            assert [labels[name] for name in GROUP_LABELS] == ["default", "listed", group_id, role]


def test_lag_and_time_behind_grow_while_the_handler_hangs_and_end_at_zero(kafka: Kafka, tmp_path: Path) -> None:
    fleet = talkative(kafka, tmp_path, "behind")
    (tmp_path / "wait").touch()
    changes: dict[str, Any] = {"handler__python__callable": "talkative:handle", "handler__timeoutSeconds": 300}
    fleet.send(*({"n": number} for number in range(5)), partition=1)
    place = {"topic": "behind", "partition": "1"}
    with fleet.worker(**changes) as worker:

        def lag() -> tuple[float | None, float | None]:
            page = worker.get("/metrics")[1]
            lag, behind = (f"{PREFIX}partition_{name}" for name in ("lag_records", "behind_seconds"))
            return sample(page, lag, **place), sample(page, behind, **place)

        def stuck() -> bool:
            records, behind = lag()
            assert records == 5, "nothing is committed while a handler has the thread"
            assert behind is not None
            assert behind > 2
            return True

        eventually(stuck, what="the lag behind the record in hand")
        fleet.send({"n": 5}, {"n": 6}, partition=1)
        eventually(lambda: lag()[0] == 7, what="the lag of what came since")
        (tmp_path / "wait").unlink()
        fleet.wait_committed()
        eventually(lambda: lag() == (0, 0), what="no lag")
        page = worker.get("/metrics")[1]
        assert sample(page, f"{PREFIX}handler_duration_seconds_count") == 7
        assert (sample(page, f"{PREFIX}handler_duration_seconds_sum") or 0) > 2
        assert worker.terminate() == 0


def test_every_line_is_json_whatever_the_handler_writes(kafka: Kafka, tmp_path: Path) -> None:
    fleet = talkative(kafka, tmp_path, "lines")
    fleet.send({"n": 1}, partition=2)
    with fleet.worker(handler__python__callable="talkative:handle", log__level="Debug") as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
        lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    mine = [line for line in lines if line["logger"] in ("stdout", "shop")]
    assert [(line["level"], line["message"]) for line in mine] == [
        ("info", "printed 0"),
        ("debug", "details"),
        ("info", "taken"),
        ("error", "noted"),
    ]
    for line in mine:
        assert (line["topic"], line["partition"], line["offset"], line["attempt"]) == ("lines", 2, 0, 0)
    assert mine[2]["orderId"] == "o-0"
    assert "ValueError: two\nlines" in mine[3]["exception"]


def test_text_and_a_higher_level_are_for_people(kafka: Kafka, tmp_path: Path) -> None:
    fleet = talkative(kafka, tmp_path, "people")
    fleet.send({"n": 1}, partition=2)
    changes: dict[str, Any] = {
        "handler__python__callable": "talkative:handle",
        "log__level": "Warning",
        "log__format": "Text",
    }
    with fleet.worker(**changes) as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
        text = worker.log.read_text()
    assert "printed 0\n" in text
    assert " error shop: noted topic=people partition=2 offset=0 attempt=0\nTraceback" in text
    assert "taken" not in text
    assert "partitions assigned" not in text
