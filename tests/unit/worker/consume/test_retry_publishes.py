"""A failed record is on its way before it is committed past, whatever its topic says to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.record import Fatal, Produce, Record, RetryAfter
from fleet_consumer.retry.headers import DETAILS, Origin
from fleet_consumer.retry.routing import partition_of
from tests.unit.retry.policies import policies
from tests.unit.worker.scripted import P0, Bench

FIVE, MINUTE, FAILED = "_fleet.g.retry.5s", "_fleet.g.retry.1m", "_fleet.g.failed"


def fail(record: Record) -> None:
    raise ValueError("no")


def test_record_behind_a_failing_one_is_handled_at_once_and_the_retry_publish_is_written_before_the_commit() -> None:
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 0:
            raise ValueError("no")

    bench = Bench(handle, {P0: [b"a", b"b"]}, policies=lambda: policies("5s"))
    bench.producer.silent = True
    bench.steps(1)
    assert seen == [0, 1]
    bench.clock.now += 6
    bench.steps(1)
    assert bench.consumer.offsets == {P0: 0}, "not acknowledged: not committed past"
    bench.producer.silent = False
    bench.steps(12)
    assert bench.consumer.offsets == {P0: 2}
    assert [(topic, value) for topic, _, value, _ in bench.producer.written] == [(FIVE, b"a")]
    assert (bench.stats.retried, bench.stats.done, bench.stats.failed) == (1, 1, 0)


def test_handler_exceptions_decide_over_the_sequence() -> None:
    errors = [ValueError("no"), RetryAfter(20), RetryAfter(1e9), Fatal("for good")]

    def handle(record: Record) -> None:
        raise errors[record.offset]

    bench = Bench(handle, {P0: [b"0", b"1", b"2", b"3"]}, policies=lambda: policies("5s", "1m"))
    bench.steps(1)
    assert [topic for topic, *_ in bench.producer.written] == [FIVE, MINUTE, MINUTE, FAILED]


def test_policy_that_changes_is_followed_by_the_next_failure() -> None:
    found = policies("5s")
    bench = Bench(fail, {P0: [b"0", b"1"]}, per_poll=1, policies=lambda: found)
    bench.steps(1)
    found = policies("1m")
    bench.steps(1)
    assert [topic for topic, *_ in bench.producer.written] == [FIVE, MINUTE]


def test_retry_publish_is_partitioned_by_key_or_without_one_by_origin() -> None:
    sent: list[int | None] = []
    bench = Bench(fail, {P0: [b"0", b"1"]}, policies=lambda: policies("5s"))
    send = bench.producer.send

    def recorded(topic: str, *, partition: int | None = None, **parts: Any) -> Any:
        sent.append(partition)
        return send(topic, partition=partition, **parts)

    bench.producer.send = recorded  # type: ignore[method-assign]
    bench.consumer.key = lambda value: None if value == b"0" else b"k"
    bench.steps(1)
    assert sent == [partition_of(None, Origin("t", 0, 0, 5), 12), None]
    assert sent[0] is not None


def too_large(topics: Sequence[str], *, with_details_only: bool = False) -> Any:
    def refuse(topic: str, value: Any, headers: Sequence[Any]) -> ProduceFailed | None:
        fits = with_details_only and not any(name in DETAILS for name, _ in headers)
        return ProduceFailed(topic, "MSG_SIZE_TOO_LARGE", "too large") if topic in topics and not fits else None

    return refuse


def test_retry_publish_that_is_too_large_goes_without_its_error_headers() -> None:
    bench = Bench(fail, {P0: [b"huge"]}, policies=lambda: policies("5s"))
    bench.producer.refuse = too_large([FIVE], with_details_only=True)
    bench.steps(3)
    bench.loop.close(1)
    ((topic, _, _, headers),) = bench.producer.written
    assert (topic, dict(headers)["kr-attempt"]) == (FIVE, b"1")
    assert bench.consumer.offsets == {P0: 1}
    assert (bench.stats.retried, bench.stats.failed) == (1, 0)


def test_retry_publish_that_is_too_large_even_so_ends_in_the_failed_topic() -> None:
    bench = Bench(fail, {P0: [b"huge"]}, policies=lambda: policies("5s"))
    bench.producer.refuse = too_large([FIVE])
    bench.steps(4)
    bench.loop.close(1)
    ((topic, _, value, headers),) = bench.producer.written
    assert (topic, value) == (FAILED, b"huge")
    assert (dict(headers)["kr-reason"], dict(headers)["kr-error-class"]) == (b"fatal", b"RetryTopicRefused")
    assert bench.consumer.offsets == {P0: 1}
    assert (bench.stats.retried, bench.stats.failed) == (0, 1)


def test_output_that_is_refused_fails_its_record_for_good_under_a_policy_too() -> None:
    bench = Bench(lambda record: Produce("out", b"huge"), {P0: [b"v"]}, policies=lambda: policies("5s"))
    bench.producer.refuse = too_large(["out"])
    bench.steps(3)
    bench.loop.close(1)
    assert [topic for topic, *_ in bench.producer.written] == [FAILED]


@pytest.mark.parametrize("reason", ["_UNKNOWN_TOPIC", "TOPIC_AUTHORIZATION_FAILED", "_MSG_TIMED_OUT"])
def test_retry_publish_that_cannot_be_written_holds_its_partition_and_nothing_is_skipped(reason: str) -> None:
    bench = Bench(fail, {P0: [b"0", b"1"]}, policies=lambda: policies("5s"))
    bench.producer.refuse = lambda topic, value, headers: ProduceFailed(topic, reason, "no")
    bench.steps(20)
    hold = bench.loop.partitions[P0].hold
    assert hold is not None
    assert hold.offset == 0
    assert bench.consumer.offsets == {P0: 0}
    bench.producer.refuse = lambda topic, value, headers: None
    bench.steps(80)
    assert [value for _, _, value, _ in bench.producer.written] == [b"0", b"1"]
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 2}
