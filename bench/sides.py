"""The loops that the throughput benchmark compares. Each runs in a process of its own and prints what it measured.

The clock starts once the first records have been handled, so joining and connecting do not count, and stops at the
record that completes the wanted number. CPU time is that of the whole process, librdkafka's threads included.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka

from fleet_consumer.clock import SystemClock
from fleet_consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.fetch.librdkafka import consumer_config
from fleet_consumer.fetch.producer import RecordProducer
from fleet_consumer.handlers import Outputs
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import Record
from fleet_consumer.worker.judge import Handle, Judge
from fleet_consumer.worker.loop import ConsumeLoop, LoopSettings
from fleet_consumer.worker.outbox import Outbox
from fleet_consumer.worker.process import tame_collector
from fleet_consumer.worker.stats import Stats
from fleet_consumer.worker.watchdog import Watch
from fleet_consumer.worker.writing import Writing

BATCH = 500
STALLED_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of one side came to."""

    records: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        return self.cpu_seconds / self.records * 1_000_000


def measure(take: Callable[[], int], wanted: int) -> Measured:
    """Call `take`, which handles some records and says how many, until `wanted` are handled after the first ones."""
    quiet_since = time.monotonic()
    while (warm := take()) == 0:
        if time.monotonic() - quiet_since > STALLED_AFTER_S:
            raise SystemExit("no record came")
    started, cpu_before = time.monotonic(), time.process_time()
    handled, target, quiet_since = 0, wanted - warm, started
    while handled < target:
        count = take()
        handled += count
        if count:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > STALLED_AFTER_S:
            raise SystemExit(f"stalled after {handled} records")
    return Measured(handled, time.monotonic() - started, time.process_time() - cpu_before)


def nothing(record: object) -> None:
    """The handler that does nothing."""


def reads_all(record: Record) -> None:
    """A handler that looks at every field and does nothing with them: records read their fields when asked."""
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
    """The worker's own consume loop, with group membership, commits and all."""
    clock, stats, watch = SystemClock(), Stats(), Watch()
    connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="bench")
    group = f"bench-{uuid.uuid4().hex}"
    consumer = Consumer(ConsumerSettings(connection=connection, group_id=group))

    def no_producer() -> RecordProducer:
        raise AssertionError("a handler that does nothing writes nothing")

    outbox = Outbox(no_producer)
    judge = Judge(outbox=outbox, outputs=Outputs(()), failed_topic="none", group_id=group, stats=stats, clock=clock)
    loop = ConsumeLoop(
        consumer=consumer,
        handle=handle,
        judge=judge,
        writing=Writing(outbox=outbox, judge=judge, consumer=consumer, stats=stats, clock=clock),
        settings=LoopSettings(topics=(topic,), commit_interval_s=5, drain_s=0),
        stats=stats,
        watch=watch,
        clock=clock,
        pause=time.sleep,
    )
    tame_collector()
    loop.start()

    def take() -> int:
        before = stats.done
        loop.step()
        return stats.done - before

    try:
        return measure(take, wanted)
    finally:
        loop.close(10)


def librdkafka(bootstrap: str, topic: str, wanted: int) -> Measured:
    """The peer: the same settings and batch size, every field of each record read, a no-op called for it."""

    def handle(messages: list[confluent_kafka.Message]) -> None:
        for message in messages:
            fields_of(message)
            nothing(message)

    return _bare(bootstrap, topic, wanted, handle)


def fields_of(message: confluent_kafka.Message) -> tuple[Any, ...]:
    """Every field that a `Record` has."""
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
    """For information: the same loop without looking at any record."""
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


def peak_mib() -> float:
    """The most memory this process has held; ru_maxrss would tell its parent's when that was larger."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


SIDES: dict[str, Callable[[str, str, int], Measured]] = {
    "fleet": fleet,
    "fleet-reads": partial(fleet, handle=reads_all),
    "librdkafka": librdkafka,
    "raw": raw,
}


if __name__ == "__main__":
    side, bootstrap, topic, wanted = sys.argv[1:]
    result = SIDES[side](bootstrap, topic, int(wanted))
    print(
        json.dumps(
            {
                "records": result.records,
                "seconds": result.seconds,
                "per_second": result.per_second,
                "cpu_per_million": result.cpu_per_million,
                "peak_mib": peak_mib(),
            }
        )
    )
