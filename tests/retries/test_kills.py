"""Workers killed in the middle of a retry publish: nothing is lost, and a retry publish that was written twice is
handled once.

The two exceptions of docs/retries.md are tested here too.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fleet_consumer.contract import naming
from tests.broker.workers import QUIET, Kafka
from tests.retries.scene import Flow, metric
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

POINTS = ("before-produce", "after-ack", "after-commit")
SHORT: dict[str, Any] = {"consumer__sessionTimeoutSeconds": 2}
"""Short, so that the next owner need not wait long for the end of the dead one's session."""


def killed(point: str) -> tuple[str, ...]:
    """The command of a worker that dies at this point of its first retry publish."""
    return (sys.executable, "-m", "tests.retries.killed_worker", point)


@pytest.mark.parametrize("point", POINTS)
def test_a_main_worker_killed_in_a_retry_publish_loses_nothing_and_its_second_retry_publish_is_suppressed(
    kafka: Kafka, tmp_path: Path, point: str
) -> None:
    flow = Flow(kafka, tmp_path, "1s", "2s", partitions=1)
    flow.put([{"n": 1, "do": "fail"}])
    with flow.worker(command=killed(point), **SHORT) as dying:
        assert dying.wait(60) == -signal.SIGKILL
    with flow.worker(**SHORT), flow.retry_worker() as retry:
        flow.wait_failed(1)
        flow.wait_drained()
        suppressed = metric(retry, "suppressed_copies_total")
        counted = retry.member()["retry"]["suppressed"]
    twice = point == "after-ack"
    assert len(kafka.read(flow.retry_topic("1s"))) == (2 if twice else 1)
    assert suppressed == counted == (1 if twice else 0)
    attempts = Counter(each.attempt for each in flow.assert_none_early())
    assert attempts == {0: 1 if point == "after-commit" else 2, 1: 1, 2: 1}
    assert len(kafka.read(flow.failed)) == 1


@pytest.mark.parametrize("point", POINTS)
def test_a_retry_worker_killed_in_a_retry_publish_loses_nothing_and_its_second_retry_publish_is_suppressed(
    kafka: Kafka, tmp_path: Path, point: str
) -> None:
    flow = Flow(kafka, tmp_path, "1s", "2s", partitions=1)
    flow.put([{"n": 1, "do": "fail"}])
    with flow.worker(**SHORT):
        flow.wait_committed()
        with flow.retry_worker(command=killed(point), **SHORT) as dying:
            assert dying.wait(60) == -signal.SIGKILL
        with flow.retry_worker(**SHORT) as retry:
            flow.wait_failed(1)
            flow.wait_drained()
            suppressed = metric(retry, "suppressed_copies_total")
    twice = point == "after-ack"
    assert len(kafka.read(flow.retry_topic("2s"))) == (2 if twice else 1)
    assert suppressed == (1 if twice else 0)
    attempts = Counter(each.attempt for each in flow.assert_none_early())
    assert attempts == {0: 1, 1: 1 if point == "after-commit" else 2, 2: 1}
    assert len(kafka.read(flow.failed)) == 1


def test_copy_is_also_suppressed_by_the_new_owner_of_the_partition(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    others = 50
    flow.put([{"n": n, "do": "fail-until", "attempt": 1} for n in range(1 + others)])
    with flow.worker(), flow.retry_worker(**SHORT) as first:
        flow.wait_deliveries(2 * (1 + others))
        flow.wait_drained()
        copies = raw(kafka, flow.retry_topic("1s"))
        first.kill()
        with flow.retry_worker(1, **SHORT) as second:
            flow.write(flow.retry_topic("1s"), copies[:2])
            # Another record with the same key and value is no copy: its origin differs.
            flow.put([{"n": 0, "do": "fail-until", "attempt": 1}])
            flow.wait_deliveries(2 * (1 + others) + 2)
            flow.wait_drained()
            assert metric(second, "suppressed_copies_total") == 2
    handled = Counter((each.origin, each.attempt) for each in flow.assert_none_early())
    assert set(handled.values()) == {1}
    assert len(handled) == 2 * (1 + others) + 2


def test_retry_topic_ending_before_its_committed_offset_is_read_from_its_start(kafka: Kafka, tmp_path: Path) -> None:
    """It was recreated, or its leader lost its end: its records are new, although they lie below the commit."""
    flow, count = Flow(kafka, tmp_path, "1s", partitions=1), 20
    flow.put({"n": n, "do": "fail-until", "attempt": 1} for n in range(count))
    with flow.worker() as main:
        flow.wait_committed()
        main.terminate()
    topic, group = flow.retry_topic("1s"), naming.retry_group(flow.group)
    commit(kafka, group, topic, 10 * count)
    with flow.retry_worker():
        eventually(lambda: kafka.committed(group, topic) == {0: count}, what="all to be handled", poll_s=0.3)
    assert Counter(each.attempt for each in flow.assert_none_early()) == {0: count, 1: count}


def test_documented_a_record_that_comes_again_on_the_main_topic_may_succeed_and_be_retried_as_well(
    kafka: Kafka, tmp_path: Path
) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    flow.put([{"n": 1, "do": "fail-once"}])
    with flow.worker(command=killed("after-ack"), **SHORT) as dying:
        assert dying.wait(60) == -signal.SIGKILL
    with flow.worker(**SHORT) as main, flow.retry_worker() as retry:
        flow.wait_deliveries(3)
        flow.wait_drained()
        done = metric(main, "records_total", result="done"), metric(retry, "records_total", result="done")
    assert done == (1, 1)
    assert Counter(each.attempt for each in flow.assert_none_early()) == {0: 2, 1: 1}
    assert not kafka.read(flow.failed)


def test_documented_the_failed_topic_may_hold_copies_of_one_record(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    flow.put([{"n": 1, "do": "fatal"}])
    with flow.worker(command=killed("after-ack"), **SHORT) as dying:
        assert dying.wait(60) == -signal.SIGKILL
    with flow.worker(**SHORT):
        flow.wait_committed()
    copies = kafka.read(flow.failed)
    assert len(copies) == 2
    assert len({(each.headers["kr-origin-offset"], each.value) for each in copies}) == 1


def commit(kafka: Kafka, group: str, topic: str, offset: int) -> None:
    """Commit an offset of partition 0 for a group without members, as soon as its coordinator accepts it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, **QUIET})

    def taken() -> bool:
        try:
            consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
        except confluent_kafka.KafkaException as error:
            raise AssertionError(f"not taken: {error}") from error
        return True

    try:
        eventually(taken, what="the coordinator to take a commit", poll_s=0.3)
    finally:
        consumer.close()


def raw(kafka: Kafka, topic: str) -> list[dict[str, object]]:
    """The records of a topic in the form of `Flow.write`, with all headers."""
    return [
        {"key": each.key, "value": each.value, "headers": list(each.headers.items()), "partition": each.partition}
        for each in sorted(kafka.read(topic), key=lambda each: (each.partition, each.offset))
    ]
