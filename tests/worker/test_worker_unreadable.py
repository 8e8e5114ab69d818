"""A batch that cannot be read, as an operator of the fleet sees it: named, and passed when he says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_consumer.contract.skips import Place, render_skips
from tests.broker.workers import Fleet, Kafka
from tests.retries.scene import metric
from tests.support import segments
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_unreadable_batch_is_named_and_passed_on_request_and_all_others_are_handled(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    kafka = Kafka(broker.bootstrap)
    fleet = Fleet(kafka, tmp_path, "unreadable", partitions=2)
    for first in (0, 10, 20):
        fleet.send(*({"do": "ok", "n": n} for n in range(first, first + 10)), partition=0)
    segments.damage(broker, fleet.source, 0, 10, segments.flip_bit)
    skip_file = tmp_path / "skip.json"
    uid = fleet.settings()["uid"]
    with fleet.worker(skipFile=str(skip_file)) as worker:
        worker.wait_ready()
        (stuck,) = eventually(lambda: worker.member()["stuck"], what="the batch to be named")
        fleet.send(*({"do": "ok", "n": n} for n in range(100, 130)), partition=1)
        eventually(lambda: kafka.committed(fleet.name, fleet.source).get(1) == 30, what="the other partition")
        (again,) = worker.member()["stuck"]
        assert again == stuck
        assert (stuck["topic"], stuck["partition"], stuck["offset"]) == (fleet.source, 0, 10)
        assert stuck["reason"] == "DataUnreadable"
        assert "failed CRC32C check" in stuck["message"]
        assert worker.member()["error"]["reason"] == "DataUnreadable"
        assert kafka.committed(fleet.name, fleet.source)[0] == 10
        assert worker.get("/readyz")[0] == 200
        skip_file.write_text(json.dumps(render_skips(uid, [Place(fleet.source, 0, 10)])))
        fleet.wait_committed()
        (passed,) = worker.member()["skipped"]
        assert (passed["partition"], passed["offset"], passed["lastOffset"]) == (0, 10, 19)
        assert worker.member()["stuck"] == []
        assert metric(worker, "unreadable_offsets_total") == 10
        assert any("offsets 10 to 19" in line["message"] for line in worker.lines())
    done = [json.loads(each.value or b"")["n"] for each in kafka.read(fleet.output)]
    assert sorted(done) == [*range(10), *range(20, 30), *range(100, 130)]
