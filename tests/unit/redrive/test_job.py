"""A run among failing brokers and pods: it counts only what happened, and it never hangs."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from fleet_consumer.contract.redrive_config import parse_config
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import DataPlaneFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.bounded import Step
from fleet_consumer.librdkafka.producer import ProduceFailed, SendHandle
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.redrive.job import STALL_S, Run, Stopped
from fleet_consumer.redrive.selection import RedriveProgress, parse_metadata
from tests.unit.redrive.documents import FAILED, REDRIVE, document, failed

SOURCE = TopicPartition(FAILED, 0)


class Clock:
    """Moves on by a little with every call, so that what waits for a time comes to its end."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


class Brokers:
    """Reader and producer of a run in one: the border of the process."""

    def __init__(self, records: list[Record], *, end: int | None = None) -> None:
        self.records = records
        self.parts = sorted({each.partition for each in records} | {0})
        self.end = end
        self.away: set[TopicPartition] = set()
        self.leaderless: set[TopicPartition] = set()
        self.batches: list[list[Any]] = [[]]
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self.sent: list[Any] = []
        self.errors: dict[bytes | None, ProduceFailed | None] = {}
        self.silent = False

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self.parts]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        known = [each for each in partitions if each not in self.leaderless]
        return {each: (0, 0 if each.topic == REDRIVE else self.end or self.length(each)) for each in known}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {each: self.stored[each] for each in partitions if each in self.stored}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.stored.update(offsets)

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Step]:
        (partition,) = {TopicPartition(each.topic, 0) for each in ranges}
        if partition.topic == REDRIVE:
            return
        asked = {each: wanted for each, wanted in ranges.items() if each not in self.away}
        yield Step({each: self._records(each, *wanted) for each, wanted in asked.items()}, self._done(asked))
        while set(ranges) - self._done(asked):
            yield Step({}, frozenset())

    def _records(self, partition: TopicPartition, start: int, end: int) -> list[Record]:
        return [each for each in self.records if each.partition == partition.partition and start <= each.offset < end]

    def _done(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> frozenset[TopicPartition]:
        return frozenset(each for each, (start, end) in ranges.items() if start >= end or end <= self.length(each))

    def length(self, partition: TopicPartition) -> int:
        return sum(each.partition == partition.partition for each in self.records)

    def send(self, topic: str, *, key: bytes | None, value: bytes | None, **rest: Any) -> SendHandle:
        handle = SendHandle(topic)
        handle.done, handle.error = not self.silent, self.errors.get(key)
        self.sent.append(key)
        self.batches[-1].append(key)
        return handle

    def flush(self, timeout_s: float) -> int:
        self.batches.append([])
        return 0


def run(brokers: Brokers, stop: threading.Event | None = None, topic: str = FAILED, **changes: Any) -> Run:
    parts: Any = brokers
    return Run(parse_config(document(**changes)), topic, parts, parts, stop or threading.Event(), Clock())


def test_refused_record_is_reported_and_delays_no_other() -> None:
    brokers = Brokers([failed(n, key=b"%d" % n) for n in range(5)])
    brokers.errors[b"2"] = ProduceFailed(REDRIVE, "MSG_SIZE_TOO_LARGE", "too large")
    counts = run(brokers).run()
    assert (counts["selected"], counts["moved"], counts["refused"]) == (5, 4, 1)
    assert brokers.stored[SOURCE].offset == 5


@pytest.mark.parametrize("reason", ["_MSG_TIMED_OUT", "TOPIC_AUTHORIZATION_FAILED", "_UNKNOWN_TOPIC"])
def test_record_that_could_not_be_written_ends_the_run_before_it_is_committed(reason: str) -> None:
    brokers = Brokers([failed(n, key=b"%d" % n) for n in range(5)])
    brokers.errors[b"3"] = ProduceFailed(REDRIVE, reason, "no")
    with pytest.raises(ProduceFailed, match=reason):
        run(brokers).run()
    assert brokers.stored[SOURCE].offset == 0


def test_unacknowledged_record_does_not_count_as_written() -> None:
    brokers = Brokers([failed(0)])
    brokers.silent = True
    with pytest.raises(ProduceFailed, match="NotAcknowledged"):
        run(brokers).run()
    assert brokers.stored[SOURCE].offset == 0


def test_silent_partition_ends_the_run_after_a_timeout() -> None:
    brokers = Brokers([failed(0)], end=5)
    with pytest.raises(DataPlaneFailed, match=f"failed-0: no records for {STALL_S:g} s"):
        run(brokers).run()
    assert brokers.stored[SOURCE].offset == 1


def test_run_that_is_to_stop_ends_before_the_next_batch() -> None:
    stop = threading.Event()
    stop.set()
    brokers = Brokers([failed(n) for n in range(5)])
    with pytest.raises(Stopped):
        run(brokers, stop).run()
    assert brokers.sent == []


def test_foreign_progress_is_replaced_by_our_own_from_the_beginning() -> None:
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.stored[SOURCE] = OffsetAndMetadata(2, -1, "a tool")
    assert run(brokers).run()["moved"] == 3
    progress = parse_metadata(brokers.stored[SOURCE].metadata)
    assert progress is not None
    assert (progress.end, progress.moved) == (3, 3)


@pytest.mark.parametrize("offset", [2, 7])
def test_failed_topic_recreated_during_the_run_is_read_to_its_current_end(offset: int) -> None:
    """Or whose leader lost the end of its log: what is not there is not waited for."""
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.commit({SOURCE: OffsetAndMetadata(offset, -1, '{"v":1,"end":9,"selected":2,"moved":2,"guarded":0}')})
    run(brokers).run()
    assert brokers.stored[SOURCE].offset == max(offset, 3)


def test_offset_that_retention_has_removed_is_no_obstacle() -> None:
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.commit({SOURCE: OffsetAndMetadata(3, -1, '{"v":1,"end":3,"selected":2,"moved":2,"guarded":1}')})
    counts = run(brokers).run()
    assert (counts["selected"], counts["moved"], counts["guarded"]) == (2, 2, 1)
    assert brokers.sent == []


def parted(counts: Mapping[int, int]) -> list[Record]:
    """Failed records of several partitions, each with the number of its partition as its key."""
    return [
        dataclasses.replace(failed(offset, origin=1_000 * number + offset, key=b"%d" % number), partition=number)
        for number, count in counts.items()
        for offset in range(count)
    ]


def test_all_partitions_are_moved_round_robin() -> None:
    brokers = Brokers(parted({0: 50, 1: 50, 2: 5}))
    assert run(brokers, recordsPerSecond=10).run()["moved"] == 105
    assert Counter(brokers.batches[0]) == {b"0": 4, b"1": 3, b"2": 3}
    assert [brokers.stored[TopicPartition(FAILED, number)].offset for number in range(3)] == [50, 50, 5]


def test_silent_partition_delays_no_other() -> None:
    brokers = Brokers(parted({0: 5, 1: 5, 2: 5}))
    brokers.away = {TopicPartition(FAILED, 1)}
    with pytest.raises(DataPlaneFailed, match="failed-1: no records"):
        run(brokers).run()
    assert Counter(brokers.sent) == {b"0": 5, b"2": 5}
    brokers.away = set()
    counts = run(brokers).run()
    assert (counts["selected"], counts["moved"]) == (15, 15)
    assert Counter(brokers.sent) == {b"0": 5, b"1": 5, b"2": 5}


def test_a_partition_without_a_leader_holds_up_no_other() -> None:
    brokers = Brokers(parted({0: 5, 1: 5}))
    brokers.leaderless = {TopicPartition(FAILED, 0)}
    with pytest.raises(DataPlaneFailed, match="failed-0: no leader available"):
        run(brokers).run()
    assert Counter(brokers.sent) == {b"1": 5}
    brokers.leaderless = set()
    assert run(brokers).run()["moved"] == 10


def test_nothing_is_moved_while_a_part_of_the_ledger_is_away() -> None:
    brokers = Brokers(parted({0: 5, 1: 5}))
    brokers.leaderless = {TopicPartition(REDRIVE, 1)}
    with pytest.raises(DataPlaneFailed, match="redrive-1: no leader available"):
        run(brokers).run()
    assert brokers.sent == []


def test_only_the_records_that_are_named_are_examined() -> None:
    brokers = Brokers(parted({0: 9, 1: 9, 2: 9}))
    named = [{"partition": 0, "offset": 3}, {"partition": 0, "offset": 6}, {"partition": 2, "offset": 8}]
    counts = run(brokers, filter__records=[*named, {"partition": 2, "offset": 99}]).run()
    assert (counts["selected"], counts["moved"]) == (3, 3)
    assert Counter(brokers.sent) == {b"0": 2, b"2": 1}
    assert TopicPartition(FAILED, 1) not in brokers.stored


@pytest.mark.parametrize("dry_run", [False, True])
def test_record_of_a_partition_that_the_topic_lacks_is_refused_before_anything_is_moved(dry_run: bool) -> None:
    brokers = Brokers(parted({0: 9, 1: 9, 2: 9}))
    named = [{"partition": 0, "offset": 3}, {"partition": 99, "offset": 1}]
    with pytest.raises(SettingsInvalid, match=f"record 99:1: topic {FAILED} has no partition 99; it has 3"):
        run(brokers, filter__records=named, dryRun=dry_run).run()
    assert (brokers.sent, brokers.stored) == ([], {})


def test_another_failed_topic_is_read_in_place_of_the_groups_own() -> None:
    brokers = Brokers([failed(n) for n in range(3)])
    assert run(brokers, topic="orders-broken").run()["moved"] == 3
    assert brokers.stored.keys() == {TopicPartition("orders-broken", 0)}


def test_ledger_hits_and_repeated_failures_are_counted() -> None:
    first = [failed(0), failed(1, origin=0), failed(2, origin=2)]
    again = failed(3, origin=3, redrives=1, redrive_id="another")
    counts = run(Brokers([*first, again])).run()
    assert counts == {
        "selected": 3,
        "moved": 3,
        "guarded": 0,
        "movedBefore": 1,
        "failedAgain": 1,
        "refused": 0,
        "redrivenTo": 4,
    }


def redriven_to(brokers: Brokers, **changes: Any) -> int:
    return run(brokers, **changes).run()["redrivenTo"]


def test_filtered_out_records_do_not_count_as_redriven() -> None:
    brokers = Brokers([failed(0, key=b"a"), failed(1, key=b"b"), failed(2, key=b"b")])
    assert redriven_to(brokers, filter__keyRegex="a") == 1


def test_a_dry_run_puts_nothing_back_and_neither_do_the_copies_that_it_sees() -> None:
    assert redriven_to(Brokers([failed(0), failed(1, origin=0)]), dryRun=True) == 0


def test_a_refused_record_is_not_put_back_and_neither_are_its_copies() -> None:
    brokers = Brokers([failed(0, key=b"a"), failed(1, key=b"b"), failed(2, origin=1, key=b"b")])
    brokers.errors[b"b"] = ProduceFailed(REDRIVE, "MSG_SIZE_TOO_LARGE", "too large")
    assert redriven_to(brokers) == 1


def test_restart_keeps_its_counts_after_the_log_start_moved() -> None:
    brokers = Brokers([failed(n) for n in range(8)])
    brokers.stored[SOURCE] = OffsetAndMetadata(5, -1, RedriveProgress(8, 5, 5, 0, start=0, put_back=5).metadata())
    assert redriven_to(brokers) == 8


def test_counts_from_before_a_truncation_are_discarded() -> None:
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.stored[SOURCE] = OffsetAndMetadata(5, -1, RedriveProgress(8, 5, 5, 0, start=0, put_back=5).metadata())
    assert redriven_to(brokers) == 0


def test_commit_of_an_earlier_version_counts_only_later_reads() -> None:
    brokers = Brokers([failed(n) for n in range(8)])
    text = '{"v":1,"end":8,"selected":5,"moved":5,"guarded":0}'
    brokers.stored[SOURCE] = OffsetAndMetadata(5, -1, text)
    assert redriven_to(brokers) == 3


def test_a_run_of_named_records_counts_them_alone() -> None:
    assert redriven_to(Brokers(parted({0: 5, 1: 5})), filter__records=[{"partition": 1, "offset": 2}]) == 1


class Halting(Brokers):
    """Gives nothing for a moment between the records and the end."""

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Step]:
        for step in super().read(ranges):
            yield step._replace(done=frozenset())
            yield Step({}, frozenset())
            yield Step({}, frozenset())
            yield Step({}, step.done)


def test_rate_limit_delay_does_not_count_as_broker_outage() -> None:
    """The clock moves with every reading of it: a record in a second takes longer than a stall."""
    brokers = Halting([failed(n) for n in range(2 * int(STALL_S))])
    assert run(brokers, recordsPerSecond=1).run()["moved"] == 2 * int(STALL_S)
