"""The amount of data that tasks fetch, compared with the records that they handle."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from fleet_consumer.backfill import process
from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.backfill.work import PlayRequest, Work, config_of
from fleet_consumer.librdkafka.settings import consumer_config
from tests.spark.scene import Place
from tests.support.writing import SureProducer
from tests.unit.backfill.documents import backfill_document, compare_section
from tests.unit.worker.documents import worker_document

RECORDS = 60_000
PIECE = 5_000
HANDLER = """
def handle(record):
    for _ in range(500):
        "About as long as the handler of bench.backfill takes."
"""


def test_pieces_of_a_comparison_fetch_their_source_about_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka fetches ahead while a piece is handled, and what lies beyond its end is thrown away: with the defaults
    of a worker each record was fetched three times."""
    place.kafka.create("pieces", partitions=1)
    producer = SureProducer({"bootstrap.servers": place.bootstrap, "linger.ms": 50})
    value = json.dumps({"note": "x" * 300})
    for _ in range(RECORDS):
        producer.produce("pieces", value)
        producer.poll(0)
    producer.flush(60)
    fetched: list[int] = []

    def counted(*arguments: Any) -> dict[str, Any]:
        counts = {"statistics.interval.ms": 50, "stats_cb": lambda text: fetched.append(json.loads(text)["rxmsgs"])}
        return {**consumer_config(*arguments), **counts}

    monkeypatch.setattr(process, "consumer_config", counted)
    monkeypatch.setattr(process, "tame_collector", lambda: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "reading_handler.py").write_text(HANDLER)
    worker = worker_document(connection={"bootstrapServers": [place.bootstrap], "tls": None, "sasl": None})
    worker["handler"]["python"] = {"callable": "reading_handler:handle", "path": str(tmp_path)}
    ranges = {"0": [0, RECORDS]}
    document = backfill_document(worker=worker, topic="pieces", ranges=ranges, compare=compare_section())
    text = json.dumps(document)
    work = Work(config=text, policies=None, seconds=60.0, rate=None, limits={})
    handled = 0
    with TemporaryFile() as file:
        server = process.HandlerServer(config_of(text), "Live", CallSlots(file.fileno(), 1, 500))
        try:
            for first in range(0, RECORDS, PIECE):
                piece = (TaskRange(0, first, first + PIECE),)
                for part in server.play(PlayRequest(work, piece, bounded=False)):
                    handled += sum(each.offsets for each in part.report.covered)
        finally:
            server.tear_down()
            sys.modules.pop("reading_handler", None)
    assert handled == RECORDS
    assert RECORDS / 2 < fetched[-1] < RECORDS * 2.3
