"""A service is down for longer than the whole sequence of the records that need it.

With a budget they wait, without one they use up their attempts. 500 records a second come in meanwhile, all of which
need the service.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.broker.workers import Kafka, Worker
from tests.retries.scene import Flow, metric
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

SEQUENCE = ("3s", "3s", "4s")
SEQUENCE_S = 10
OUTAGE_S = 13.0
"""Longer than the sequence, by a second or two for the detection of the outage."""
PER_SECOND = 500
PARTITIONS = 2
TICK_S = 0.05
BUDGET: dict[str, Any] = {
    "maxFailurePercent": 20,
    "windowSeconds": 2,
    "minRecords": 50,
    "action": "Pause",
    "cooldownSeconds": 1,
}


class Traffic:
    """Records at a steady rate, on a thread, until `stop`."""

    def __init__(self, flow: Flow) -> None:
        self._producer = SureProducer({"bootstrap.servers": flow.kafka.bootstrap, "linger.ms": 5})
        self._topic = flow.source
        self._ended = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The total number of written records."""
        self._ended.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        return self.sent

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(TICK_S):
            while self.sent < (time.monotonic() - began) * PER_SECOND:
                value = json.dumps({"n": self.sent, "do": "downstream"})
                self._producer.produce(self._topic, value, str(self.sent), partition=self.sent % PARTITIONS)
                self.sent += 1
            self._producer.poll(0)


@contextmanager
def traffic(flow: Flow) -> Iterator[Traffic]:
    writing = Traffic(flow)
    try:
        yield writing
    finally:
        writing.stop()


def through_an_outage(flow: Flow, workers: Sequence[Worker], over: Callable[[float], bool]) -> tuple[int, float, float]:
    """Traffic, the outage until it is `over` (called with its seconds), traffic again, until all is handled.

    Returns the number of records, and the begin and end of the outage (milliseconds since the epoch).
    """
    for worker in workers:
        worker.wait_ready()
    with traffic(flow) as writing:
        # Long enough for the window to hold only current records.
        flow.wait_deliveries(4 * PER_SECOND)
        flow.take_down()
        began, before = time.monotonic(), time.time() * 1000
        eventually(lambda: over(time.monotonic() - began), what="the outage to be over", poll_s=0.2)
        after = time.time() * 1000
        flow.bring_up()
        ended = writing.sent
        eventually(lambda: writing.sent >= ended + PER_SECOND, what="traffic after the outage")
        sent = writing.stop()
    flow.wait_drained(90)
    return sent, before, after


def test_budget_waits_for_the_service_and_uses_no_attempt(kafka: Kafka, tmp_path: Path) -> None:
    assert OUTAGE_S > SEQUENCE_S
    flow = Flow(kafka, tmp_path, *SEQUENCE, partitions=PARTITIONS, budget=BUDGET)
    with flow.worker() as main, flow.retry_worker() as retry, Breakers(main, retry) as breakers:
        sent, began, ended = through_an_outage(
            flow, (main, retry), lambda lasted: lasted >= OUTAGE_S and breakers.seen_open(main, retry)
        )
        done = metric(main, "records_total", result="done") + metric(retry, "records_total", result="done")
        breakers.wait_closed()
    deliveries = flow.assert_none_early()
    assert not kafka.read(flow.failed)
    assert done == sent == len({each.origin for each in deliveries}), "every record ended well"
    # Both paused once both had noticed, except one probe at a time, each after a cooldown.
    still = max(breakers.opened_ms(main), breakers.opened_ms(retry))
    assert began < still < ended
    tried = Counter(each.attempt for each in deliveries if still <= each.at_ms < ended)
    assert set(tried) <= {0}, f"attempts were burnt while the breaker was open: {tried}"
    assert tried[0] <= (ended - still) / 1000 / BUDGET["cooldownSeconds"] + 2, tried


def test_outage_without_a_budget_uses_up_attempts(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", "1s", "2s", partitions=PARTITIONS)
    with flow.worker() as main, flow.retry_worker() as retry:
        sent, began, ended = through_an_outage(
            flow, (main, retry), lambda _: sum(kafka.end_offsets(flow.failed).values()) > 2 * PER_SECOND
        )
    deliveries = flow.assert_none_early()
    storm = Counter(each.attempt for each in deliveries if began <= each.at_ms <= ended)
    assert set(storm) == {0, 1, 2, 3}
    assert sum(storm.values()) > 4 * 2 * PER_SECOND, "each of the failed records was tried four times"
    assert sum(kafka.end_offsets(flow.failed).values()) > 2 * PER_SECOND
    assert len({each.origin for each in deliveries}) == sent, "nothing is lost in a storm either"


class Breakers:
    """Notes, on a thread, the time when each worker's breaker was first seen open."""

    def __init__(self, *workers: Worker) -> None:
        self._workers = workers
        self._opened: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="breakers", daemon=True)

    def __enter__(self) -> Breakers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def seen_open(self, *workers: Worker) -> bool:
        """Return whether all of these were."""
        return all(worker.pid in self._opened for worker in workers)

    def opened_ms(self, worker: Worker) -> float:
        """The time when it was seen open, in milliseconds since the epoch."""
        assert worker.pid in self._opened, "the breaker was never seen open"
        return self._opened[worker.pid]

    def wait_closed(self) -> None:
        """Wait until all are closed again."""
        eventually(
            lambda: {self._state(worker) for worker in self._workers} == {"Closed"},
            what="the breakers to close",
        )

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            for worker in self._workers:
                if worker.pid not in self._opened and self._state(worker) == "Open":
                    self._opened[worker.pid] = time.time() * 1000

    def _state(self, worker: Worker) -> str:
        try:
            return str((worker.member()["breaker"] or {"state": "none"})["state"])
        except OSError:
            return "unknown"
