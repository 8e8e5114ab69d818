"""Several records at once: order by key, commits of what is contiguous, and nothing from partitions that have gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.group.errors import CommitFailed
from fleet_consumer.record import Fatal, Produce, Record, RetryAfter, Skip
from fleet_consumer.retry.failure import HttpStatus
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, P1, Bench


class Shop:
    """A concurrent loop over two partitions, with a executor that the test moves."""

    def __init__(
        self,
        count: int,
        *,
        size: int = 3,
        handle: Callable[[Any], Any] = lambda record: Produce("out", record.value),
        batch: bool = False,
        max_poll_records: int = 500,
        policies: Callable[[], Any] = lambda: None,
    ) -> None:
        self.executor = ManualExecutor(handle, size, batch=batch)
        self.bench = Bench(
            handle,
            {P0: [b"%d" % n for n in range(count)], P1: [b"%d" % n for n in range(count)]},
            executor=self.executor,
            concurrency=Concurrency.sized(batch=batch, size=size, max_poll_records=max_poll_records),
            policies=policies,
        )
        self.consumer = self.bench.consumer
        self.consumer.key = lambda value: None
        self.consumer.wakeup = lambda: None

    def finish_all(self) -> None:
        while self.executor.jobs:
            self.executor.finish()
            self.bench.steps(1)

    def commit(self) -> None:
        self.bench.clock.now += 6
        self.bench.steps(2)


def changed(wait: Callable[[float], None]) -> SimpleNamespace:
    """Stands in for the event that a waiting callback sleeps on."""
    return SimpleNamespace(wait=wait, set=lambda: None, clear=lambda: None)


def test_records_in_flight_equal_the_concurrency() -> None:
    shop = Shop(4)
    shop.bench.steps(1)
    assert shop.executor.offsets() == [[0], [1], [2]]
    assert shop.bench.loop.in_flight == 8


def test_commit_stops_at_the_first_record_that_is_not_finished() -> None:
    shop = Shop(4, size=8)
    shop.bench.steps(1)
    for _ in range(3):
        shop.executor.finish(1)  # 1, 2 and 3 of partition 0, while 0 is still in hand
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 0}
    shop.executor.finish(0)
    shop.commit()
    assert shop.consumer.offsets[P0] == 4


def test_record_is_not_committed_before_its_output_is_acknowledged() -> None:
    shop = Shop(1)
    shop.bench.producer.silent = True
    shop.bench.steps(1)
    shop.finish_all()
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 0}
    shop.bench.producer.silent = False
    shop.commit()
    assert shop.consumer.offsets == {P0: 1, P1: 1}


def test_records_of_one_key_follow_each_other() -> None:
    shop = Shop(3, size=6)
    shop.consumer.key = lambda value: b"same"
    shop.bench.steps(1)
    assert shop.executor.offsets() == [[0], [0]]
    shop.executor.finish(0)
    shop.bench.steps(1)
    assert shop.executor.offsets() == [[0], [1]]


def test_each_kind_of_result_counts_once() -> None:
    errors: dict[bytes, Exception] = {b"1": ValueError("no"), b"2": Skip("no"), b"3": Fatal("no"), b"4": RetryAfter(5)}

    def handle(record: Record) -> Produce:
        if record.value in errors:
            raise errors[record.value]
        return Produce("out", record.value)

    shop = Shop(6, handle=handle)
    shop.bench.steps(1)
    shop.finish_all()
    shop.commit()
    stats = shop.bench.stats
    assert (stats.done, stats.failed, stats.dropped, stats.produced) == (4, 6, 2, 4)
    assert sorted(shop.bench.topic("_fleet.g.failed")) == [b"1", b"1", b"3", b"3", b"4", b"4"]
    assert shop.consumer.offsets == {P0: 6, P1: 6}


def test_result_of_a_lost_partition_moves_nothing() -> None:
    shop = Shop(2, size=4)
    shop.bench.steps(1)
    shop.consumer.script.append(lambda: shop.consumer.lose(P0))
    shop.bench.steps(1)
    shop.consumer.script.append(lambda: shop.consumer.assign(P0))
    shop.bench.steps(1)
    assert shop.executor.offsets() == [[0], [1], [0], [1]]
    shop.executor.finish(0)
    shop.executor.finish(0)
    shop.bench.steps(1)
    assert shop.bench.stats.abandoned == 2
    assert shop.bench.topic("out") == []
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 0}
    shop.finish_all()
    shop.commit()
    assert shop.consumer.offsets == {P0: 2, P1: 2}


def test_revoked_partition_drops_waiting_records_and_commits_finished_ones() -> None:
    shop = Shop(10, size=2)
    shop.bench.steps(1)
    shop.executor.finish(0)
    shop.bench.steps(1)  # 0 is done, 1 and 2 are in hand, the others wait

    def revoke() -> None:
        while shop.executor.jobs:
            shop.executor.finish()
        shop.consumer.revoke(P0)

    shop.consumer.script.append(revoke)
    shop.bench.steps(1)
    assert shop.consumer.offsets[P0] == 3
    assert shop.bench.topic("out") == [b"0", b"1", b"2"]


def test_hung_record_does_not_hold_up_a_revocation_indefinitely() -> None:
    shop = Shop(3, size=3)
    shop.bench.steps(1)
    shop.executor.finish(0)
    clock = shop.bench.clock
    loop: Any = shop.bench.loop

    def time_passes(seconds: float) -> None:
        clock.now += seconds

    loop._rounds._calls._changed = changed(time_passes)
    before = clock.now
    shop.consumer.script.append(lambda: shop.consumer.revoke(P0))
    shop.bench.steps(1)
    assert 9 <= clock.now - before <= 12
    assert shop.consumer.offsets[P0] == 1


def test_stop_finishes_started_records_and_starts_no_other() -> None:
    shop = Shop(10, size=2)
    shop.bench.steps(1)
    shop.bench.loop.stop()
    shop.consumer.script += [lambda: shop.executor.finish(0), lambda: shop.executor.finish(0)]
    shop.bench.loop.close(10)
    assert shop.consumer.closed
    assert shop.consumer.offsets == {P0: 2, P1: 0}
    assert shop.executor.jobs == []


def test_stop_waits_for_a_handler_no_longer_than_the_drain_time() -> None:
    shop = Shop(10, size=2)
    shop.bench.steps(1)
    shop.executor.finish(1)
    before = shop.bench.clock.now
    shop.bench.loop.stop(3.0)
    shop.bench.loop._revoke_wait_s = 0.0
    shop.bench.loop.close(0)
    assert 3 <= shop.bench.clock.now - before <= 5
    assert shop.consumer.offsets[P0] == 0


def test_nothing_starts_while_the_session_is_unconfirmed() -> None:
    shop = Shop(4)
    shop.bench.steps(1)
    shop.consumer.session = False
    while shop.executor.jobs:
        shop.executor.finish()
    shop.bench.steps(3)
    assert shop.executor.jobs == []
    shop.consumer.session = True
    shop.bench.steps(1)
    assert len(shop.executor.jobs) == 3


def test_one_slow_record_stops_its_partition_only_past_the_window_and_no_other() -> None:
    shop = Shop(100, size=2, max_poll_records=10)
    shop.bench.steps(1)
    for _ in range(300):
        if len(shop.executor.jobs) > 1:
            shop.executor.finish(1)  # never the first record of partition 0
        shop.bench.steps(1)
    assert shop.executor.offsets() == [[0]]
    assert shop.bench.pauses.reasons == {P0: frozenset({"WindowFull"})}
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 100}
    assert len(shop.bench.loop.partitions[P0].unfinished) <= 20
    shop.executor.finish(0)
    shop.bench.steps(2)
    shop.finish_all()
    shop.commit()
    assert shop.consumer.offsets[P0] == 100
    assert shop.bench.pauses.reasons == {}


def test_partition_with_a_refused_output_is_held_and_resumes_later() -> None:
    shop = Shop(2)
    shop.bench.producer.silent = True
    shop.bench.steps(1)
    shop.finish_all()
    shop.bench.clock.now += 6
    shop.bench.steps(1)
    assert set(shop.bench.pauses.reasons) == {P0, P1}
    assert shop.bench.loop.partitions[P0].hold is not None
    shop.bench.producer.silent = False
    shop.bench.steps(10)
    assert shop.bench.pauses.reasons == {}
    shop.commit()
    assert shop.consumer.offsets == {P0: 2, P1: 2}


def test_batches_are_runs_of_one_partition_and_later_records_form_the_next() -> None:
    shop = Shop(4, batch=True, handle=lambda records: [Produce("out", each.value) for each in records])
    shop.bench.steps(1)
    assert shop.executor.offsets() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    for _ in range(3):
        shop.consumer.logs[P0].append(b"more")
        shop.bench.steps(1)
    assert shop.executor.offsets() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    shop.executor.finish(0)
    shop.bench.steps(1)
    assert shop.executor.offsets() == [[0, 1, 2, 3], [4, 5, 6]]
    shop.finish_all()
    shop.commit()
    assert shop.consumer.offsets == {P0: 7, P1: 4}


def test_failed_commit_is_repeated() -> None:
    shop = Shop(2)
    shop.bench.steps(1)
    shop.finish_all()
    shop.consumer.commit_error = CommitFailed("a rebalance")
    shop.commit()
    shop.consumer.commit_error = None
    shop.commit()
    assert shop.consumer.offsets == {P0: 2, P1: 2}


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 6), batch=st.booleans(), window=st.integers(1, 12))
def test_any_schedule_loses_nothing_and_keeps_keys_in_order(seed: int, size: int, batch: bool, window: int) -> None:
    """Random ends of handlers, revocations, losses and failures of commits: what is committed has been handled, every
    record is handled in the end, and between two assignments the records of a key are handled in order."""
    chance = random.Random(seed)
    handled: list[tuple[int, int, int]] = []
    lives = {P0: 0, P1: 0}

    def handle_one(record: Record) -> Produce:
        handled.append((record.partition, lives[(P0, P1)[record.partition]], record.offset))
        return Produce("out", record.value)

    def handle(argument: Any) -> Any:
        return [handle_one(each) for each in argument] if batch else handle_one(argument)

    count = 30
    shop = Shop(count, size=size, handle=handle, batch=batch, max_poll_records=window)
    shop.consumer.key = lambda value: b"k%d" % (int(value) % 3) if int(value) % 4 else None
    wakes: Any = shop.bench.loop

    def meanwhile(seconds: float) -> None:
        """While a callback waits, handlers may come to their end."""
        if shop.executor.jobs and chance.random() < 0.8:
            shop.executor.finish(chance.randrange(len(shop.executor.jobs)))
        else:
            shop.bench.clock.now += seconds

    wakes._rounds._calls._changed = changed(meanwhile)

    def back(partition: Any) -> None:
        lives[partition] += 1
        shop.consumer.assign(partition)

    for _ in range(chance.randint(5, 120)):
        dice = chance.random()
        if dice < 0.6 and shop.executor.jobs:
            shop.executor.finish(chance.randrange(len(shop.executor.jobs)))
        elif dice < 0.7 and P0 in shop.consumer.assignment():
            going = chance.choice([shop.consumer.revoke, shop.consumer.lose])
            shop.consumer.script += [partial(going, P0), partial(back, P0)]
        elif dice < 0.75:
            shop.consumer.commit_error = CommitFailed("x") if shop.consumer.commit_error is None else None
        elif dice < 0.85:
            shop.bench.clock.now += 6
        if not shop.consumer.script or len(shop.consumer.script) <= 2:
            shop.bench.steps(1)
        done = {(partition, offset) for partition, _, offset in handled}
        for partition, offset in shop.consumer.offsets.items():
            assert all((partition.partition, each) in done for each in range(offset)), f"seed {seed}"
    shop.consumer.commit_error = None
    for _ in range(1000):
        shop.bench.steps(1)
        shop.bench.clock.now += 1
        if shop.executor.jobs:
            shop.executor.finish(chance.randrange(len(shop.executor.jobs)))
    assert shop.consumer.offsets == {P0: count, P1: count}, f"seed {seed}"
    assert {(partition, offset) for partition, _, offset in handled} == {(p, o) for p in (0, 1) for o in range(count)}
    by_key: dict[tuple[int, int, int], list[int]] = {}
    for partition, life, offset in handled:
        if batch or offset % 4:
            by_key.setdefault((partition, life, 0 if batch else offset % 3), []).append(offset)
    if not any(lives.values()):
        for offsets in by_key.values():
            assert offsets == sorted(offsets), f"seed {seed}"
            assert len(offsets) == len(set(offsets)), f"seed {seed}: handled twice without reason"


@pytest.mark.parametrize("batch", [False, True])
def test_memory_is_bounded_however_much_waits(batch: bool) -> None:
    shop = Shop(5000, size=4, batch=batch, max_poll_records=50, handle=lambda argument: None)
    shop.bench.steps(200)
    bound = 250 if batch else 50
    assert shop.bench.loop.in_flight <= bound
    assert sum(len(each.unfinished) for each in shop.bench.loop.partitions.values()) <= bound


def test_output_that_is_not_listed_holds_its_partition_next_to_others() -> None:
    shop = Shop(3, handle=lambda record: Produce("elsewhere" if record.partition == 0 else "out", record.value))
    shop.bench.steps(1)
    shop.finish_all()
    shop.commit()
    hold = shop.bench.loop.partitions[P0].hold
    assert (hold.offset, hold.reason) == (0, "OutputNotListed")
    assert shop.consumer.offsets == {P0: 0, P1: 3}
    assert shop.bench.topic("_fleet.g.failed") == []


def misconfigured(status: int = 404) -> HttpStatus:
    error = HttpStatus(status, f"{status} told by the endpoint")
    error.endpoint = True
    return error


class Endpoint:
    """A handler behind HTTP that is deployed wrong until `corrected`; `bad` are offsets that it refuses even then."""

    def __init__(self, *bad: int) -> None:
        self.corrected = False
        self.calls: list[int] = []
        self._bad = bad

    def __call__(self, taken: Any) -> None:
        for record in taken if isinstance(taken, list) else [taken]:
            self.calls.append(record.offset)
            if not self.corrected:
                raise misconfigured()
            if record.offset in self._bad:
                raise HttpStatus(404, "404 no such customer")


@pytest.mark.parametrize("batch", [False, True])
def test_records_stay_while_their_endpoint_is_deployed_wrong_and_go_on_after(batch: bool) -> None:
    endpoint = Endpoint(2)
    shop = Shop(100, size=2, handle=endpoint, batch=batch)
    for _ in range(50):
        shop.finish_all()
        shop.bench.steps(1)
    assert 2 <= len(endpoint.calls) <= 250, "a few records are tried, again and again, but not all of them"
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 0}
    endpoint.corrected = True
    for _ in range(50):
        shop.bench.clock.now += 1
        shop.finish_all()
        shop.bench.steps(1)
    shop.commit()
    assert shop.consumer.offsets == {P0: 100, P1: 100}
    assert shop.bench.topic("_fleet.g.failed") == [b"2", b"2"]


def test_first_record_that_is_refused_does_not_keep_others_from_showing_that_the_endpoint_is_well() -> None:
    """One call at a time: the record that the handler means by 404 happens to be the first after a start."""
    answered: list[int] = []

    def handle(record: Record) -> None:
        if record.offset == 0:
            raise HttpStatus(404, "404 no such customer") if answered else misconfigured()
        answered.append(record.offset)

    shop = Shop(3, size=1, handle=handle)
    for _ in range(20):
        shop.bench.clock.now += 1
        shop.finish_all()
        shop.bench.steps(1)
    shop.commit()
    assert shop.consumer.offsets == {P0: 3, P1: 3}
    assert shop.bench.topic("_fleet.g.failed") == [b"0", b"0"]


def test_stop_does_not_wait_for_an_endpoint_that_is_deployed_wrong() -> None:
    shop = Shop(100, size=2, handle=Endpoint())
    for _ in range(30):
        shop.finish_all()
        shop.bench.steps(1)
    began = shop.bench.clock.now
    shop.bench.loop.stop()
    shop.bench.loop.close(5)
    assert shop.bench.clock.now - began < 5
    assert shop.consumer.offsets == {P0: 0, P1: 0}


def test_rule_that_names_the_status_says_that_it_is_the_records() -> None:
    rule = {"when": {"httpStatus": "404"}, "then": "Fail"}
    shop = Shop(2, handle=Endpoint(), policies=lambda: policies("5s", classify=[rule]))
    shop.bench.steps(1)
    shop.finish_all()
    shop.commit()
    assert shop.consumer.offsets == {P0: 2, P1: 2}
    assert len(shop.bench.topic("_fleet.g.failed")) == 4
