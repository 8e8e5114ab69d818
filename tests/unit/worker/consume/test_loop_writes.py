"""Writes of the consume loop that fail: held partitions, repeated writes, and a new producer."""

from __future__ import annotations

import itertools
from typing import Any

from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.record import Produce, Record
from fleet_consumer.worker.consume.writing import ACK_WAIT_S
from tests.unit.worker.scripted import FAILED, P0, P1, Bench, values


def test_partition_without_acknowledgements_is_held_while_others_continue() -> None:
    def handle(record: Record) -> Produce | None:
        return Produce("out", record.value) if record.partition == 0 else None

    bench = Bench(handle, {P0: values(4), P1: values(4)}, per_poll=4)
    bench.producer.silent = True
    bench.steps(1)
    bench.clock.now += ACK_WAIT_S
    bench.steps(1)
    hold = bench.loop.partitions[P0].hold
    assert hold is not None
    assert (hold.offset, hold.reason) == (0, "Unacknowledged")
    bench.consumer.logs[P0] += values(4)
    bench.steps(12)
    assert bench.consumer.offsets == {P0: 0, P1: 4}
    assert bench.stats.done == 4
    bench.producer.silent = False
    bench.steps(1)
    assert bench.loop.partitions[P0].hold is None
    bench.steps(1)
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 8, P1: 4}
    assert bench.topic("out") == values(4) + values(4)


def test_write_that_fails_is_sent_again_with_backoff_and_never_skipped() -> None:
    bench = Bench(lambda record: Produce("out", record.value), {P0: values(2)})
    tries: list[float] = []

    def refuse(topic: str, value: Any, headers: Any) -> ProduceFailed | None:
        if value == b"1":
            return None
        tries.append(bench.clock.now)
        return None if len(tries) > 5 else ProduceFailed(topic, "_UNKNOWN_TOPIC", "no such topic")

    bench.producer.refuse = refuse
    bench.steps(1)
    hold = bench.loop.partitions[P0].hold
    assert hold is not None
    assert (hold.offset, hold.reason) == (0, "TopicNotFound")
    bench.steps(100)
    assert [round(later - earlier) for earlier, later in itertools.pairwise(tries)] == [2, 2, 4, 8, 16]
    bench.loop.close(1)
    assert sorted(bench.topic("out")) == values(2)
    assert bench.consumer.offsets == {P0: 2}
    assert bench.stats.done == 2


def test_offset_of_a_held_record_is_what_a_rebalance_commits() -> None:
    bench = Bench(lambda record: Produce("out", record.value) if record.offset >= 2 else None, {P0: values(5)})
    bench.producer.silent = True
    bench.steps(1)
    bench.consumer.script.append(lambda: bench.consumer.revoke(P0))
    bench.steps(1)
    assert bench.consumer.offsets == {P0: 2}
    bench.producer.silent = False
    bench.steps(40)
    assert bench.producer.written == []


def test_output_that_its_topic_never_takes_fails_the_record() -> None:
    bench = Bench(lambda record: Produce("out", b"huge"), {P0: values(1)})
    bench.producer.refuse = lambda topic, value, headers: (
        ProduceFailed(topic, "MSG_SIZE_TOO_LARGE", "too large") if topic == "out" else None
    )
    bench.steps(3)
    bench.loop.close(1)
    assert bench.topic(FAILED) == [b"0"]
    assert bench.consumer.offsets == {P0: 1}
    assert (bench.stats.done, bench.stats.failed) == (0, 1)


def test_oversized_failed_record_drops_headers_before_it_holds_its_partition() -> None:
    def handle(record: Record) -> None:
        raise ValueError("x" * 2000)

    bench = Bench(handle, {P0: values(1)})
    bench.producer.refuse = lambda topic, value, headers: (
        ProduceFailed(topic, "MSG_SIZE_TOO_LARGE", "too large") if "kr-error-message" in dict(headers) else None
    )
    bench.steps(3)
    bench.loop.close(1)
    told = dict(bench.producer.written[0][3])
    assert "kr-error-message" not in told
    assert told["kr-origin-offset"] == b"0"
    assert bench.consumer.offsets == {P0: 1}


def test_producer_that_librdkafka_gave_up_is_replaced() -> None:
    bench = Bench(lambda record: Produce("out", record.value), {P0: values(1)})
    bench.producer.refuse = lambda topic, value, headers: (
        ProduceFailed(topic, "_FATAL", "epoch bumped") if bench.producers_made == 1 else None
    )
    bench.steps(20)
    bench.loop.close(1)
    assert (bench.producers_made, bench.topic("out")) == (2, [b"0"])
    assert bench.consumer.offsets == {P0: 1}


def test_no_producer_is_made_before_something_is_written() -> None:
    bench = Bench(lambda record: None, {P0: values(10)})
    bench.steps(3)
    assert bench.producers_made == 0
