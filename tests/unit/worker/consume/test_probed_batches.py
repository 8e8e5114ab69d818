"""A batch whose records are tried one by one keeps its order, whatever becomes of the budget meanwhile."""

from __future__ import annotations

from typing import Any

from fleet_consumer.record import Record
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, Bench

BUDGET = {"maxFailurePercent": 1, "windowSeconds": 60, "minRecords": 1, "action": "Pause", "cooldownSeconds": 1}


class Outage:
    """A partition whose batch of four came back failed, under a budget that lets one record through."""

    def __init__(self) -> None:
        self.fails, self.seen = True, list[int]()
        self.policies = policies("5s", budget=BUDGET)
        self.executor = ManualExecutor(self._handle_batch, 2, batch=True)
        self.bench = Bench(
            lambda record: None,
            {P0: [b"%d" % n for n in range(4)]},
            executor=self.executor,
            concurrency=Concurrency.sized(batch=True, size=2, max_poll_records=500),
            policies=lambda: self.policies,
        )
        self.bench.steps(3)
        self.executor.finish()
        self.bench.steps(2)
        self.bench.clock.now += 2
        self.bench.steps(4)

    def _handle_batch(self, records: list[Record]) -> Any:
        if self.fails:
            return [ConnectionError("down")] * len(records)
        self.seen += [record.offset for record in records]
        return None


def test_rest_of_a_probed_batch_waits_for_its_first_record_though_the_budget_is_gone() -> None:
    outage = Outage()
    assert outage.executor.offsets() == [[0]]
    outage.policies = policies("5s")
    outage.bench.steps(3)
    assert outage.executor.offsets() == [[0]], "those behind it are handled after it"
    outage.fails = False
    outage.executor.finish()
    outage.bench.steps(2)
    assert outage.executor.offsets() == [[1, 2, 3]]
    outage.executor.finish()
    outage.bench.steps(12)
    assert outage.seen == [0, 1, 2, 3]
    assert outage.bench.consumer.offsets == {P0: 4}


def test_probed_record_that_fails_is_the_first_to_be_tried_again() -> None:
    outage = Outage()
    outage.executor.finish()
    outage.bench.steps(2)
    outage.bench.clock.now += 2
    outage.bench.steps(4)
    assert outage.executor.offsets() == [[0]]
    outage.fails = False
    for _ in range(20):
        outage.bench.steps(1)
        while outage.executor.jobs:
            outage.executor.finish()
    outage.bench.steps(12)
    assert outage.seen == [0, 1, 2, 3]
    assert outage.bench.consumer.offsets == {P0: 4}


def test_rest_of_a_probed_batch_goes_with_its_partition() -> None:
    outage = Outage()
    outage.bench.consumer.script.append(lambda: outage.bench.consumer.lose(P0))
    outage.bench.steps(1)
    outage.executor.finish()
    outage.bench.steps(2)
    assert outage.executor.offsets() == []
    assert outage.bench.loop.in_flight == 0
    outage.fails, outage.policies = False, policies("5s")
    outage.bench.consumer.script.append(lambda: outage.bench.consumer.assign(P0))
    for _ in range(20):
        outage.bench.steps(1)
        while outage.executor.jobs:
            outage.executor.finish()
    assert outage.seen == [0, 1, 2, 3]
