"""The loop goes on while what it has written is on its way, and what is not acknowledged is never committed past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.breaker_state import read_breaker_state
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.record import Produce, Record, TopicPartition
from fleet_consumer.retry.headers import DETAILS
from fleet_consumer.worker.consume import writing
from fleet_consumer.worker.consume.outbox import WRITE_BYTES, Outbox, Outgoing
from fleet_consumer.worker.consume.progress import BREAKER_OPEN, WRITES_HELD
from fleet_consumer.worker.consume.writing import ACK_POLL_S, ACK_WAIT_S, BACKOFF_FIRST_S
from tests.support.clock import StillClock
from tests.unit.retry.policies import policies
from tests.unit.worker.scripted import P0, P1, Bench, ScriptedProducer

FIVE, FAILED = "_fleet.g.retry.5s", "_fleet.g.failed"


def log(partition: TopicPartition, count: int) -> list[bytes]:
    return [b"%d-%d" % (partition.partition, number) for number in range(count)]


class Shop:
    """A loop over two partitions, two records a poll. Offsets that `fails` names go to a retry topic; the others write
    nothing."""

    def __init__(self, count: int, fails: Callable[[int], bool], *, per_poll: int = 2, **policy: Any) -> None:
        self.seen: list[tuple[int, int]] = []
        self.fails = fails
        found = policies("5s", **policy)
        logs = {each: log(each, count) for each in (P0, P1)}
        self.bench = Bench(self.handle, logs, per_poll=per_poll, policies=lambda: found)
        self.consumer = self.bench.consumer
        self.producer = self.bench.producer

    def handle(self, record: Record) -> None:
        self.seen.append((record.partition, record.offset))
        if self.fails(record.offset):
            raise ValueError("no")

    def offsets_of(self, partition: TopicPartition) -> list[int]:
        return [offset for number, offset in self.seen if number == partition.partition]

    def commit(self) -> None:
        """Let the commit interval pass, and no write become overdue by it."""
        self.bench.loop.committing.soon()
        self.bench.steps(1)


def refusing(reason: str, *values: bytes, fits: Callable[[Any], bool] = lambda headers: False) -> Any:
    """These records cannot be written, unless their headers are to the topic's liking."""

    def refuse(topic: str, value: Any, headers: Any) -> ProduceFailed | None:
        return ProduceFailed(topic, reason, "no") if value in values and not fits(headers) else None

    return refuse


def test_next_polls_are_handled_during_an_open_retry_publish_without_commits_past_it() -> None:
    shop = Shop(6, lambda offset: offset == 0)
    shop.producer.silent = True
    shop.bench.steps(6)
    assert shop.offsets_of(P0) == shop.offsets_of(P1) == [0, 1, 2, 3, 4, 5]
    assert max(shop.producer.waits) == 0.0, "nobody waits while there are records"
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 0}
    shop.producer.silent = False
    shop.bench.steps(1)
    shop.commit()
    assert shop.consumer.offsets == {P0: 6, P1: 6}
    assert (shop.bench.stats.retried, shop.bench.stats.done) == (2, 10)


def test_commit_ends_at_the_oldest_open_write_despite_later_acknowledgements() -> None:
    shop = Shop(6, lambda offset: offset in (1, 2, 4))
    shop.producer.slow = {b"0-2"}
    shop.bench.steps(7)
    shop.commit()
    assert shop.consumer.offsets == {P0: 2, P1: 6}
    assert shop.bench.stats.retried == 4, "what is behind it counts once everything before it is written"
    shop.producer.slow.clear()
    shop.bench.steps(1)
    shop.commit()
    assert shop.consumer.offsets == {P0: 6, P1: 6}
    assert shop.bench.stats.retried == 6


def test_retry_publishes_of_a_partition_are_sent_in_the_order_of_its_offsets() -> None:
    shop = Shop(9, lambda offset: offset % 2 == 0)
    shop.producer.silent = True
    shop.bench.steps(5)
    shop.producer.silent = False
    shop.bench.steps(5)
    for partition in (P0, P1):
        mine = [value for value in shop.bench.topic(FIVE) if value in shop.consumer.logs[partition]]
        assert mine == log(partition, 9)[::2]


def test_idle_loop_waits_for_acknowledgements_a_moment_at_a_time_and_looks_for_records_in_between() -> None:
    shop = Shop(1, lambda offset: offset == 0)
    shop.producer.silent = True
    shop.bench.steps(1)
    before = shop.bench.clock.now
    shop.bench.steps(3)
    assert shop.producer.waits[-3:] == pytest.approx([ACK_POLL_S] * 3)
    assert shop.bench.clock.now - before == pytest.approx(3 * ACK_POLL_S), "polls only check"
    shop.consumer.logs[P1].append(b"1-1")
    shop.bench.steps(1)
    assert shop.seen[-1] == (1, 1)


def test_revocation_waits_for_open_writes_and_commits_past_them() -> None:
    shop = Shop(6, lambda offset: offset == 1)
    shop.producer.silent = True
    shop.bench.steps(2)

    def acknowledge_and_revoke() -> None:
        shop.producer.silent = False
        shop.consumer.revoke(P0)

    shop.consumer.script.append(acknowledge_and_revoke)
    shop.bench.steps(1)
    assert shop.consumer.offsets == {P0: 4, P1: 0}


def test_revocation_without_acknowledgements_commits_up_to_the_first_that_is_missing() -> None:
    shop = Shop(6, lambda offset: offset in (1, 3))
    shop.producer.slow = {b"0-3"}
    shop.bench.steps(2)
    shop.consumer.script.append(lambda: shop.consumer.revoke(P0))
    shop.bench.steps(1)
    assert shop.consumer.offsets[P0] == 3


def test_revocation_does_not_wait_for_other_partitions_writes() -> None:
    shop = Shop(2, lambda offset: True, per_poll=4)
    shop.producer.slow = set(log(P1, 2))
    shop.bench.steps(1)
    before = shop.bench.clock.now
    shop.consumer.script.append(lambda: shop.consumer.revoke(P0))
    shop.bench.steps(1)
    assert shop.consumer.offsets == {P0: 2, P1: 0}
    assert shop.bench.clock.now - before <= 2 * ACK_POLL_S


def test_retry_publish_that_was_refused_for_its_size_is_written_smaller_before_its_partition_goes() -> None:
    shop = Shop(2, lambda offset: offset == 0)
    shop.producer.silent = True
    shop.bench.steps(1)
    shop.producer.refuse = refusing(
        "MSG_SIZE_TOO_LARGE", b"0-0", fits=lambda headers: not any(name in DETAILS for name, _ in headers)
    )

    def answer_and_revoke() -> None:
        shop.producer.silent = False
        shop.consumer.revoke(P0)

    shop.consumer.script.append(answer_and_revoke)
    shop.bench.steps(1)
    assert b"0-0" in shop.bench.topic(FIVE)
    assert shop.consumer.offsets == {P0: 2, P1: 0}


def test_acknowledgement_for_a_partition_revoked_and_reassigned_moves_nothing() -> None:
    shop = Shop(4, lambda offset: offset == 0)
    shop.producer.silent = True
    shop.bench.steps(1)

    def lose_and_get() -> None:
        shop.consumer.lose(P0)
        shop.consumer.assign(P0)

    shop.consumer.script.append(lose_and_get)
    shop.bench.steps(4)
    assert shop.offsets_of(P0) == [0, 1, 0, 1, 2, 3], "read again from what is committed"
    shop.producer.acknowledge_first()
    shop.bench.steps(1)
    shop.commit()
    assert shop.bench.topic(FIVE) == [b"0-0"]
    assert shop.consumer.offsets == {P0: 0, P1: 0}, "the first retry publish's fate says nothing of the second"
    shop.producer.silent = False
    shop.bench.steps(1)
    shop.commit()
    assert shop.consumer.offsets == {P0: 4, P1: 4}
    assert shop.bench.stats.retried == 2


def test_stop_waits_for_open_writes() -> None:
    shop = Shop(4, lambda offset: offset == 0)
    shop.producer.silent = True
    shop.bench.steps(1)
    shop.bench.loop.stop()
    before = shop.bench.clock.now
    shop.bench.steps(1)
    assert shop.bench.clock.now - before == pytest.approx(ACK_WAIT_S)
    shop.producer.silent = False
    shop.bench.loop.close(1)
    assert shop.consumer.offsets == {P0: 2, P1: 0}


def test_pause_by_the_budget_leaves_earlier_retry_publishes_on_their_way_and_comes_back_to_the_record_that_stays() -> (
    None
):
    budget = {"maxFailurePercent": 50, "windowSeconds": 60, "minRecords": 4, "action": "Pause", "cooldownSeconds": 30}
    shop = Shop(6, lambda offset: offset < 4, budget=budget)
    shop.producer.silent = True
    shop.bench.steps(3)
    assert shop.offsets_of(P0) == [0, 1, 2, 3], "the failure that opens the breaker is the first to stay"
    assert shop.bench.pauses.reasons == {each: {BREAKER_OPEN} for each in (P0, P1)}
    shop.commit()
    assert shop.consumer.offsets[P0] == 0
    assert read_breaker_state(shop.consumer.metadata[P0]) is not None
    shop.producer.silent = False
    shop.bench.steps(1)
    shop.commit()
    assert shop.consumer.offsets[P0] == 3
    shop.fails = lambda offset: False
    shop.bench.clock.now += 31
    shop.bench.steps(20)
    assert shop.offsets_of(P0) == [0, 1, 2, 3, 3, 4, 5]
    shop.commit()
    assert shop.consumer.offsets == {P0: 6, P1: 6}


def test_partition_with_an_unwritable_retry_publish_is_held_while_others_continue() -> None:
    shop = Shop(8, lambda offset: offset == 0, per_poll=1)
    shop.consumer.logs[P1] = log(P1, 3)
    shop.producer.refuse = refusing("TOPIC_AUTHORIZATION_FAILED", b"0-0")
    shop.bench.steps(20)
    hold = shop.bench.loop.partitions[P0].hold
    assert hold is not None
    assert (hold.offset, hold.reason) == (0, "AuthorizationFailed")
    assert shop.bench.pauses.reasons[P0] == {WRITES_HELD}
    assert shop.offsets_of(P0) == [0]
    assert shop.offsets_of(P1) == [0, 1, 2]
    shop.commit()
    assert shop.consumer.offsets == {P0: 0, P1: 3}
    shop.producer.refuse = lambda topic, value, headers: None
    shop.bench.clock.now += 2 * BACKOFF_FIRST_S
    shop.bench.steps(20)
    assert shop.bench.loop.partitions[P0].hold is None
    assert shop.offsets_of(P0) == list(range(8))
    shop.commit()
    assert shop.consumer.offsets == {P0: 8, P1: 3}


def test_partition_with_a_late_acknowledgement_is_held_in_the_middle_of_a_backlog() -> None:
    shop = Shop(40, lambda offset: offset == 0)
    shop.producer.slow = {b"0-0"}
    shop.bench.steps(3)
    assert shop.bench.loop.partitions[P0].hold is None
    shop.bench.clock.now += ACK_WAIT_S
    shop.bench.steps(1)
    hold = shop.bench.loop.partitions[P0].hold
    assert hold is not None
    assert (hold.offset, hold.reason) == (0, "Unacknowledged")
    seen = shop.offsets_of(P0)
    shop.bench.steps(20)
    assert shop.offsets_of(P0) == seen
    assert shop.offsets_of(P1) == list(range(40))
    shop.producer.slow.clear()
    shop.bench.steps(30)
    assert shop.offsets_of(P0) == list(range(40))


def test_write_that_stays_open_does_not_make_other_partitions_wait_for_it() -> None:
    shop = Shop(40, lambda offset: True)
    shop.consumer.logs[P0] = log(P0, 1)
    shop.producer.slow = {b"0-0"}
    shop.bench.steps(1)
    shop.bench.clock.now += ACK_WAIT_S
    shop.bench.steps(1)
    assert shop.bench.pauses.reasons[P0] == {WRITES_HELD}
    before = shop.bench.clock.now
    shop.bench.steps(10)
    assert len(shop.offsets_of(P1)) >= 20
    assert shop.bench.clock.now == before


def test_unacknowledged_retry_publish_of_a_long_batch_is_reported_before_the_batch_ends() -> None:
    held: list[bool] = []

    def handle(record: Record) -> None:
        held.append(bench.loop.partitions[P0].hold is not None)
        bench.clock.now += 1.0
        bench.watch.due = True
        if record.offset == 0:
            raise ValueError("no")

    bench = Bench(handle, {P0: log(P0, 12)}, policies=lambda: policies("5s"))
    bench.producer.silent = True
    bench.steps(1)
    assert held.index(True) == 1 + ACK_WAIT_S


def test_loop_with_too_many_open_writes_waits_before_handling_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "OPEN_BYTES_MAX", 4 * WRITE_BYTES)
    shop = Shop(9, lambda offset: offset < 6, per_poll=3)
    shop.producer.silent = True
    before = shop.bench.clock.now
    shop.bench.steps(1)
    assert shop.bench.clock.now == before
    shop.bench.steps(1)
    assert shop.bench.clock.now - before == pytest.approx(ACK_WAIT_S)
    assert set(shop.bench.pauses.reasons) == {P0}, "what still misses acknowledgements then is held"
    shop.producer.silent = False
    shop.bench.steps(10)
    assert shop.offsets_of(P0) == list(range(9))
    assert all(each.size == 0 for each in shop.bench.loop.partitions.values())


def test_bound_includes_acknowledged_writes_behind_an_open_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept until it is committed past, however many of those behind the slow one are acknowledged."""
    monkeypatch.setattr(writing, "OPEN_BYTES_MAX", 8 * WRITE_BYTES)
    shop = Shop(30, lambda offset: True)
    shop.producer.slow = {b"0-0"}
    before = shop.bench.clock.now
    shop.bench.steps(4)
    assert shop.offsets_of(P0) == list(range(8))
    assert set(shop.bench.pauses.reasons) == {P0}
    shop.bench.steps(15)
    assert shop.offsets_of(P1) == list(range(30))
    assert shop.bench.clock.now - before < ACK_WAIT_S + 1, "nobody waits for what is held"


def test_broken_producer_is_replaced_once_and_its_open_writes_are_sent_again() -> None:
    """Each record that told of it replaced it again, and the fate of what had just been given to the other was lost."""
    made: list[ScriptedProducer] = []

    def make() -> Any:
        made.append(ScriptedProducer(StillClock()))
        return made[-1]

    box = Outbox(make)
    writes = [box.send(Outgoing("out", None, value, ())) for value in (b"a", b"b", b"c")]
    made[0].refuse = refusing("_FATAL", b"a", b"b")
    made[0].slow = {b"c"}
    box.wait(0)
    assert [write.done for write in writes] == [True, True, False]
    for write in writes:
        box.send(write)
    box.wait(0)
    assert len(made) == 2
    assert [value for _, _, value, _ in made[1].written] == [b"a", b"b", b"c"]
    assert all(write.done and write.error is None for write in writes)


ACTIONS = st.lists(
    st.sampled_from(["step", "step", "tick", "commit", "answer", "refuse", "accept", "revoke", "lose", "wait"]),
    max_size=60,
)


@given(actions=ACTIONS, slow=st.sets(st.integers(0, 11)), outputs=st.sets(st.integers(0, 11)))
def test_nothing_is_committed_past_an_unwritten_record(actions: list[str], slow: set[int], outputs: set[int]) -> None:
    """Whatever is acknowledged late or refused, and whenever partitions go and come back."""

    def handle(record: Record) -> Produce | None:
        if record.offset in outputs:
            return Produce("out", record.value)
        if record.offset % 3:
            return None
        raise ValueError("no")

    found = policies("5s")
    logs = {each: log(each, 12) for each in (P0, P1)}
    bench = Bench(handle, logs, per_poll=3, policies=lambda: found)
    must = {each: [n for n in range(12) if n in outputs or n % 3 == 0] for each in logs}
    commit = bench.consumer.commit

    def checked(offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        written = {value for _, _, value, _ in bench.producer.written}
        for each, offset in offsets.items():
            missing = [n for n in must[each] if n < offset.offset and logs[each][n] not in written]
            assert not missing, f"{each} is committed up to {offset.offset}"
        commit(offsets, timeout_s)

    def again(go: Callable[..., None]) -> None:
        go(P0)
        bench.consumer.assign(P0)

    bench.consumer.commit = checked
    bench.producer.slow = {logs[P0][n] for n in slow} | {logs[P1][n] for n in slow if n % 2}
    doings: dict[str, Callable[[], object]] = {
        "step": lambda: bench.steps(1),
        "tick": lambda: setattr(bench.watch, "due", True),
        "commit": bench.loop.committing.soon,
        "answer": lambda: bench.producer.slow and bench.producer.slow.pop(),
        "refuse": lambda: setattr(bench.producer, "refuse", refusing("_MSG_TIMED_OUT", *logs[P0][::2])),
        "accept": lambda: setattr(bench.producer, "refuse", lambda topic, value, headers: None),
        "revoke": lambda: bench.consumer.script.append(lambda: again(bench.consumer.revoke)),
        "lose": lambda: bench.consumer.script.append(lambda: again(bench.consumer.lose)),
        "wait": lambda: setattr(bench.clock, "now", bench.clock.now + 6.0),
    }
    bench.steps(1)
    for action in actions:
        doings[action]()
    doings["accept"]()
    bench.producer.slow.clear()
    for _ in range(30):
        bench.clock.now += BACKOFF_FIRST_S
        bench.steps(1)
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 12, P1: 12}
    assert bench.loop.partitions == {}
