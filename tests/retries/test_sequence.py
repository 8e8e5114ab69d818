"""The path of one record through its policy: M18, M19, M20, with seconds in place of minutes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.broker.retry_fleet import MANAGED, revision
from tests.broker.workers import Kafka
from tests.retries.scene import Flow, metric
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_m18_seven_deliveries_through_three_topics_and_a_failed_record_with_its_history(
    kafka: Kafka, tmp_path: Path
) -> None:
    flow = Flow(kafka, tmp_path, "1s", "1s", "2s", "2s", "2s", "3s")
    assert flow.managed() == {"retry.1s", "retry.2s", "retry.3s", "failed", "redrive"}
    with flow.worker() as main, flow.retry_worker() as retry:
        flow.put([{"n": 1, "do": "fail"}])
        (failed,) = flow.wait_failed(1)
        flow.wait_drained()
        published = (
            metric(main, "retry_publishes_total", delay="1s"),
            metric(retry, "retry_publishes_total", delay="2s"),
        )
        exhausted = metric(retry, "failures_total", reason="exhausted")

    assert flow.managed() == {"retry.1s", "retry.2s", "retry.3s", "failed", "redrive"}, "no other topic was made"
    assert (published, exhausted) == ((1, 3), 1)
    deliveries = flow.assert_none_early()
    assert [each.attempt for each in deliveries] == list(range(7))
    ways = ["1s", "1s", "2s", "2s", "2s", "3s"]
    assert [each.read_topic for each in deliveries] == [flow.source, *map(flow.retry_topic, ways)]
    (origin,) = {each.origin for each in deliveries}
    assert origin[:3] == (flow.source, 0, 0)
    (first_failed_at,) = {each.first_failed_at for each in deliveries[1:]}
    assert first_failed_at is not None
    assert deliveries[0].at_ms - 1 <= first_failed_at <= deliveries[1].at_ms

    (record,) = flow.source_records()
    assert (failed.key, failed.value) == (record.key, record.value)
    failed_at = int(failed.headers["kr-failed-at"] or b"")
    assert deliveries[-1].at_ms - 1 <= failed_at
    expected = {
        "trace": b"t-1",
        "kr-attempt": b"6",
        "kr-group": flow.group.encode(),
        "kr-policy": f"standard@{flow.current}".encode(),
        "kr-first-failed-at": str(first_failed_at).encode(),
        "kr-origin-topic": flow.source.encode(),
        "kr-origin-partition": b"0",
        "kr-origin-offset": b"0",
        "kr-origin-timestamp": str(origin[3]).encode(),
        "kr-error-class": b"ValueError",
        "kr-error-message": b"asked to fail: 1",
        "kr-reason": b"exhausted",
    }
    assert {name: failed.headers.get(name) for name in expected} == expected


def test_waiting_record_carries_its_due_time(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1h")
    with flow.worker() as main:
        flow.put([{"n": 1, "do": "fail"}])
        flow.wait_committed()
        assert metric(main, "records_total", result="retried") == 1
    (waiting,) = kafka.read(flow.retry_topic("1h"))
    assert (waiting.headers["kr-attempt"], waiting.headers["kr-delay-ms"]) == (b"1", b"3600000")
    not_before = int(waiting.headers["kr-not-before"] or b"")
    assert abs(not_before - int(waiting.headers["kr-failed-at"] or b"") - 3_600_000) < 60_000


def test_m19_records_behind_a_failing_one_are_handed_out_in_order_at_once(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "10s")
    behind = 300
    flow.put([{"n": 0, "do": "fail-once"}, *({"n": n} for n in range(1, behind + 1))])
    with flow.worker(), flow.retry_worker():
        deliveries = flow.wait_deliveries(behind + 2)
        flow.wait_drained()
    # The retry is the last of all: the records behind it did not wait for it.
    assert [each.n for each in deliveries] == [*range(behind + 1), 0]
    assert [each.attempt for each in deliveries] == [0] * (behind + 1) + [1]
    flow.assert_none_early()


def test_m20_fatal_failures_go_to_the_failed_topic_at_once(kafka: Kafka, tmp_path: Path) -> None:
    rules = [
        {"when": {"messageRegex": "asked to fail until .*"}, "then": "Drop"},
        {"when": {"exception": "ValueError"}, "then": "Fail"},
    ]
    flow = Flow(kafka, tmp_path, "1s", classify=rules)
    wishes: list[dict[str, Any]] = [{"do": "fatal"}, {"do": "fail"}, {"do": "fail-until", "attempt": 9}, {"do": "skip"}]
    with flow.worker(handler__decode__value="Json") as main:
        flow.put([{**asked, "n": n} for n, asked in enumerate(wishes)])
        kafka.produce(flow.source, [b"\xff\xfe no JSON"], partition=0)
        flow.wait_committed()
        failed = sorted(flow.wait_failed(3), key=lambda each: int(each.headers["kr-origin-offset"] or b""))
        dropped = metric(main, "records_total", result="dropped")
    assert [each.headers["kr-reason"] for each in failed] == [b"fatal", b"fatal", b"undecodable"]
    assert all(each.headers["kr-attempt"] == b"0" for each in failed)
    assert failed[2].value == b"\xff\xfe no JSON"
    assert dropped == 2
    assert sum(kafka.end_offsets(flow.retry_topic("1s")).values()) == 0
    assert len(flow.deliveries()) == 4


def test_retry_after_takes_the_next_sufficient_delay(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", "3s", "6s")
    with flow.worker(), flow.retry_worker():
        flow.put([{"n": 1, "do": "later", "seconds": 2}, {"n": 2, "do": "later", "seconds": 3600}])
        flow.wait_deliveries(4)
        flow.wait_drained()
    ways = {(each.n, each.attempt): each.read_topic for each in flow.assert_none_early()}
    assert ways[1, 1] == flow.retry_topic("3s")
    assert ways[2, 1] == flow.retry_topic("6s")
    assert len(ways) == 4


def test_failures_of_a_record_end_when_its_time_is_over(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, *["1s"] * 20, maxTotalSeconds=3)
    with flow.worker(), flow.retry_worker():
        flow.put([{"n": 1, "do": "fail"}])
        (failed,) = flow.wait_failed(1)
    deliveries = flow.assert_none_early()
    assert failed.headers["kr-reason"] == b"exhausted"
    assert int(failed.headers["kr-attempt"] or b"") == deliveries[-1].attempt <= 4


def test_a_retry_publish_that_cannot_be_written_holds_its_partition_until_it_can(kafka: Kafka, tmp_path: Path) -> None:
    """The retry topic is missing: the record stays in place, with all behind it, and the worker reports it."""
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    flow.made("3s")
    flow.current = flow.follow(revision(("3s",)), drop=[flow.current])
    flow.put([{"n": 1}, {"n": 2, "do": "fail-once"}, {"n": 3}])
    with flow.worker() as main, flow.retry_worker():
        stuck = eventually(lambda: main.member()["stuck"], what="the partition to be held", poll_s=0.2)
        assert [(each["topic"], each["offset"]) for each in stuck] == [(flow.source, 1)]
        assert kafka.committed(flow.group, flow.source).get(0, 0) <= 1, "nothing is skipped"
        kafka.create(flow.retry_topic("3s"), partitions=1, config=MANAGED)
        flow.wait_deliveries(4, 120)
        flow.wait_drained(120)
        assert not main.member()["stuck"]
    tried = Counter((each.n, each.attempt) for each in flow.assert_none_early())
    assert set(tried) == {(1, 0), (2, 0), (3, 0), (2, 1)}
