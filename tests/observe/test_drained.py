"""The lag of a transactional source that a worker has drained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_operator.planning.lag import partition_lag
from tests.broker.test_consumer_ends import Transactions
from tests.broker.workers import Fleet, Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually


@pytest.mark.together
@pytest.mark.parametrize("concurrency", [1, 4])
def test_worker_that_has_drained_a_transactional_source_has_no_lag(
    broker: KafkaBroker, tmp_path: Path, concurrency: int
) -> None:
    """The lag that the operator scales by: the end of the log less the commit."""
    fleet = Fleet(Kafka(broker.bootstrap), tmp_path, f"drained-{concurrency}", partitions=1)
    producer = Transactions(broker, fleet.source)
    value = json.dumps({"do": "ok", "n": 1}).encode()
    producer.write(5, value=value)
    producer.write(3, value=value, commit=False)
    with fleet.worker(handler__concurrency=concurrency, consumer__isolationLevel="ReadCommitted") as worker:
        worker.wait_ready()

        def lag() -> int | None:
            committed = fleet.kafka.committed(fleet.name, fleet.source).get(0)
            return partition_lag(committed, fleet.kafka.end_offsets(fleet.source)[0], 0, "Earliest")

        eventually(lambda: lag() == 0, what="a lag of 0")
        producer.write(2, value=value)
        eventually(lambda: len(set(fleet.origins_done())) == 7, what="what came behind the gap")
        eventually(lambda: lag() == 0, what="a lag of 0 again")
    assert sorted(fleet.origins_done()) == [(0, offset) for offset in (0, 1, 2, 3, 4, 10, 11)]
