"""Disturbances while thousands of records wait: none comes early, none is stuck, no worker spins."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker.workers import Kafka, Worker
from tests.retries.scene import Flow
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

WAITING = 3_000
PARTITIONS = 4
IDLE_WATCH_S = 20.0
IDLE_CPU_SHARE = 0.02


@contextmanager
def waiting_flow(kafka: Kafka, folder: Path, delay: str) -> Iterator[Flow]:
    """A flow with so many records in its one retry topic, each of which will succeed; its main worker is gone."""
    flow = Flow(kafka, folder, delay, partitions=PARTITIONS)
    flow.put(({"n": n, "do": "fail-until", "attempt": 1} for n in range(WAITING)), partition=None)
    with flow.worker() as main:
        flow.wait_committed()
        main.terminate()
    assert sum(kafka.end_offsets(flow.retry_topic(delay)).values()) == WAITING
    yield flow


def assert_each_delivered_when_due(flow: Flow, *, interruptions: int) -> None:
    """Every record was retried, none early, and none more often than workers were interrupted."""
    counts = Counter(each.origin for each in flow.assert_none_early() if each.attempt == 1)
    assert len(counts) == WAITING
    assert max(counts.values()) <= 1 + interruptions, f"{counts.most_common(1)} came too often"


@pytest.mark.together
def test_a_rebalance_while_thousands_wait(kafka: Kafka, tmp_path: Path) -> None:
    with waiting_flow(kafka, tmp_path, "15s") as flow, flow.retry_worker() as first:
        wait_heads(flow, first, PARTITIONS)
        with flow.retry_worker(1) as second:
            wait_heads(flow, second, PARTITIONS // 2)
            wait_heads(flow, first, PARTITIONS // 2)
            second.terminate()
            wait_heads(flow, first, PARTITIONS)
            flow.wait_drained(90)
    assert_each_delivered_when_due(flow, interruptions=2)


@pytest.mark.together
def test_workers_that_die_and_come_back_while_thousands_wait(kafka: Kafka, tmp_path: Path) -> None:
    with waiting_flow(kafka, tmp_path, "15s") as flow:
        for ordinal in range(2):
            with flow.retry_worker(ordinal) as worker:
                wait_heads(flow, worker, PARTITIONS)
                worker.kill()
        with flow.retry_worker(2):
            flow.wait_drained(90)
    assert_each_delivered_when_due(flow, interruptions=2)


@pytest.mark.together
def test_an_idle_waiting_worker_costs_next_to_nothing(kafka: Kafka, tmp_path: Path) -> None:
    with waiting_flow(kafka, tmp_path, "1h") as flow, flow.retry_worker() as worker:
        wait_heads(flow, worker, PARTITIONS)
        before, began = cpu_seconds(worker.pid), time.monotonic()
        eventually(
            lambda: time.monotonic() - began >= IDLE_WATCH_S,
            timeout_s=2 * IDLE_WATCH_S,
            what="time to pass",
            poll_s=0.5,
        )
        share = (cpu_seconds(worker.pid) - before) / (time.monotonic() - began)
        wait_heads(flow, worker, PARTITIONS)
    print(f"an idle waiting worker used {share:.2%} of a core")
    assert share <= IDLE_CPU_SHARE, f"a waiting worker used {share:.1%} of a core"
    assert not [each for each in flow.deliveries() if each.attempt]


def test_a_broker_that_dies_and_comes_back_while_thousands_wait(
    broker: KafkaBroker, kafka: Kafka, tmp_path: Path
) -> None:
    with waiting_flow(kafka, tmp_path, "10s") as flow, flow.retry_worker() as worker:
        wait_heads(flow, worker, PARTITIONS)
        broker.kill()
        broker.start()
        flow.wait_drained(90)
    assert_each_delivered_when_due(flow, interruptions=1)


def wait_heads(flow: Flow, worker: Worker, partitions: int) -> None:
    """Wait until the worker reports so many partitions that wait for their first record.

    On a machine so slow that the wait is over by then, the rest of the test happens to records being handled instead.
    """

    def probe() -> bool:
        return len(worker.member()["retry"]["waiting"]) == partitions or any(e.attempt for e in flow.deliveries())

    eventually(probe, what=f"{partitions} partitions to wait", poll_s=0.3)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and all of its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
