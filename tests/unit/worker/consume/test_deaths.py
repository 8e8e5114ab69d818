"""A record that kills its process ends like any other failure, and no other record does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fleet_consumer.contract.breaker_state import read_breaker_state
from fleet_consumer.contract.policies import Policies
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.crash_guard import CrashGuard, CrashMarker, read_crash_marker
from fleet_consumer.worker.consume.pending import Concurrency
from tests.unit.retry.policies import policies
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, P1, Bench, ScriptedConsumer

FAILED = "_fleet.g.failed"
LENGTHS = {P0: 60, P1: 40}
RULE = {"when": {"exception": "Poison"}, "then": "Retry"}
KINDS = ("alone", "executor", "batch")


class Death(BaseException):
    """The process is gone."""


class Group:
    """State that outlives processes: logs, commits and written records; and a handler that `kills` may end."""

    def __init__(
        self,
        kind: str,
        kills: Callable[[Record], bool],
        lengths: dict[TopicPartition, int] = LENGTHS,
        found: Callable[[], Policies | None] = lambda: None,
    ) -> None:
        self.kind = kind
        self.kills = kills
        self.logs = {each: [b"%d-%d" % (each.partition, n) for n in range(count)] for each, count in lengths.items()}
        self.offsets: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}
        self.written: list[Any] = []
        self.handled: list[bytes] = []
        self.deaths = 0
        self._policies = found
        self._processes: Iterator[int] = itertools.count(1)

    def begin(self, *owned: TopicPartition) -> tuple[Bench, ManualExecutor | None]:
        """A process that takes these partitions, by default all."""
        executor, concurrency = None, None
        if self.kind != "alone":
            batch = self.kind == "batch"
            executor = ManualExecutor(self._handle_batch if batch else self._handle, 4, batch=batch)
            concurrency = Concurrency.sized(batch=batch, size=4, max_poll_records=20)
        logs = {each: values for each, values in self.logs.items() if each in owned or not owned}
        bench = Bench(
            self._handle, logs, per_poll=20, executor=executor, concurrency=concurrency, policies=self._policies
        )
        bench.consumer.key = lambda value: None
        bench.loop.crash_markers._by = f"{next(self._processes):08x}"
        consumer: ScriptedConsumer = bench.consumer
        consumer.offsets, consumer.metadata, bench.producer.written = self.offsets, self.metadata, self.written
        # Taken over from a dead one and kept in place: the loop replaces the mappings with each commit.
        consumer.commit = self._commit  # type: ignore[method-assign]
        if executor is not None:

            def wait(seconds: float) -> bool:
                bench.clock.now += seconds
                return False

            bench.loop._rounds._calls.wait = wait
        raised = bench.outcomes.raised

        def dies(*arguments: Any) -> bool:
            if isinstance(arguments[2], Death):
                raise arguments[2]
            return raised(*arguments)

        bench.outcomes.raised = dies  # type: ignore[method-assign,assignment]
        return bench, executor

    def _commit(self, offsets: Any, timeout_s: float) -> None:
        for each, offset in offsets.items():
            assert offset.offset >= self.offsets.get(each, 0), "a commit never goes back"
            self.offsets[each], self.metadata[each] = offset.offset, offset.metadata

    def _handle(self, record: Record) -> None:
        if self.kills(record):
            raise Death
        self.handled.append(record.value)

    def _handle_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            self._handle(record)

    def live(self, bench: Bench, executor: ManualExecutor | None, steps: int = 40) -> bool:
        """Let a process work for some steps; whether it lives. A executor's other hands come to their end first."""
        for _ in range(steps):
            try:
                bench.steps(1)
            except Death:
                self.deaths += 1
                return False
            while executor is not None and executor.jobs:
                deadly = [any(self.kills(record) for record in job.records) for job in executor.jobs]
                if all(deadly):
                    self.deaths += 1
                    return False
                executor.finish(deadly.index(False))
        return True

    def live_on(self, processes: int = 12) -> None:
        """One process after the other, until one of them has handled everything and is ended in order."""
        for _ in range(processes):
            bench, executor = self.begin()
            for _ in range(40):
                if not self.live(bench, executor, 10):
                    break
                if self.offsets == {each: len(values) for each, values in self.logs.items()}:
                    bench.loop.close(1)
                    return
        raise AssertionError(f"still dying after {self.deaths} deaths: {self.offsets} {self.metadata}")

    def all_but(self, *values: bytes) -> set[bytes]:
        return {value for log in self.logs.values() for value in log} - set(values)

    def reasons(self) -> list[tuple[str, bytes, bytes | None]]:
        return [(topic, value, dict(headers).get("kr-reason")) for topic, _, value, headers in self.written]


def at(partition: TopicPartition, *offsets: int) -> Callable[[Record], bool]:
    return lambda record: (record.topic, record.partition) == partition and record.offset in offsets


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [0, 1, 37, 59])
def test_record_that_kills_its_process_fails_as_poison_and_all_others_are_done(kind: str, offset: int) -> None:
    group = Group(kind, at(P0, offset))
    group.live_on()
    poison = b"0-%d" % offset
    assert set(group.handled) == group.all_but(poison)
    assert group.reasons() == [(FAILED, poison, b"poison")]
    assert group.offsets == LENGTHS
    assert [read_crash_marker(text) for text in group.metadata.values()] == [None, None]
    assert group.deaths <= 5


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_killing_records_fail(kind: str) -> None:
    group = Group(kind, lambda record: record.offset in {3, 4, 30})
    group.live_on(40)
    poison = [b"%d-%d" % (partition, offset) for partition in (0, 1) for offset in (3, 4, 30)]
    assert set(group.handled) == group.all_but(*poison)
    assert sorted(group.reasons()) == sorted((FAILED, each, b"poison") for each in poison)
    assert group.offsets == LENGTHS


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_kills_with_healthy_records_fail_none(kind: str) -> None:
    """Each time after a few steps, wherever it is then: between records, with some in hand, before its first commit."""
    group = Group(kind, lambda record: False)
    for steps in [0, 2, 1, 3, 0, 2, 1, 5, 3, 1, 4, 2]:
        bench, executor = group.begin()
        group.live(bench, executor, steps)
        bench.steps(1)
    group.live_on()
    assert set(group.handled) == group.all_but()
    assert group.written == []
    assert group.offsets == LENGTHS


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_orderly_revocations_count_no_death(kind: str) -> None:
    group = Group(kind, lambda record: False)
    for _ in range(5):
        bench, _executor = group.begin()
        bench.steps(2)
        bench.loop.stop()
        bench.clock.now += 60
        bench.loop.close(1)
        assert {read_crash_marker(text) for text in group.metadata.values()} == {None}
    group.live_on()
    assert group.written == []


def test_count_of_deaths_survives_owners_that_give_the_partition_back() -> None:
    group = Group("alone", at(P0, 0), {P0: 5})
    for _ in range(2):
        assert not group.live(*group.begin())
    bench, _ = group.begin()
    bench.consumer.script[:] = [lambda: (bench.consumer.assign(P0), bench.consumer.revoke(P0))]
    bench.steps(1)
    assert group.metadata[P0].startswith("fleet-hand=none;deaths=2")
    group.live_on(2)
    assert group.deaths == 3
    assert group.reasons() == [(FAILED, b"0-0", b"poison")]


def test_suspected_records_that_a_death_has_named_stay_named_when_the_partition_is_given_back() -> None:
    found = read_crash_marker("fleet-hand=20;by=0a")
    guard = CrashGuard(found, 100, by="0b")
    assert guard.next_count(50) == (1, "fleet-hand=1;deaths=1;named=20;by=0b fleet-dead=0a")
    guard.count_handled(101, 1, 0.0)
    assert guard.released == "fleet-hand=none;named=19;by=0b"
    again = CrashGuard(read_crash_marker(guard.released), 101, by="0c")
    for offset in range(101, 120):
        assert again.next_count(50)[0] == 1
        again.count_handled(offset + 1, 1, 0.0)
    assert again.next_count(50)[0] > 1


@pytest.mark.parametrize("kind", KINDS)
def test_partition_that_bounces_between_living_workers_by_lost_sessions_condemns_no_record(kind: str) -> None:
    """A lost session may commit nothing, so its crash marker stays; its process finds itself among the dead, and is
    not."""
    group = Group(kind, lambda record: False, {P0: 3})
    group.kills = at(P0, 0)  # so slow that each session is lost with it in hand: as good as a death to the next owner
    for process in ("0a", "0b") * 4:
        bench, executor = group.begin()
        bench.loop.crash_markers._by = process
        assert not group.live(bench, executor)
    assert group.written == []
    marker = read_crash_marker(group.metadata[P0])
    assert marker is not None
    assert (marker.by, marker.deaths, marker.dead) == ("0b", 1, ("0a",))
    group.kills = lambda record: False
    group.live_on()
    assert set(group.handled) == group.all_but()


def test_real_deaths_count_on_next_to_a_process_that_was_taken_for_dead() -> None:
    found = read_crash_marker("fleet-hand=1;deaths=2;by=0d fleet-dead=0a,0b")
    back = CrashGuard(found, 100, by="0a")
    assert (back.deaths, back.condemned) == (2, False), "0b and 0d"
    assert read_crash_marker(back.next_count(9)[1]) == CrashMarker(1, 2, "0a", dead=("0b", "0d"))
    other = CrashGuard(found, 100, by="0e")
    assert (other.deaths, other.condemned) == (3, True)


def test_progress_clears_the_list_of_the_dead_and_giving_back_keeps_it() -> None:
    guard = CrashGuard(read_crash_marker("fleet-hand=1;by=0a"), 100, by="0b")
    assert guard.released == "fleet-hand=none;deaths=1;by=0b fleet-dead=0a"
    guard.count_handled(101, 1, 0.0)
    assert "fleet-dead" not in guard.released + guard.next_count(5)[1]


def test_list_of_the_dead_is_short_and_notes_without_one_are_read() -> None:
    marker = read_crash_marker("fleet-hand=1;deaths=7;by=0d fleet-dead=0a,0b,0c")
    assert CrashGuard(marker, 100, by="0e").next_count(9)[1] == "fleet-hand=1;deaths=8;by=0e fleet-dead=0b,0c,0d"
    assert CrashGuard(read_crash_marker("fleet-hand=1;deaths=1;by=0d"), 100, by="0e").deaths == 2
    assert read_crash_marker("fleet-hand=1;deaths=1;by=0d fleet-dead=" + "0a," * 99 + "0b") == CrashMarker(1, 1, "0d")


def test_list_of_the_dead_does_not_hide_the_note_from_workers_that_know_none() -> None:
    """They read the first word, and know no field in it that came later."""
    words = CrashMarker(1, 2, "0a", 20, ("0b", "0c")).text.split(" ")
    assert words == ["fleet-hand=1;deaths=2;named=20;by=0a", "fleet-dead=0b,0c"]


@pytest.mark.parametrize(
    "text", ["", "fleet-hand=", "fleet-hand=-1", "fleet-hand=open;deaths=x", "fleet-hand=0", "hand=1"]
)
def test_foreign_commit_metadata_is_not_a_note(text: str) -> None:
    assert read_crash_marker(text) is None


def test_crash_marker_stands_next_to_a_breakers_state() -> None:
    assert read_crash_marker("fleet-hand=3;deaths=2;by=0a fleet-breaker=open;until=5") == CrashMarker(3, 2, "0a")
    assert read_breaker_state("fleet-hand=3;deaths=2;by=0a fleet-breaker=open;until=5") == 5


def test_records_that_were_next_to_the_one_that_kills_are_not_counted_with_it() -> None:
    """The head of another partition waits each time while its owner dies, and never had a chance."""
    group = Group("alone", at(P0, 0), {P0: 1, P1: 1})
    group.live_on()
    assert group.reasons() == [(FAILED, b"0-0", b"poison")]
    assert group.handled == [b"1-0"]


def test_rule_of_the_policy_decides_over_poison() -> None:
    group = Group("alone", at(P0, 2), {P0: 4}, found=lambda: policies("5s", classify=[RULE]))
    group.live_on()
    assert [(topic, value) for topic, value, _ in group.reasons()] == [("_fleet.g.retry.5s", b"0-2")]


def test_normal_flow_commits_as_often_as_ever() -> None:
    group = Group("alone", lambda record: False)
    bench, _ = group.begin()
    commits = bench.stats.commits
    bench.steps(5)
    assert bench.stats.commits - commits <= 2, "one before the first record, for all partitions"
    assert len(group.handled) == 100


def test_hung_call_in_an_executor_counts_as_a_death_when_it_ends_the_process() -> None:
    group = Group("executor", lambda record: False, {P0: 8})
    for _ in range(3):
        bench, executor = group.begin()
        assert executor is not None
        for _ in range(6):
            bench.steps(1)
            while any(job.records[0].offset != 5 for job in executor.jobs):
                executor.finish(next(n for n, job in enumerate(executor.jobs) if job.records[0].offset != 5))
        assert [job.records[0].offset for job in executor.jobs] in ([5], [])
        bench.loop.stop(0.0, gives_up=True)
        bench.loop.close(1)
    group.kills = at(P0, 5)
    group.live_on()
    assert group.reasons() == [(FAILED, b"0-5", b"poison")]
