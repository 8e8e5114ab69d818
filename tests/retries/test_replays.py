"""Replay: after an offset reset failing records are retried again, and can be put back again.

Offsets are reset with Kafka's own tool, as users do.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract import naming
from tests.broker.workers import Kafka
from tests.retries.redrives import redrive_settings, run_redrive
from tests.retries.scene import Flow, metric
from tests.retries.test_kills import SHORT, killed
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
COUNT = 10


class Replayed(Flow):
    """A flow whose groups' offsets may be reset while they have no members."""

    broker: KafkaBroker

    def reset(self, group: str, topic: str, *to: str) -> None:
        """Reset a group's offsets of a topic, by default to the earliest, as soon as its members have gone."""
        command = (TOOL, "--bootstrap-server", self.kafka.bootstrap, "--group", group, "--topic", topic)

        def taken() -> bool:
            printed = self.broker.tool(*command, "--reset-offsets", *(to or ("--to-earliest",)), "--execute")
            assert "Error" not in printed, printed
            return True

        eventually(taken, what="the offsets to be reset", poll_s=1)

    def moved(self) -> tuple[int, int, int]:
        """All records that a Redrive finds in the failed topic: selected, moved, guarded."""
        settings = redrive_settings(self.group, self.kafka, partitions=self.partitions)
        return run_redrive(settings, self.folder).counts


@pytest.fixture
def flow(broker: KafkaBroker, kafka: Kafka, tmp_path: Path) -> Iterator[Replayed]:
    """A group with two attempts, whose source holds records that always fail."""
    made = Replayed(kafka, tmp_path, "2s", partitions=2)
    made.broker = broker
    made.put([{"n": n, "do": "fail"} for n in range(COUNT)], partition=None)
    return (yield made)


def test_records_failing_again_while_the_first_pass_waits_are_retried_separately(flow: Replayed) -> None:
    with flow.worker() as first:
        flow.wait_committed()
        assert first.terminate() == 0
    flow.reset(flow.group, flow.source)
    with flow.worker() as second, flow.retry_worker() as retry:
        failed = flow.wait_failed(2 * COUNT)
        flow.wait_drained()
        assert metric(retry, "suppressed_copies_total") == 0
        assert second.terminate() == 0
    assert Counter(each.attempt for each in flow.assert_none_early()) == {0: 2 * COUNT, 1: 2 * COUNT}
    assert set(Counter(each.headers["kr-origin-offset"] for each in failed).values()) <= {2, 4}
    assert flow.moved() == (2 * COUNT, 2 * COUNT, 0)
    assert flow.moved() == (0, 0, 0)


@pytest.mark.parametrize("how", ["--to-earliest", "--to-datetime=2020-01-01T00:00:00.000", "deleted"])
def test_records_failing_again_after_a_redrive_are_retried_and_redriven(flow: Replayed, how: str) -> None:
    with flow.worker() as main, flow.retry_worker() as retry:
        flow.wait_failed(COUNT)
        assert flow.moved() == (COUNT, COUNT, 0)
        flow.wait_failed(2 * COUNT)
        flow.wait_drained()
        assert (main.terminate(), retry.terminate()) == (0, 0)
    if how == "deleted":
        delete = ("--delete-offsets", "--topic", flow.source, "--group", flow.group)
        eventually(
            lambda: "Error" not in flow.broker.tool(TOOL, "--bootstrap-server", flow.kafka.bootstrap, *delete),
            what="the offsets to be deleted",
            poll_s=1,
        )
    else:
        flow.reset(flow.group, flow.source, *how.split("="))
    with flow.worker(), flow.retry_worker() as retry:
        flow.wait_failed(3 * COUNT)
        flow.wait_drained()
        assert metric(retry, "suppressed_copies_total") == 0
        assert flow.moved() == (2 * COUNT, 2 * COUNT, 0), "what came back from the first Redrive, and the second pass"
        flow.wait_failed(5 * COUNT)
        flow.wait_drained()
    assert Counter(each.attempt for each in flow.assert_none_early()) == {0: 2 * COUNT + 3 * COUNT, 1: 5 * COUNT}


def test_records_failing_again_after_a_retry_topic_reset_can_be_redriven(flow: Replayed) -> None:
    with flow.worker(), flow.retry_worker() as first:
        flow.wait_failed(COUNT)
        flow.wait_drained()
        assert flow.moved() == (COUNT, COUNT, 0)
        flow.wait_failed(2 * COUNT)
        flow.wait_drained()
        assert first.terminate() == 0
        flow.reset(naming.retry_group(flow.group), flow.retry_topic("2s"))
        with flow.retry_worker():
            flow.wait_failed(4 * COUNT)
            flow.wait_drained()
    assert flow.moved() == (3 * COUNT, 3 * COUNT, 0)


def test_a_worker_killed_after_a_reset_leaves_copies_and_no_new_records(flow: Replayed) -> None:
    short: dict[str, Any] = SHORT
    with flow.worker() as first, flow.retry_worker() as retry:
        flow.wait_failed(COUNT)
        flow.wait_drained()
        assert (first.terminate(), retry.terminate()) == (0, 0)
    flow.reset(flow.group, flow.source)
    with flow.worker(command=killed("after-ack"), **short) as dying:
        assert dying.wait(60) == -signal.SIGKILL
    written = len(flow.kafka.read(flow.retry_topic("2s"))) - COUNT
    assert written > 0
    with flow.worker(**short), flow.retry_worker() as retry:
        flow.wait_failed(2 * COUNT)
        flow.wait_drained()
        assert metric(retry, "suppressed_copies_total") == written
    assert len(flow.kafka.read(flow.failed)) == 2 * COUNT
