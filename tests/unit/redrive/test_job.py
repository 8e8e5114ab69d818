"""What a run does when its surroundings do not play along: nothing is counted that is not so, and nothing hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from fleet_consumer.fetch.producer import ProduceFailed, SendHandle
from fleet_consumer.group.errors import DataPlaneFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.redrive.config import parse_config
from fleet_consumer.redrive.job import STALL_S, Run, Stopped
from fleet_consumer.redrive.progress import parse_metadata
from tests.unit.redrive.documents import FAILED, REDRIVE, document, failed

SOURCE = TopicPartition(FAILED, 0)


class Clock:
    """Moves on by a little with every look, so that what waits for a time comes to its end."""

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
        self.end = len(records) if end is None else end
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self.sent: list[Any] = []
        self.errors: dict[bytes | None, ProduceFailed | None] = {}
        self.silent = False

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, 0)]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {each: (0, self.end if each == SOURCE else 0) for each in partitions}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {each: self.stored[each] for each in partitions if each in self.stored}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.stored.update(offsets)

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        if partition.topic == REDRIVE:
            return
        yield [record for record in self.records if start <= record.offset < end]
        while end > len(self.records):
            yield []

    def send(self, topic: str, *, key: bytes | None, value: bytes | None, **rest: Any) -> SendHandle:
        handle = SendHandle(topic)
        handle.done, handle.error = not self.silent, self.errors.get(key)
        self.sent.append(key)
        return handle

    def flush(self, timeout_s: float) -> int:
        return 0


def run(brokers: Brokers, stop: threading.Event | None = None, **changes: Any) -> Run:
    parts: Any = brokers
    return Run(parse_config(document(**changes)), parts, parts, stop or threading.Event(), Clock())


def test_record_that_the_topic_refuses_is_told_and_holds_up_no_other() -> None:
    brokers = Brokers([failed(n, key=b"%d" % n) for n in range(5)])
    brokers.errors[b"2"] = ProduceFailed(REDRIVE, "MSG_SIZE_TOO_LARGE", "too large")
    outcome = run(brokers).run()
    assert (outcome.selected, outcome.moved, outcome.refused) == (5, 4, 1)
    assert brokers.stored[SOURCE].offset == 5


@pytest.mark.parametrize("reason", ["_MSG_TIMED_OUT", "TOPIC_AUTHORIZATION_FAILED", "_UNKNOWN_TOPIC"])
def test_record_that_could_not_be_written_ends_the_run_before_it_is_committed(reason: str) -> None:
    brokers = Brokers([failed(n, key=b"%d" % n) for n in range(5)])
    brokers.errors[b"3"] = ProduceFailed(REDRIVE, reason, "no")
    with pytest.raises(ProduceFailed, match=reason):
        run(brokers).run()
    assert brokers.stored[SOURCE].offset == 0


def test_record_that_nobody_acknowledges_is_not_taken_for_written() -> None:
    brokers = Brokers([failed(0)])
    brokers.silent = True
    with pytest.raises(ProduceFailed, match="NotAcknowledged"):
        run(brokers).run()
    assert brokers.stored[SOURCE].offset == 0


def test_partition_from_which_nothing_comes_ends_the_run_after_a_while() -> None:
    brokers = Brokers([failed(0)], end=5)
    with pytest.raises(DataPlaneFailed, match=f"nothing came for {STALL_S:g} s"):
        run(brokers).run()
    assert brokers.stored[SOURCE].offset == 1


def test_run_that_is_to_stop_ends_before_the_next_batch() -> None:
    stop = threading.Event()
    stop.set()
    brokers = Brokers([failed(n) for n in range(5)])
    with pytest.raises(Stopped):
        run(brokers, stop).run()
    assert brokers.sent == []


def test_progress_that_somebody_else_wrote_is_replaced_by_our_own_from_the_beginning() -> None:
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.stored[SOURCE] = OffsetAndMetadata(2, -1, "a tool")
    assert run(brokers).run().moved == 3
    progress = parse_metadata(brokers.stored[SOURCE].metadata)
    assert progress is not None
    assert (progress.end, progress.moved) == (3, 3)


@pytest.mark.parametrize("offset", [2, 7])
def test_failed_topic_that_was_made_anew_since_the_run_began_is_read_to_the_end_that_it_has(offset: int) -> None:
    """Or whose leader lost the end of its log: what is not there is not waited for."""
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.commit({SOURCE: OffsetAndMetadata(offset, -1, '{"v":1,"end":9,"selected":2,"moved":2,"guarded":0}')})
    run(brokers).run()
    assert brokers.stored[SOURCE].offset == max(offset, 3)


def test_offset_that_retention_has_removed_is_no_obstacle() -> None:
    brokers = Brokers([failed(n) for n in range(3)])
    brokers.commit({SOURCE: OffsetAndMetadata(3, -1, '{"v":1,"end":3,"selected":2,"moved":2,"guarded":1}')})
    outcome = run(brokers).run()
    assert (outcome.selected, outcome.moved, outcome.guarded) == (2, 2, 1)
    assert brokers.sent == []
