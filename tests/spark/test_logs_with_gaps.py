"""Topics whose offsets have gaps: compacted, transactional, with nothing in a range."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka
import pytest

from tests.spark.scene import Place, Scene, origins
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_aborted_records_and_markers_at_the_end(place: Place, tmp_path: Path) -> None:
    """Also in free order, where some tasks' ranges hold nothing but aborted records."""
    with Scene(place, tmp_path, worker={"consumer": _read_committed()}) as scene:
        producer = confluent_kafka.Producer({"bootstrap.servers": place.bootstrap, "transactional.id": scene.name})
        producer.init_transactions(30)
        number = 0
        for committed in (True, False, True, False):
            producer.begin_transaction()
            for _ in range(200):
                producer.produce(scene.topic, json.dumps({"n": number}).encode(), partition=number % 2)
                number += 1
            producer.flush(30)
            if committed:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
        ends = scene.kafka.end_offsets(scene.topic)
        assert ends == {0: 404, 1: 404}, "each transaction leaves a marker in each partition"
        scene.run(sink=scene.parquet, ordering="None", parallelism=8)
        wanted = sorted([*range(200), *range(400, 600)])
        assert sorted(json.loads(row["value"])["n"] for row in scene.rows()) == wanted
        ledger = scene.ledger
        assert ledger.counts.records_in == 400
        assert not ledger.remaining
        scene.api.put("second", {})
        scene.run(sink=scene.parquet, ledger="second", id="id-two", sliceRecords=150)
        assert sorted(json.loads(row["value"])["n"] for row in scene.rows(of="id-two")) == wanted


def test_compacted_topic(place: Place, tmp_path: Path) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.001",
        "segment.ms": "100",
        "max.compaction.lag.ms": "100",
    }
    with Scene(place, tmp_path, partitions=1, topic_config=config) as scene:
        for _ in range(3):
            for number in range(200):
                scene.kafka.produce_keyed(scene.topic, [(f"k{number}".encode(), b'{"n": %d}' % number)] * 1)
            scene.kafka.produce_keyed(scene.topic, [(b"last", b'{"n": -1}')])

        def compacted() -> bool:
            # Each write may roll the segment, after which the cleaner may take what lies before.
            scene.kafka.produce_keyed(scene.topic, [(b"last", b'{"n": -1}')])
            return len(scene.kafka.read(scene.topic)) < 500

        eventually(compacted, what="the cleaner to remove older values", poll_s=1.0)
        scene.run(sink=scene.parquet, ordering="None", parallelism=3, sliceRecords=250)
        left = {(each.partition, each.offset) for each in scene.kafka.read(scene.topic)}
        read = origins(scene.rows())
        assert len(set(read)) == len(read)
        # The cleaner may have gone on meanwhile; what is there now was there before.
        assert left <= set(read)
        assert len(read) < 600
        assert not scene.ledger.remaining


def _read_committed() -> dict[str, object]:
    from tests.unit.worker.documents import worker_document

    return {**worker_document()["consumer"], "isolationLevel": "ReadCommitted"}
