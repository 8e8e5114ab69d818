"""A main worker whose budget is used up stands still, uses up no attempt, tries one record at a time, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.contract.breaker_state import read_breaker_state
from fleet_consumer.contract.policies import DEFAULT_BUDGET, Policies
from fleet_consumer.contract.policy_expansion import expand_policy
from fleet_consumer.record import Fatal, Produce, Record
from fleet_consumer.worker.consume.pending import Concurrency
from fleet_consumer.worker.consume.progress import BREAKER_OPEN
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, P1, Bench

COUNT = 30
BUDGET = {"maxFailurePercent": 50, "windowSeconds": 60, "minRecords": 10, "action": "Pause", "cooldownSeconds": 30}


def budgeted(**changes: Any) -> Policies:
    return policies("5s", "5s", budget=BUDGET | changes)


class Outage:
    """Partitions full of records, for a handler that fails while `down`; every third offset fails for good."""

    def __init__(
        self,
        found: Policies,
        *,
        calls: int = 0,
        batch: bool = False,
        key: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        self.down = True
        self.poison: frozenset[tuple[int, int]] = frozenset()
        self.calls: list[tuple[int, int]] = []
        self.on_call: Callable[[], object] = lambda: None
        self.found = found
        one: Callable[[Any], Any] = self.handle_all if batch else self.handle
        self.executor = ManualExecutor(one, calls, batch=batch) if calls else None
        self.bench = Bench(
            self.handle,
            {each: [b"%d" % n for n in range(COUNT)] for each in (P0, P1)},
            executor=self.executor,
            concurrency=Concurrency.sized(batch=batch, size=calls, max_poll_records=20) if calls else None,
            policies=lambda: self.found,
        )
        self.consumer = self.bench.consumer
        self.consumer.wakeup = lambda: None
        if key is not None:
            self.consumer.key = key

    def handle(self, record: Record) -> Produce:
        self.calls.append((record.partition, record.offset))
        self.on_call()
        if self.down or (record.partition, record.offset) in self.poison:
            raise ConnectionError("down")
        return Produce("out", record.value)

    def handle_all(self, records: list[Record]) -> list[Produce]:
        return [self.handle(record) for record in records]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.bench.steps(1)
            while self.executor is not None and self.executor.jobs:
                self.executor.finish()

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            self.step()
        raise AssertionError(f"not after 500 steps; state {self.bench.pacing.snapshot}")

    @property
    def state(self) -> str:
        snapshot = self.bench.pacing.snapshot
        return "none" if snapshot is None else str(snapshot.state)

    def retry_publishes(self) -> int:
        return sum(topic.startswith("_fleet.") for topic, *_ in self.bench.producer.written)


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_outage_uses_up_few_attempts_and_all_records_end_done(calls: int) -> None:
    outage = Outage(budgeted(), calls=calls)
    outage.until(lambda: outage.state == "Open")
    outage.step(2)
    assert outage.retry_publishes() == 9, "the tenth failure opened the breaker, and stayed"
    assert all(BREAKER_OPEN in outage.bench.pauses.reasons[each] for each in (P0, P1))
    calls = len(outage.calls)
    outage.bench.clock.now += 31
    outage.until(lambda: len(outage.calls) > calls)
    outage.step(3)
    assert len(outage.calls) == calls + 1, "one probe"
    assert (outage.state, outage.retry_publishes()) == ("Open", 9)
    outage.down = False
    outage.bench.clock.now += 31
    outage.until(lambda: outage.bench.stats.done == 2 * COUNT - 9)
    assert outage.state == "Closed"
    assert outage.bench.pauses.reasons == {}
    outage.bench.loop.close(1)
    assert outage.consumer.offsets == {P0: COUNT, P1: COUNT}
    assert outage.bench.stats.retried == 9


def test_batch_abandoned_after_its_topic_was_recreated_skips_nothing_of_the_new_topic() -> None:
    """The loop polls in between, and so the consumer may have gone over to the new topic: its position is lower."""
    outage = Outage(budgeted())
    outage.on_call = lambda: outage.consumer.seek(P0, 0) if len(outage.calls) == 10 else None
    outage.until(lambda: outage.state == "Open")
    assert outage.consumer.position(P0) == 0


def test_commits_carry_an_open_breaker_and_its_end() -> None:
    outage = Outage(budgeted(cooldownSeconds=3))
    outage.until(lambda: outage.state == "Open")
    for _ in range(60):
        outage.step()
        until_ms = read_breaker_state(outage.consumer.metadata[P0])
        assert until_ms is not None
        assert until_ms / 1000 > outage.bench.clock.wall(), "renewed before it ends"
        assert until_ms == read_breaker_state(outage.consumer.metadata[P1])
    outage.down = False
    outage.until(lambda: outage.state == "Closed")
    outage.step(2)
    assert [read_breaker_state(text) for text in outage.consumer.metadata.values()] == [None, None]


def test_mark_follows_a_clock_that_is_set_back() -> None:
    outage = Outage(budgeted(cooldownSeconds=3))
    outage.until(lambda: outage.state == "Open")
    wall = outage.bench.clock.wall
    outage.bench.clock.wall = lambda: wall() - 3_600  # type: ignore[method-assign]
    outage.step(60)
    until_ms = read_breaker_state(outage.consumer.metadata[P0])
    assert until_ms is not None
    assert 0 < until_ms / 1000 - outage.bench.clock.wall() < 30


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_record_that_can_never_succeed_keeps_no_breaker_open_after_the_outage(calls: int) -> None:
    """It is the one at which the worker stands, and so the first to be tried, whatever else would succeed by now."""
    outage = Outage(budgeted(cooldownSeconds=1), calls=calls)
    outage.until(lambda: outage.state == "Open")
    outage.step(2)
    outage.down, outage.poison = False, frozenset(outage.calls)
    outage.until(lambda: outage.state == "Closed")
    outage.until(lambda: outage.bench.stats.done + outage.retry_publishes() == 2 * COUNT)
    outage.bench.loop.close(1)
    assert outage.consumer.offsets == {P0: COUNT, P1: COUNT}


def test_half_open_breaker_of_a_topic_that_has_become_quiet_closes() -> None:
    """One record is left to be tried, and three successes would close the breaker: retry workers wait for it."""
    outage = Outage(budgeted(minRecords=COUNT))
    del outage.consumer.logs[P1][:]
    outage.until(lambda: outage.state == "Open")
    outage.down = False
    outage.bench.clock.now += 31
    outage.until(lambda: outage.bench.stats.done == 1)
    assert outage.state == "HalfOpen"
    outage.until(lambda: outage.state == "Closed")
    outage.step(2)
    assert read_breaker_state(outage.consumer.metadata[P0]) is None


def test_partition_that_is_assigned_while_the_breaker_is_open_stands_still_too() -> None:
    outage = Outage(budgeted())
    outage.until(lambda: outage.state == "Open")
    outage.consumer.revoke(P1)
    outage.consumer.assign(P1)
    assert outage.bench.pauses.reasons == {P0: {BREAKER_OPEN}, P1: {BREAKER_OPEN}}
    calls = len(outage.calls)
    outage.step(5)
    assert len(outage.calls) == calls


def test_successes_and_final_failures_keep_the_breaker_closed() -> None:
    outage = Outage(budgeted())

    def handle(record: Record) -> Produce:
        if record.offset % 3 == 0:
            raise ConnectionError("down")
        if record.offset % 3 == 1:
            raise Fatal("for good")
        return Produce("out", record.value)

    outage.found = budgeted(maxFailurePercent=60)
    outage.bench.loop._rounds._times._handle = handle
    outage.step(5)
    assert (outage.state, outage.retry_publishes()) == ("Closed", 40)


def test_action_fail_sends_failures_to_the_failed_topic_while_open() -> None:
    outage = Outage(budgeted(action="Fail"))
    outage.step(5)
    assert outage.bench.stats.retry_publishes == {"5s": 9}
    assert outage.bench.stats.failures == {"breaker": 2 * COUNT - 9}
    outage.bench.loop.close(1)
    assert outage.consumer.offsets == {P0: COUNT, P1: COUNT}
    assert {read_breaker_state(text) for text in outage.consumer.metadata.values()} == {None}


@pytest.mark.parametrize("found", [budgeted(action="None"), policies("5s")])
def test_without_a_budget_nothing_pauses(found: Policies) -> None:
    outage = Outage(found)
    outage.step(5)
    assert (outage.state, outage.retry_publishes()) == ("none", 2 * COUNT)


def test_budget_that_is_edited_away_ends_the_pause() -> None:
    outage = Outage(budgeted())
    outage.until(lambda: outage.state == "Open")
    outage.found = policies("5s", "5s")
    outage.step(5)
    assert outage.bench.stats.retried == 2 * COUNT


def test_records_of_a_key_keep_their_order_through_an_outage() -> None:
    outage = Outage(budgeted(minRecords=1), calls=4, key=lambda value: b"same")
    outage.until(lambda: outage.state == "Open")
    outage.step(3)
    outage.down = False
    done: list[tuple[int, int]] = []
    outage.calls = done
    outage.bench.clock.now += 31
    outage.until(lambda: outage.bench.stats.done == 2 * COUNT)
    for partition in (0, 1):
        assert [offset for number, offset in done if number == partition] == list(range(COUNT))
    assert outage.retry_publishes() == 0


def test_failed_records_of_a_batch_are_tried_one_by_one() -> None:
    outage = Outage(budgeted(minRecords=1), calls=2, batch=True)
    outage.until(lambda: outage.state == "Open")
    outage.step(3)
    outage.down = False
    sizes: list[int] = []
    outage.bench.clock.now += 31
    executor = outage.executor
    assert executor is not None
    for _ in range(200):
        outage.bench.steps(1)
        while executor.jobs:
            sizes.append(len(executor.jobs[0].records))
            executor.finish()
    assert sizes[:3] == [1, 1, 1]
    outage.bench.loop.close(1)
    assert (outage.bench.stats.done, outage.consumer.offsets) == (2 * COUNT, {P0: COUNT, P1: COUNT})


def test_parked_records_go_with_their_partition() -> None:
    outage = Outage(budgeted(minRecords=1), calls=4)
    outage.until(lambda: outage.state == "Open")
    outage.step(3)
    before = outage.bench.clock.now
    outage.consumer.script.append(lambda: outage.consumer.revoke(P0))
    outage.step()
    assert outage.bench.clock.now - before < 2, "nobody waits for what cannot come back"
    outage.down = False
    outage.consumer.script.append(lambda: outage.consumer.assign(P0))
    outage.bench.clock.now += 31
    outage.until(lambda: outage.bench.stats.done == 2 * COUNT)
    outage.bench.loop.close(1)
    assert outage.consumer.offsets == {P0: COUNT, P1: COUNT}


def test_worker_that_is_asked_to_stop_does_not_wait_for_the_outage_to_end() -> None:
    outage = Outage(budgeted(minRecords=1), calls=4)
    outage.until(lambda: outage.state == "Open")
    before = outage.bench.clock.now
    outage.bench.loop.stop()
    outage.bench.loop.close(10)
    assert outage.bench.clock.now - before < 5
    assert outage.consumer.offsets == {P0: 0, P1: 0}


@pytest.mark.parametrize(
    ("policy", "published"),
    [(policies("5s", budget=None), 99), (policies("5s"), 300)],
    ids=["default", "turned off"],
)
def test_outage_costs_a_hundred_records_an_attempt_where_the_policy_has_no_budget(
    policy: Policies, published: int
) -> None:
    def handle(record: Record) -> None:
        raise ConnectionError("down")

    bench = Bench(handle, {P0: [b"%d" % n for n in range(300)]}, policies=lambda: policy)
    bench.steps(5)
    assert sum(topic.startswith("_fleet.") for topic, *_ in bench.producer.written) == published


def test_default_of_main_workers_has_the_values_that_the_fields_of_a_budget_default_to() -> None:
    given = expand_policy({"sequence": ["5s"], "budget": {}}, "spec")["budget"]
    assert policies("5s", budget=given).newest.budget == DEFAULT_BUDGET
