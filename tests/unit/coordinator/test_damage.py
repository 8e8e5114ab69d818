"""The end of a batch that cannot be read: nothing behind it is passed that could be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.coordinator.damage import HEAD, LENGTH_FROM, find_batch_end, find_silent
from fleet_consumer.coordinator.flows import Flow
from fleet_consumer.group.errors import OffsetLookupFailed, TopicAuthorizationFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.topics import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.segments import sign

PART = TopicPartition("t", 0)
SIZE = 100


CONTROL, WRONG = 0x20, 0x4000
"""Attributes: a marker of a transaction, and for this test a checksum that is wrong."""


def batch(base: int, last: int, attributes: int = 0) -> bytes:
    whole = bytearray(HEAD.pack(base, SIZE - LENGTH_FROM, 0, 2, 0, attributes, last - base).ljust(SIZE, b"x"))
    if attributes & CONTROL and not attributes & WRONG:
        sign(whole)
    return bytes(whole)


class Log:
    """A leader's log of batches, by the offsets that their headers claim, and perhaps attributes; `fails` says at which
    it cannot be read."""

    def __init__(self, *batches: tuple[int, ...], end: int, fails: Callable[[int], int] = lambda offset: 0) -> None:
        self.batches, self.end, self.fails = batches, end, fails
        self.stable_end = end
        self.asked: list[int] = []

    def answer(self, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            return self._fetch(request.topics[0].partitions[0])
        if isinstance(request, ListOffsetsRequest):
            end = self.stable_end if request.isolation_level else self.end
            ends = tuple(
                ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=0, offset=end)
                for each in request.topics[0].partitions
            )
            return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=ends),))
        broker = MetadataResponseBroker(node_id=1, host="b", port=1)
        led = tuple(
            MetadataResponsePartition(
                error_code=0, partition_index=number, leader_id=1, leader_epoch=0, replica_nodes=(), isr_nodes=()
            )
            for number in range(3)
        )
        return MetadataResponse(
            brokers=(broker,), topics=(MetadataResponseTopic(name="t", error_code=0, partitions=led),)
        )

    def _fetch(self, asked: FetchPartition) -> FetchResponse:
        offset = asked.fetch_offset
        self.asked.append(offset)
        code = self.fails(offset) or (ErrorCode.OFFSET_OUT_OF_RANGE if offset > self.end else 0)
        records = b"".join(batch(*each) for each in self.batches if each[1] >= offset) if not code else b""
        part = FetchablePartitionResponse(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=-1 if code else self.end,
            aborted_transactions=None,
            records=records,
        )
        return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(part,)),))

    def end_of(self, offset: int) -> int:
        return int(self._run(find_batch_end(PART, offset)))

    def silent_at(self, *offsets: int, read_committed: bool = True) -> set[TopicPartition]:
        """Of as many partitions with this log, those that it leaves without an answer."""
        places = {TopicPartition("t", number): offset for number, offset in enumerate(offsets)}
        return set(self._run(find_silent(places, read_committed=read_committed)))

    def _run(self, flow: Flow[Any]) -> Any:
        answers: list[Any] | None = None
        while True:
            try:
                ask: Any = next(flow) if answers is None else flow.send(answers)
                answers = [self.answer(each.request) for each in ask.asks]
            except StopIteration as found:
                return found.value


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_batch_ends_where_its_header_says(offset: int) -> None:
    assert Log((0, 2), (3, 5), (6, 8), end=9).end_of(offset) == 6


def test_markers_of_transactions_before_it_are_passed_with_it() -> None:
    """Readers never see markers, so reading stands in front of them, and the batch that is asked for is behind."""
    log = Log((0, 9), (10, 10, CONTROL), (11, 11, CONTROL), (12, 14), (15, 17), end=18)
    assert log.end_of(10) == 15


def test_damaged_marker_is_passed_and_not_the_batch_behind_it() -> None:
    assert Log((0, 9), (10, 10, CONTROL | WRONG), (11, 13), end=14).end_of(10) == 11


def test_markers_at_the_end_of_the_log_are_no_bad_batch() -> None:
    with pytest.raises(OffsetLookupFailed, match="it has no data at offset 11"):
        Log((0, 9), (10, 10, CONTROL), end=11).end_of(10)


def test_last_batch_ends_with_the_log() -> None:
    assert Log((0, 2), (3, 5), end=6).end_of(3) == 6


def test_offsets_that_compaction_removed_behind_it_are_not_passed() -> None:
    assert Log((0, 2), (3, 5), (20, 22), end=23).end_of(3) == 6


@pytest.mark.parametrize("last", [7, 100, 1 << 31 - 1], ids=["into the next", "behind the log", "far away"])
def test_header_that_reaches_over_others_is_not_believed(last: int) -> None:
    with pytest.raises(OffsetLookupFailed, match="the batch at offset 3 has a damaged header"):
        Log((0, 2), (3, last), (6, 8), (9, 11), end=12).end_of(3)


def test_place_where_the_leader_fails_ends_at_the_first_offset_that_it_serves() -> None:
    log = Log((0, 2), (700, 999), end=1_000, fails=lambda offset: ErrorCode.CORRUPT_MESSAGE if 3 <= offset < 700 else 0)
    assert log.end_of(3) == 700
    assert len(log.asked) < 40


def test_place_where_the_leader_fails_to_its_end_ends_there() -> None:
    log = Log((0, 2), end=50, fails=lambda offset: ErrorCode.CORRUPT_MESSAGE if 3 <= offset < 50 else 0)
    assert log.end_of(3) == 50


def test_log_that_gives_nothing_below_its_end_fails_there() -> None:
    """A batch that is longer than its file is the file's end to the broker."""
    assert Log((0, 2), end=9).end_of(3) == 9


def test_leader_that_failed_for_a_moment_passes_nothing() -> None:
    codes = [ErrorCode.UNKNOWN_SERVER_ERROR]
    log = Log((0, 2), (3, 5), end=6, fails=lambda offset: codes.pop() if codes else 0)
    with pytest.raises(OffsetLookupFailed, match="only briefly"):
        log.end_of(3)


def test_partition_that_may_not_be_read_passes_nothing() -> None:
    log = Log((0, 2), end=6, fails=lambda offset: ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(TopicAuthorizationFailed, match="t-0"):
        log.end_of(3)


def test_offset_at_the_end_of_the_log_is_no_batch() -> None:
    with pytest.raises(OffsetLookupFailed, match="it has no data at offset 9"):
        Log((0, 2), (3, 8), end=9).end_of(9)


def test_leader_that_gives_nothing_below_the_end_is_found() -> None:
    assert Log((0, 2), end=9).silent_at(3) == {PART}
    corrupt = Log((0, 2), end=9, fails=lambda offset: ErrorCode.CORRUPT_MESSAGE)
    assert corrupt.silent_at(3) == {PART}


@pytest.mark.parametrize(
    ("batches", "stable_end"),
    [
        pytest.param([(0, 2)], 3, id="read to the end"),
        pytest.param([(0, 2), (3, 8)], 3, id="an open transaction"),
        pytest.param([(0, 2), (3, 7), (8, 8, CONTROL)], 9, id="an aborted transaction"),
        pytest.param([(0, 2), (3, 3, CONTROL), (8, 8, CONTROL)], 9, id="markers"),
        pytest.param([(0, 2), (8, 8)], 9, id="compacted offsets"),
    ],
)
def test_place_without_records_to_hand_out_is_no_failure(batches: list[tuple[int, ...]], stable_end: int) -> None:
    log = Log(*batches, end=9 if len(batches) > 1 else 3)
    log.stable_end = stable_end
    assert log.silent_at(3) == set()
    assert log.silent_at(3, read_committed=False) == set()


def test_no_leader_is_asked_behind_the_first_that_can_read_its_log() -> None:
    """Each check costs one fetch where many places only wait for their reader."""
    log = Log((0, 2), (700, 999), end=1_000, fails=lambda offset: ErrorCode.CORRUPT_MESSAGE if offset == 3 else 0)
    assert log.silent_at(3, 700, 3) == {PART}
    assert log.asked == [3, 700]


def test_leader_that_refuses_leaves_it_unknown_and_takes_nothing_back() -> None:
    codes = {3: ErrorCode.CORRUPT_MESSAGE, 4: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert Log((0, 2), end=9, fails=lambda offset: codes.get(offset, 0)).silent_at(3, 4) == {PART}
