"""A producer that cannot be made, or raises, fails a write: never the record whose handler has succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_consumer.librdkafka.settings import SettingsRefused
from fleet_consumer.record import Produce, Record
from fleet_consumer.worker.consume.outbox import Outbox, Outgoing
from fleet_consumer.worker.consume.pending import Concurrency
from fleet_consumer.worker.consume.writing import BACKOFF_FIRST_S
from tests.support.clock import StillClock
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, Bench, ScriptedProducer, values

FIVE = "_fleet.g.retry.5s"
DROP = {"when": {"exception": "ValueError"}, "then": "Drop"}


class Closed:
    """A shop whose producer cannot be made: the authorities' file was renewed with something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
        self.bench = bench
        self.tries = 0
        monkeypatch.setattr(bench.outcomes._outbox, "_make_producer", self._make)
        self.closed = True

    def _make(self) -> Any:
        self.tries += 1
        if self.closed:
            raise SettingsRefused("the producer's settings: ca.pem holds no PEM certificate")
        return self.bench.producer


@pytest.mark.parametrize("kind", ["inline", "threads", "batch"])
def test_producer_that_cannot_be_made_holds_the_partition_and_no_rule_drops_its_records(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its ValueError was taken for the handler's, and a rule for ValueError dropped records whose handler succeeded."""
    found = policies("5s", classify=[DROP])

    def handle(given: Any) -> Any:
        return [Produce("out", each.value) for each in given] if kind == "batch" else Produce("out", given.value)

    executor, concurrency = None, None
    if kind != "inline":
        executor = ManualExecutor(handle, size=2, batch=kind == "batch")
        concurrency = Concurrency.sized(batch=kind == "batch", size=2, max_poll_records=500)
    bench = Bench(handle, {P0: values(3)}, policies=lambda: found, executor=executor, concurrency=concurrency)
    shop = Closed(monkeypatch, bench)
    for _ in range(6):
        bench.steps(1)
        while executor is not None and executor.jobs:
            executor.finish()
    partition = bench.loop.partitions[P0]
    assert (bench.stats.dropped, bench.stats.done) == (0, 0)
    assert partition.hold is not None
    assert partition.hold.reason == "ProduceFailed"
    assert "SettingsRefused" in partition.hold.message
    assert "ca.pem holds no PEM" in partition.hold.message
    bench.loop.committing.soon()
    bench.steps(1)
    assert bench.consumer.offsets.get(P0, 0) == 0
    shop.closed = False
    for _ in range(8):
        bench.clock.now += BACKOFF_FIRST_S
        bench.steps(1)
    assert sorted(bench.topic("out")) == values(3)
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 3}


def test_record_that_fails_stays_while_the_producer_of_its_retry_publish_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(record: Record) -> None:
        raise ValueError("no")

    found = policies("5s")
    bench = Bench(fails, {P0: values(2)}, policies=lambda: found)
    shop = Closed(monkeypatch, bench)
    bench.steps(3)
    hold = bench.loop.partitions[P0].hold
    assert hold is not None
    assert "SettingsRefused" in hold.message
    shop.closed = False
    for _ in range(4):
        bench.clock.now += BACKOFF_FIRST_S
        bench.steps(1)
    assert bench.topic(FIVE) == values(2)


def test_producer_that_cannot_be_made_is_tried_once_between_two_looks_at_the_writes() -> None:
    tries: list[int] = []

    def make() -> Any:
        tries.append(1)
        raise SettingsRefused("no")

    box = Outbox(make)
    writes = [box.send(Outgoing("out", None, b"v", ())) for _ in range(100)]
    assert len(tries) == 1
    assert all(write.done and write.error is not None for write in writes)
    box.wait(0)
    for write in writes:
        box.send(write)
    assert len(tries) == 2


def test_send_that_raises_is_a_failed_write_and_not_the_records_error() -> None:
    """Renewed credentials that cannot be read, for one: librdkafka was not even asked."""
    producer: Any = ScriptedProducer(StillClock())

    def raises(topic: str, **values: Any) -> Any:
        raise OSError("cannot read the password")

    producer.send = raises
    write = Outbox(lambda: producer).send(Outgoing("out", None, b"v", ()))
    assert write.done
    assert write.error is not None
    assert str(write.error) == "could not write to topic 'out': OSError: cannot read the password"


def test_error_while_an_answer_is_written_ends_the_session_and_no_rule_drops_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = policies("5s", classify=[DROP])
    bench = Bench(lambda record: Produce("out", record.value), {P0: values(2)}, policies=lambda: found)

    def fails(*arguments: Any) -> Any:
        raise ValueError("not the handler's")

    monkeypatch.setattr(bench.outcomes, "_write_all", fails)
    with pytest.raises(ValueError, match="not the handler's"):
        bench.steps(2)
    bench.loop.close(1)
    assert bench.stats.dropped == 0
    assert bench.consumer.offsets.get(P0, 0) == 0


def test_error_of_a_generator_that_a_handler_returned_is_its_records() -> None:
    def handle(record: Record) -> Any:
        yield Produce("out", record.value)
        raise ValueError("the handler's")

    found = policies("5s", classify=[DROP])
    bench = Bench(handle, {P0: values(2)}, policies=lambda: found)
    bench.steps(2)
    assert (bench.stats.dropped, bench.topic("out")) == (2, [])
