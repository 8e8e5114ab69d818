"""The consume loop loses nothing: whatever happens, an offset is committed only after everything before it is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fleet_consumer.group.errors import CommitFailed, FencedInstance, NoOffsetForPartition, RebalanceInProgress
from fleet_consumer.handlers.performing import decoder
from fleet_consumer.record import Fatal, Produce, Record, Skip
from tests.unit.worker.scripted import FAILED, P0, P1, Bench, values


def shown(bench: Bench) -> str:
    """The reason of the error that /member would tell."""
    return bench.loop.error.reason if bench.loop.error is not None else ""


def test_records_are_handled_in_order_and_committed_after_the_interval() -> None:
    seen: list[bytes] = []
    bench = Bench(lambda record: seen.append(record.value), {P0: values(3)})
    bench.steps(1)
    assert seen == values(3)
    assert bench.consumer.offsets == {P0: 0}, "where it began"
    bench.steps(11)  # polls of half a second that bring nothing
    assert bench.consumer.offsets == {P0: 3}
    assert (bench.stats.done, bench.stats.commits) == (3, 2)


def test_start_of_a_partition_without_records_is_committed() -> None:
    """Under `latest` the next owner would else begin at the end of its own time, and skip what came between."""
    bench = Bench(lambda record: None, {P0: [], P1: values(2)})
    bench.steps(12)
    assert bench.consumer.offsets == {P0: 0, P1: 2}


def test_start_of_a_partition_without_records_is_committed_when_it_is_revoked() -> None:
    bench = Bench(lambda record: None, {P0: []})
    bench.steps(1)
    bench.consumer.revoke(P0)
    assert bench.consumer.offsets == {P0: 0}


def test_outputs_are_written_before_the_offset_is_committable() -> None:
    bench = Bench(lambda record: Produce("out", record.value, key="k", headers=[("h", b"1")]), {P0: values(2)})
    bench.steps(1)
    assert bench.producer.written == [("out", "k", value, [("h", b"1")]) for value in values(2)]
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 2}
    assert (bench.stats.done, bench.stats.produced) == (2, 2)


def test_every_output_of_a_generator_is_written() -> None:
    def handle(record: Record) -> Iterator[Produce]:
        yield Produce("out", b"a")
        yield Produce("out", b"b")

    bench = Bench(handle, {P0: values(1)})
    bench.steps(1)
    assert bench.topic("out") == [b"a", b"b"]
    assert bench.stats.done == 1


def test_failing_record_is_written_as_it_was_read_and_the_next_is_handled() -> None:
    def handle(record: Record) -> None:
        if record.value == {"n": 1}:
            raise ValueError("cancelled")

    bench = Bench(handle, {P0: [b'{"n": 0}', b'{"n":   1}', b'{"n": 2}', b"not json"]})
    bench.loop._rounds._times._handle = bench.outcomes.decoding(handle, None, decoder("value", "Json"))
    bench.steps(1)
    assert bench.topic(FAILED) == [b'{"n":   1}', b"not json"]
    told = [dict(headers) for _, _, _, headers in bench.producer.written]
    assert [(each["kr-reason"], each["kr-origin-offset"]) for each in told] == [
        (b"exhausted", b"1"),
        (b"undecodable", b"3"),
    ]
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 4}
    assert (bench.stats.done, bench.stats.failed) == (2, 2)


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt(), RecursionError()])
def test_any_exception_of_a_handler_affects_only_its_record(raised: BaseException) -> None:
    def handle(record: Record) -> None:
        raise raised

    bench = Bench(handle, {P0: values(1)})
    bench.steps(1)
    assert (bench.topic(FAILED), bench.stats.failed) == ([b"0"], 1)


def test_skipped_record_is_dropped_and_counted() -> None:
    def handle(record: Record) -> None:
        raise Skip("a test order")

    bench = Bench(handle, {P0: values(2)})
    bench.steps(1)
    bench.loop.close(1)
    assert (bench.stats.dropped, bench.stats.done, bench.producer.written) == (2, 0, [])
    assert bench.consumer.offsets == {P0: 2}


@pytest.mark.parametrize("answer", [[Produce("out", b"x"), Produce("elsewhere", b"y")], Produce("elsewhere", b"y")])
def test_output_that_is_not_listed_holds_its_partition_and_fails_no_record(answer: Any) -> None:
    """It is the deployment's error: the record comes again when `handler.outputs` has the topic."""
    bench = Bench(lambda record: answer if record.partition == 0 else None, {P0: values(3), P1: values(3)})
    bench.steps(60)
    hold = bench.loop.partitions[P0].hold
    assert hold is not None
    assert (hold.offset, hold.reason) == (0, "OutputNotListed")
    assert "topic 'elsewhere' is not among the listed outputs (out); add it to `handler.outputs`" in hold.message
    bench.loop.close(1)
    assert bench.producer.written == []
    assert bench.consumer.offsets == {P0: 0, P1: 3}
    assert (bench.stats.failed, bench.stats.produced) == (0, 0)


def test_fatal_reason_is_logged() -> None:
    def handle(record: Record) -> None:
        raise Fatal("no such account")

    bench = Bench(handle, {P0: values(1)})
    bench.steps(1)
    told = dict(bench.producer.written[0][3])
    assert (told["kr-reason"], told["kr-error-message"]) == (b"fatal", b"no such account")


def test_long_batch_polls_commits_and_keeps_its_place() -> None:
    """About once a second, between two records, the loop polls without taking records."""
    bench: Bench

    def handle(record: Record) -> None:
        bench.clock.now += 2.0
        bench.watch.due = True

    bench = Bench(handle, {P0: values(10)})
    bench.steps(1)
    assert bench.consumer.polls == 11
    assert bench.consumer.offsets == {P0: 9}
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 10}
    assert bench.stats.done == 10


def test_partition_that_goes_away_in_the_middle_of_a_batch_is_committed_as_far_as_it_was_handled() -> None:
    bench: Bench
    seen: list[tuple[int, int]] = []

    def handle(record: Record) -> None:
        seen.append((record.partition, record.offset))
        if (record.partition, record.offset) == (0, 1):
            bench.consumer.script.append(lambda: bench.consumer.revoke(P0))
            bench.watch.due = True

    bench = Bench(handle, {P0: values(5), P1: values(2)})
    bench.steps(1)
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert bench.consumer.offsets == {P0: 2, P1: 0}
    assert bench.stats.done == 4


def test_partition_that_comes_back_during_a_batch_is_read_from_its_commit_not_from_the_old_batch() -> None:
    """Were the old run handled under the new assignment, its last offset could be committed while the records that
    another member failed to handle in between were never read."""
    bench: Bench
    seen: list[int] = []

    def back_and_forth() -> None:
        bench.consumer.revoke(P1)
        bench.consumer.offsets[P1] = 0
        bench.consumer.assign(P1)

    def handle(record: Record) -> None:
        if record.partition == 1:
            seen.append(record.offset)
        elif record.offset == 0:
            bench.consumer.script.append(back_and_forth)
            bench.watch.due = True

    bench = Bench(handle, {P0: values(1), P1: values(3)})
    bench.steps(1)
    assert seen == []
    bench.steps(1)
    assert seen == [0, 1, 2]


def test_lost_partitions_are_not_committed() -> None:
    bench = Bench(lambda record: None, {P0: values(3)})
    bench.steps(1)
    bench.consumer.script.append(lambda: bench.consumer.lose(P0))
    bench.steps(12)
    assert bench.consumer.offsets == {P0: 0}, "where it began"
    assert bench.stats.lost_partitions == 1


def test_no_record_is_handled_while_the_session_is_unconfirmed() -> None:
    bench: Bench
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 0:
            bench.watch.due = True
            bench.consumer.session = False
            bench.consumer.script += [lambda: None, lambda: None, lambda: bench.consumer.lose(P0)]

    bench = Bench(handle, {P0: values(3)})
    bench.steps(1)
    assert seen == [0]
    assert bench.consumer.offsets == {P0: 0}, "where it began"


def test_batch_continues_when_the_session_is_confirmed_again() -> None:
    bench: Bench
    seen: list[int] = []

    def confirm() -> None:
        bench.consumer.session = True

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 0:
            bench.watch.due = True
            bench.consumer.session = False
            bench.consumer.script += [lambda: None, lambda: None, confirm]

    bench = Bench(handle, {P0: values(3)})
    bench.steps(1)
    assert seen == [0, 1, 2]


def test_stop_hands_out_no_more_of_the_batch_while_the_session_is_unconfirmed() -> None:
    bench: Bench
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 0:
            bench.loop.stop()
            bench.watch.due = True
            bench.consumer.session = False

    bench = Bench(handle, {P0: values(3)})
    bench.steps(1)
    assert seen == [0]


def test_stop_finishes_and_commits_the_current_batch() -> None:
    bench: Bench

    def handle(record: Record) -> None:
        if record.offset == 1:
            bench.loop.stop()

    bench = Bench(handle, {P0: values(4)})
    bench.steps(1)
    bench.loop.close(1)
    assert bench.consumer.offsets == {P0: 4}
    assert bench.consumer.closed


def test_stop_abandons_a_batch_past_the_drain_time_and_commits_finished_records() -> None:
    bench: Bench
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        bench.loop.stop()
        bench.clock.now += 9.0
        bench.watch.due = True

    bench = Bench(handle, {P0: values(10), P1: values(10)})
    bench.steps(1)
    bench.loop.close(1)
    assert seen == [0, 1, 2]
    assert bench.consumer.offsets == {P0: 3, P1: 0}
    assert bench.stats.done == 3


def test_nothing_new_is_begun_while_stopping() -> None:
    seen: list[int] = []
    bench = Bench(lambda record: seen.append(record.offset), {P0: values(3)})
    bench.loop.stop()
    bench.steps(2)
    bench.loop.close(1)
    assert (seen, bench.consumer.offsets) == ([], {P0: 0})


@pytest.mark.parametrize("error", [RebalanceInProgress("rebalancing"), CommitFailed("generation 3 is over")])
def test_commit_that_fails_is_counted_and_repeated_while_the_partition_is_owned(error: Exception) -> None:
    bench = Bench(lambda record: None, {P0: values(3)})
    bench.consumer.commit_error = error
    bench.steps(12)
    assert bench.stats.commits == 0
    assert bench.stats.commit_failures > 0
    assert bench.stats.done == 0, "nothing is begun before a commit says so"
    bench.consumer.commit_error = None
    bench.steps(15)
    assert bench.consumer.offsets == {P0: 3}


def test_records_wait_in_order_until_the_first_commit_however_many_runs_a_poll_brings() -> None:
    """Only the first run is sought back to: after a seek to a later run, the records before it would be skipped."""
    seen: list[int] = []
    bench = Bench(lambda record: seen.append(record.offset), {P0: values(9)})
    bench.consumer.per_run = 3
    bench.consumer.commit_error = CommitFailed("the coordinator is loading")
    bench.steps(2)
    assert seen == []
    bench.consumer.commit_error = None
    bench.steps(15)
    assert seen == list(range(9))
    assert bench.consumer.offsets == {P0: 9}


def test_only_one_commit_is_under_way_at_a_time() -> None:
    bench = Bench(lambda record: None, {P0: values(3)})
    bench.consumer.held_commits = []
    bench.steps(40)
    assert len(bench.consumer.held_commits) == 1
    bench.consumer.held_commits[0]()
    assert bench.consumer.offsets == {P0: 3}


def test_error_of_a_poll_is_shown_and_does_not_become_a_hot_loop() -> None:
    bench = Bench(lambda record: None, {P0: values(1)})
    bench.steps(1)

    def fail() -> None:
        raise NoOffsetForPartition("partition t-0 has no offset", [P0])

    bench.consumer.script += [fail, fail]
    before = bench.clock.now
    bench.steps(2)
    assert isinstance(bench.loop.error, NoOffsetForPartition)
    assert bench.clock.now - before >= 2.0
    bench.steps(1)
    assert isinstance(bench.loop.error, NoOffsetForPartition), "an error that comes every few seconds must not flicker"
    bench.steps(32)
    assert bench.loop.error is None


def test_error_is_over_once_records_flow() -> None:
    bench = Bench(lambda record: None, {P0: values(1)})

    def fail() -> None:
        raise NoOffsetForPartition("partition t-0 has no offset", [P0])

    bench.consumer.script.insert(0, fail)
    bench.steps(1)
    assert shown(bench) == "NoOffsetForPartition"
    bench.steps(1)
    assert (shown(bench), bench.stats.done) == ("", 1)


def test_fatal_error_leaves_the_loop() -> None:
    bench = Bench(lambda record: None, {P0: values(1)})

    def fence() -> None:
        raise FencedInstance("another member has joined as default.flights.x-0")

    bench.consumer.script = [fence]
    with pytest.raises(FencedInstance):
        bench.steps(1)


def test_member_shows_committed_and_position() -> None:
    bench = Bench(lambda record: None, {P0: values(3)})
    bench.steps(12)
    partition = bench.loop.partitions[P0]
    assert json.dumps([partition.position, partition.committed]) == "[3, 3]"
