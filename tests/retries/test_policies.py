"""A policy edited while records wait, and subscriptions next to the retry topics."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.broker.retry_fleet import revision
from tests.broker.workers import Kafka, Worker
from tests.retries.scene import Flow
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_two_edits_with_records_waiting_under_each_revision(kafka: Kafka, tmp_path: Path) -> None:
    """Each record follows the revision that it began with; workers load new ones without a restart."""
    sequences = (("8s", "1s"), ("6s", "2s", "1s"), ("3s",))
    flow = Flow(kafka, tmp_path, *sequences[0])
    revisions = [flow.current]
    each = 20
    with flow.worker() as main, flow.retry_worker() as retry:
        for number, sequence in enumerate(sequences):
            if number:
                revisions.append(flow.follow(revision(sequence)))
                wait_current(flow, revisions[-1], main, retry)
            flow.put(({"n": number, "do": "fail"} for _ in range(each)), partition=None)
            flow.wait_deliveries(each * (number + 1))
            flow.wait_committed()
        failed = flow.wait_failed(each * len(sequences))
        flow.wait_drained()
    ways: dict[tuple[str, int, int, int], list[str]] = defaultdict(list)
    numbers = {}
    for delivery in flow.assert_none_early():
        ways[delivery.origin].append(delivery.read_topic)
        numbers[delivery.origin] = delivery.n or 0
    for origin, way in ways.items():
        assert way == [flow.source, *map(flow.retry_topic, sequences[numbers[origin]])]
    assert len(ways) == each * len(sequences)
    followed = {(int(one.headers["kr-origin-offset"] or b""), one.headers["kr-policy"]) for one in failed}
    assert {policy for _, policy in followed} == {f"standard@{name}".encode() for name in revisions}


def test_unknown_revision_is_replaced_by_the_current_one_and_counted(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "6s", "1s", partitions=1)
    with flow.worker() as main:
        flow.put([{"n": 1, "do": "fail"}])
        flow.wait_committed()
        main.terminate()
    flow.follow(revision(("6s", "2s", "1s")), drop=[flow.current])
    with flow.retry_worker() as retry:
        (failed,) = flow.wait_failed(1)
        assert retry.member()["retry"]["policy"]["unknown"] >= 1
    assert failed.headers["kr-attempt"] == b"3"
    ways = [each.read_topic for each in flow.assert_none_early()]
    assert ways == [flow.source, *map(flow.retry_topic, ("6s", "2s", "1s"))]


def test_a_pattern_never_takes_in_managed_topics(kafka: Kafka, tmp_path: Path) -> None:
    """`^orders\\..*` next to its own retry topics, and next to topics of users that look like some."""
    flow = Flow(kafka, tmp_path, "1s", "2s", partitions=1)
    ours = f"orders.{flow.group}.retry.1s"
    others = ["_fleet.orders.other.retry.1s", f"_fleet.orders.{flow.group}.failed"]
    kafka.create(ours, *others, partitions=1)
    for topic in (ours, *others):
        kafka.produce(topic, [b'{"n": 1, "do": "fail"}'])
    changes: dict[str, Any] = {"topics": [], "topicPattern": rf"^(_fleet\.)?orders\..*|.*{flow.group}.*"}
    with flow.worker(**changes) as main, flow.retry_worker(**changes):
        flow.put([{"n": 2, "do": "fail"}])
        flow.wait_failed(2)
        flow.wait_drained()
        assert set(main.member()["assignment"]) == {flow.source, flow.output, ours}
    first = {each.read_topic for each in flow.assert_none_early() if each.attempt == 0}
    assert first == {flow.source, ours}, "a user's own topic is read, whatever it looks like"
    assert len(flow.deliveries()) == 2 * 3


def wait_current(flow: Flow, current: str, *workers: Worker) -> None:
    """Wait until the workers report that they follow this revision."""

    def probe() -> bool:
        return all(worker.member()["retry"]["policy"]["current"] == current for worker in workers)

    eventually(probe, timeout_s=30, what=f"the workers of {flow.group} to follow {current}")
