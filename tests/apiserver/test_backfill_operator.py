"""Backfills on a real API server and a real broker. The tests play the Spark operator and the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from fleet_consumer.contract.backfill_config import parse_config
from tests.apiserver import objects, spark
from tests.apiserver.conftest import PARTITIONS, PATIENCE_S, Site, make_topic
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("spark_crd", "operator"), pytest.mark.together]

MakeSite = Callable[..., Site]
RECORDS = 12
"""In each partition of the topic `backfilled`."""


@pytest.fixture(scope="session")
def spark_crd(api: ApiServer) -> None:
    spark.install_crd(api)


@pytest.fixture(scope="session")
def topic(broker: KafkaBroker) -> str:
    """A topic with some records in each partition."""
    name = "backfilled"
    make_topic(broker, name)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(name, str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    return name


def group(site: Site, broker: KafkaBroker, topic: str = "backfilled", **spec: Any) -> None:
    site.apply(objects.handler_source(site.name), objects.cluster(site.name, broker.bootstrap))
    site.apply(objects.group(site.name, topics=[topic], **spec))


def test_life_of_a_backfill(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    """It resolves, runs, shows its ledger, survives the death of a driver, and ends."""
    here = site("backfill-life")
    group(here, broker)
    here.apply(spark.backfill(here.name, rate={"recordsPerSecond": 50}))
    application = spark.wait_attempt(here, 1)
    status = here.status("backfills", "again")
    assert status["resolvedRange"] == {str(number): f"0-{RECORDS}" for number in range(PARTITIONS)}
    (owner,) = application["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Backfill", here.get("backfills", "again")["metadata"]["uid"])
    config = parse_config(json.loads(here.get("configmaps", "again-backfill")["data"]["backfill.json"]))
    assert (config.topic, config.ranges[0], config.worker.group_id) == (topic, (0, RECORDS), f"{here.name}.flights")
    assert here.get("configmaps", "again-backfill-handler")["data"] == {"handler.py": objects.HANDLER_SOURCE}
    assert spark.control(here).records_per_second == 50
    spark.set_state(here, 1, "RUNNING")
    spark.make_driver(here, 1)
    spark.wait_phase(here, "Running", "Running")
    left = dict.fromkeys(range(PARTITIONS), ((6, RECORDS),))
    spark.write_ledger(here, spark.ledger(1, left, slices_done=1, slices_left=1, counts=spark.counts(36)))

    def counted() -> bool:
        seen = here.status("backfills", "again")
        assert (seen["offsetsCovered"], seen["offsetsTotal"], seen.get("records", {}).get("in")) == (36, 72, 36), seen
        assert seen["progressText"] == "50 %, slice 2 of 2"
        return True

    eventually(counted, timeout_s=PATIENCE_S, what="the driver's counts")
    spark.end_driver(here, 1, 143)
    spark.set_state(here, 1, "FAILED", "driver container failed with ExitCode: 143, Reason: Error")
    spark.wait_attempt(here, 2)
    spark.make_driver(here, 2)
    spark.set_state(here, 2, "RUNNING")
    done = spark.ledger(2, {}, slices_done=2, counts=spark.counts(72), ended=True)
    spark.write_ledger(here, done)
    spark.end_driver(here, 2, 0)
    spark.set_state(here, 2, "COMPLETED")
    status = spark.wait_phase(here, "Succeeded", "AllHandled")
    assert (status["attempts"], status["offsetsCovered"], status["progressText"]) == (2, 72, "100 %, slice 2 of 2")
    assert spark.applications(here) == ["again-1", "again-2"]
    header, row = here.kubectl("get", "kbf", "again").strip().splitlines()
    assert header.split() == ["NAME", "GROUP", "PHASE", "PROGRESS", "RATE", "END", "FAILED", "AGE"]
    assert row.split()[:3] == ["again", "flights", "Succeeded"]
