"""A retried record is its origin to whoever handles it, and behaves as every record does."""

from __future__ import annotations

import copy
import dataclasses
import pickle

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from fleet_consumer.librdkafka.fetched import fetched_records
from fleet_consumer.record import Delivery, Record, TimestampType, TopicPartition
from fleet_consumer.retry.headers import Origin, RetryHistory
from fleet_consumer.retry.routing import RetriedRecord, history_of, retried

STORY = RetryHistory(Origin("flights", 3, 42, 1_357), 2, 99, "a1b2c3d4e5")
READ = Record(
    "_fleet.orders.retry.5s", 1, 7, 5_000, b"k", b"v", [("a", b"1"), ("kr-attempt", b"2"), ("a", None)], leader_epoch=4
)


def test_handler_sees_the_origin_and_finds_next_to_it_where_the_record_was_read() -> None:
    record = retried(READ, STORY)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("flights", 3, 42, 1_357)
    assert (record.key, record.value, record.headers) == (b"k", b"v", [("a", b"1"), ("a", None)])
    assert (record.attempt, record.first_failed_at) == (2, 99)
    assert record.delivery == Delivery("_fleet.orders.retry.5s", 1, 7, 5_000, 2)


def test_timestamp_type_of_the_retry_topic_is_not_taken_for_that_of_the_origin() -> None:
    """Its timestamp is the origin's, whose type nobody noted."""
    message = Message(
        topic="_fleet.orders.retry.5s", partition=1, offset=7, timestamp=(TIMESTAMP_LOG_APPEND_TIME, 5_000)
    )
    (read,) = fetched_records(TopicPartition("_fleet.orders.retry.5s", 1), [message])
    assert read.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert retried(read, STORY).timestamp_type is TimestampType.NO_TIMESTAMP_TYPE


def test_epoch_belongs_to_the_committed_partition() -> None:
    assert retried(READ, STORY).leader_epoch == 4


def test_first_delivery_is_its_own_origin() -> None:
    assert READ.delivery == Delivery(READ.topic, READ.partition, READ.offset, READ.timestamp, 0)
    assert history_of(READ) == RetryHistory(Origin(READ.topic, READ.partition, READ.offset, READ.timestamp))
    assert history_of(retried(READ, STORY)) is STORY


def test_copies_of_any_kind_are_whole() -> None:
    record = retried(READ, STORY)
    replaced = dataclasses.replace(record, value={"n": 1})
    assert isinstance(replaced, RetriedRecord)
    assert (replaced.delivery, replaced.value) == (record.delivery, {"n": 1})
    assert copy.copy(record) == copy.deepcopy(record) == pickle.loads(pickle.dumps(record)) == record


def test_decoding_in_place_leaves_the_original_bytes() -> None:
    record = retried(READ, STORY)
    record.value = {"n": 1}
    assert READ.value == b"v"
