"""A killed run continues where it was: each record is moved once, for any moment of the kill."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract import naming
from fleet_consumer.contract.redrive_config import parse_config
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import connection_config, consumer_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.redrive import job
from tests.broker.workers import Kafka
from tests.retries.redrives import FailedTopic
from tests.support.kafka import KafkaBroker


@pytest.fixture
def topic(kafka: Kafka, tmp_path: Path) -> FailedTopic:
    return FailedTopic(kafka, tmp_path)


def test_restarted_run_moves_each_record_once(topic: FailedTopic) -> None:
    topic.write(range(600))
    settings = topic.settings()
    for target in (100, 250):
        run = topic.start({**settings, "recordsPerSecond": 100})
        topic.wait_moved(target)
        run.kill()
    assert 250 <= sum(topic.kafka.end_offsets(topic.redrive).values()) < 600
    assert topic.run(settings).counts == (600, 600, 0)
    assert topic.moved_numbers() == list(range(600))


def test_stopped_run_stores_its_progress_and_reports_that_it_is_incomplete(topic: FailedTopic) -> None:
    topic.write(range(300))
    settings = topic.settings()
    run = topic.start({**settings, "recordsPerSecond": 40})
    topic.wait_moved(40)
    ended = run.terminate()
    assert (ended.code, ended.result["ok"], ended.result["reason"]) == (21, False, "Stopped")
    moved = sum(topic.kafka.end_offsets(topic.redrive).values())
    assert sum(each["moved"] for each in topic.progress(settings["id"]).values()) == moved < 300
    assert topic.run(settings).counts == (300, 300, 0)
    assert topic.moved_numbers() == list(range(300))


def test_broker_outage_interrupts_and_breaks_nothing(broker: KafkaBroker, topic: FailedTopic) -> None:
    topic.write(range(400))
    settings = topic.settings(recordsPerSecond=80)
    run = topic.start(settings)
    topic.wait_moved(80)
    broker.kill()
    broker.start()
    ended = run.end()
    if ended.code == 21:  # the broker was away for longer than a run waits; its Job starts it again
        ended = topic.start(settings).end()
    assert (ended.code, ended.result["moved"]) == (0, 400)
    assert topic.moved_numbers() == list(range(400))


class Killed(Exception):
    """Stands for the end of the process."""


class ReaderKilledBeforeCommit(BoundedReader):
    """Ends the run just before its n-th commit, when the batch is written and acknowledged."""

    left: int

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed
        super().commit(offsets)


class ProducerKilledAfterSends(RecordProducer):
    """Ends the run while a batch is in flight and its result is unknown."""

    left: int

    def flush(self, timeout_s: float) -> int:
        self.left -= 1
        if self.left < 0:
            super().flush(timeout_s)
            raise Killed
        return super().flush(timeout_s)


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("moment", ["before the commit", "before the acknowledgement is known"])
def test_batch_that_was_written_and_not_committed_is_counted_and_not_written_again(
    topic: FailedTopic, moment: str, nth: int
) -> None:
    topic.write(range(3_000))
    settings = topic.settings()
    config = parse_config(settings)
    connection = ConnectionSettings(bootstrap_servers=config.brokers.bootstrap_servers, client_id="test")
    group = naming.redrive_group(topic.group, config.id)
    reader = ReaderKilledBeforeCommit(consumer_config(connection, group, "read_uncommitted", {}))
    producer = ProducerKilledAfterSends(connection_config(connection))
    # The first commit stores the ends, before anything is written.
    reader.left = nth if moment == "before the commit" else sys.maxsize
    producer.left = nth - 1 if moment != "before the commit" else sys.maxsize
    failed = naming.failed_topic(topic.group)
    with reader, pytest.raises(Killed):
        job.Run(config, failed, reader, producer, threading.Event(), SystemClock()).run()
    assert 0 < len(topic.moved()) < 3_000
    assert topic.run(settings).counts == (3_000, 3_000, 0)
    assert topic.moved_numbers() == list(range(3_000))
