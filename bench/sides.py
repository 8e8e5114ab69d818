"""The loops compared by the throughput benchmark. Each runs in a separate process and prints its measurements."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import confluent_kafka

from bench.fleet_loop import FleetLoop
from bench.measuring import Measured, measure
from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.librdkafka.settings import consumer_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import Record, Run
from fleet_consumer.worker.consume.outcomes import Handle

BATCH = 500


def nothing(record: object) -> None:
    """The handler that does nothing."""


def reads_all(record: Record) -> None:
    """A handler that reads every field and ignores them."""
    nothing(
        (
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            record.headers,
            record.leader_epoch,
        )
    )


def fleet(bootstrap: str, topic: str, wanted: int, handle: Handle = nothing) -> Measured:
    """The worker's consume loop, with group membership and commits."""
    loop = FleetLoop(bootstrap, topic, handle)
    try:
        return measure(loop.step, wanted)
    finally:
        loop.close()


Columns = tuple[list[Any], list[int]]
"""Values and offsets of a run."""


def columns(run: Run) -> Columns:
    """Values and offsets without making records."""
    return run.values(), run.offsets()


def columns_of_records(run: Run) -> Columns:
    """Values and offsets read from the run's records."""
    return [record.value for record in run.records], [record.offset for record in run.records]


def batches(bootstrap: str, topic: str, wanted: int, read: Callable[[Run], Columns]) -> Measured:
    """The library's consumer, with group membership and commits; a no-op is called with `read(run)`."""
    settings = ConsumerSettings(
        connection=ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="bench"),
        group_id=f"bench-{uuid.uuid4().hex}",
        max_poll_records=BATCH,
        auto_commit_interval_ms=5_000,
    )
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])

        def take() -> int:
            count = 0
            for run in consumer.poll(0.05).runs:
                values, offsets = read(run)
                nothing((values, offsets))
                count += len(values)
            return count

        return measure(take, wanted)


def librdkafka(bootstrap: str, topic: str, wanted: int) -> Measured:
    """Bare librdkafka with the same settings and batch size; every field is read, and a no-op called per record."""

    def handle(messages: list[confluent_kafka.Message]) -> None:
        for message in messages:
            fields_of(message)
            nothing(message)

    return _bare(bootstrap, topic, wanted, handle)


def fields_of(message: confluent_kafka.Message) -> tuple[Any, ...]:
    """Every field of a `Record`."""
    return (
        message.error(),
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp(),
        message.key(),
        message.value(),
        message.headers(),
        message.leader_epoch(),
    )


def raw(bootstrap: str, topic: str, wanted: int) -> Measured:
    """For information: the same loop without reading any field."""
    return _bare(bootstrap, topic, wanted, lambda messages: None)


def _bare(bootstrap: str, topic: str, wanted: int, handle: Callable[[list[confluent_kafka.Message]], None]) -> Measured:
    connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="bench")
    consumer = confluent_kafka.Consumer(consumer_config(connection, "bench-peer", "read_uncommitted", {}))
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])

    def take() -> int:
        first = consumer.poll(0.05)
        if first is None:
            return 0
        messages = [first, *consumer.consume(BATCH - 1, 0)]
        handle(messages)
        return len(messages)

    try:
        return measure(take, wanted)
    finally:
        consumer.close()


def kafka_python(bootstrap: str, topic: str, wanted: int) -> Measured:
    """kafka-python with a new group; it checks CRCs with a compiled library, like all others."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"bench-{uuid.uuid4().hex}",
        auto_offset_reset="earliest",
        max_poll_records=BATCH,
    )

    def take() -> int:
        count = 0
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                nothing(record)
            count += len(records)
        return count

    try:
        return measure(take, wanted)
    finally:
        consumer.close()


def aiokafka(bootstrap: str, topic: str, wanted: int) -> Measured:
    """aiokafka with a new group and its compiled record parser."""
    from aiokafka import AIOKafkaConsumer

    with asyncio.Runner() as runner:

        async def begin() -> Any:
            made = AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=f"bench-{uuid.uuid4().hex}",
                auto_offset_reset="earliest",
                max_poll_records=BATCH,
            )
            await made.start()
            return made

        async def some() -> int:
            # Many batches per entry into the event loop, which a real program would never leave.
            count = 0
            for _ in range(20):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        nothing(record)
                    count += len(records)
            return count

        consumer = runner.run(begin())
        try:
            return measure(lambda: runner.run(some()), wanted)
        finally:
            runner.run(consumer.stop())


SIDES: dict[str, Callable[[str, str, int], Measured]] = {
    "fleet": fleet,
    "fleet-reads": partial(fleet, handle=reads_all),
    "batch-columns": partial(batches, read=columns),
    "batch-records": partial(batches, read=columns_of_records),
    "librdkafka": librdkafka,
    "raw": raw,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}


if __name__ == "__main__":
    side, bootstrap, topic, wanted = sys.argv[1:]
    print(json.dumps(SIDES[side](bootstrap, topic, int(wanted)).figures()))
