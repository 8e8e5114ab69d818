"""The end of a batch that cannot be read: nothing behind it is passed that could be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.coordinator.damage import HEAD, LENGTH_FROM, find_batch_end
from fleet_consumer.group.errors import OffsetLookupFailed, TopicAuthorizationFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.topics import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
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

PART = TopicPartition("t", 0)
SIZE = 100


def batch(base: int, last: int, magic: int = 2) -> bytes:
    return HEAD.pack(base, SIZE - LENGTH_FROM, 0, magic, 0, 0, last - base).ljust(SIZE, b"x")


class Log:
    """A leader's log of batches, by the offsets that their headers claim; `fails` says at which it cannot be read."""

    def __init__(self, *batches: tuple[int, int], end: int, fails: Callable[[int], int] = lambda offset: 0) -> None:
        self.batches, self.end, self.fails = batches, end, fails
        self.asked: list[int] = []

    def answer(self, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            return self._fetch(request.topics[0].partitions[0].fetch_offset)
        if isinstance(request, ListOffsetsRequest):
            part = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=self.end)
            return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(part,)),))
        broker = MetadataResponseBroker(node_id=1, host="b", port=1)
        led = MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=(), isr_nodes=()
        )
        return MetadataResponse(
            brokers=(broker,), topics=(MetadataResponseTopic(name="t", error_code=0, partitions=(led,)),)
        )

    def _fetch(self, offset: int) -> FetchResponse:
        self.asked.append(offset)
        code = self.fails(offset) or (ErrorCode.OFFSET_OUT_OF_RANGE if offset > self.end else 0)
        records = b"".join(batch(*each) for each in self.batches if each[1] >= offset) if not code else b""
        part = FetchablePartitionResponse(
            partition_index=0,
            error_code=code,
            high_watermark=-1 if code else self.end,
            aborted_transactions=None,
            records=records,
        )
        return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(part,)),))

    def end_of(self, offset: int) -> int:
        flow = find_batch_end(PART, offset)
        ask: Any = next(flow)
        while True:
            try:
                ask = flow.send([self.answer(each.request) for each in ask.asks])
            except StopIteration as found:
                return int(found.value)


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_batch_ends_where_its_header_says(offset: int) -> None:
    assert Log((0, 2), (3, 5), (6, 8), end=9).end_of(offset) == 6


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
    with pytest.raises(OffsetLookupFailed, match="for a moment only"):
        log.end_of(3)


def test_partition_that_may_not_be_read_passes_nothing() -> None:
    log = Log((0, 2), end=6, fails=lambda offset: ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(TopicAuthorizationFailed, match="t-0"):
        log.end_of(3)


def test_offset_at_the_end_of_the_log_is_no_batch() -> None:
    with pytest.raises(OffsetLookupFailed, match="it has no data at offset 9"):
        Log((0, 2), (3, 8), end=9).end_of(9)
