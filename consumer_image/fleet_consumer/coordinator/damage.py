"""The end of a batch that cannot be read, from its header and from what the partition's leader gives behind it.

What readers cannot get past is passed, and nothing that they could read. A broker finds a batch by its header, so one
whose header is plausible ends where the header says. Where the broker itself fails, because the length of a batch is
damaged, it is asked for later offsets: its index leads past the place. Nobody reports a length that is too large: to a
broker the file ends there, and it answers neither bytes nor an error (`find_silent`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from fleet_consumer.coordinator.flows import Flow
from fleet_consumer.coordinator.lookups import CONSUMER, Attempt, ask_leaders, try_offsets
from fleet_consumer.group import errors
from fleet_consumer.group.classification import Api
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.topics import LATEST, FetchPartition, FetchRequest, FetchTopic

HEAD = struct.Struct(">qiibIhi")
"""Base offset, length behind it, leader epoch, magic, CRC, attributes, last offset delta."""
LENGTH_FROM = 12
CRC_FROM = 21
"""The place from which the checksum counts."""
CONTROL = 0x20
"""The attribute of a transaction's marker."""
BYTES_MAX = 64 * 1024
"""The bytes of one answer, beyond its first batch."""
BROKER_FAILS = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_FETCH_SIZE})
"""Answers of a broker that cannot read its own log there."""


class _Batch(NamedTuple):
    """A batch by its header; `following` is the base offset of the one behind it, None when that did not come.
    `marker`: it is the whole marker of a transaction."""

    base: int
    end: int
    following: int | None
    marker: bool


class Found(NamedTuple):
    """The answer of a leader at an offset: the first batch, None outside the log and where it fails (`failed`).
    `log_end` is -1 where it does not tell it."""

    batch: _Batch | None
    failed: bool
    log_end: int


def find_batch_end(part: TopicPartition, offset: int) -> Flow[int]:
    """Find the offset behind the batch that holds `offset`, or that follows markers of transactions there: readers pass
    them without a word, and stand in front of them. Raises OffsetLookupFailed, TopicAuthorizationFailed."""
    found = yield from _fetch(part, offset)
    while found.batch is not None and found.batch.marker:
        offset = found.batch.end
        found = yield from _fetch(part, offset)
    batch = found.batch
    if batch is None:
        if not found.failed:
            raise errors.OffsetLookupFailed(f"partition {part.name}: it has no data at offset {offset}")
        return (yield from _search(part, offset))
    behind = yield from _fetch(part, batch.end)
    follows = behind.batch is None or behind.batch.base >= batch.end
    ends = behind.failed or batch.end <= behind.log_end
    if not (ends and follows) or (batch.following or batch.end) < batch.end:
        raise errors.OffsetLookupFailed(
            f"partition {part.name}: the batch at offset {offset} has a damaged header, so where it ends is not "
            "known; set an offset behind it (with an OffsetReset, or seek)"
        )
    return batch.end


def find_silent(places: Mapping[TopicPartition, int], *, read_committed: bool) -> Flow[frozenset[TopicPartition]]:
    """Find partitions whose leaders fail at these offsets, below their ends.

    One is asked about at a time, and none behind one that can be read: that waits for its reader, as others may.
    """
    ends = yield from try_offsets(dict.fromkeys(places, LATEST), read_committed=read_committed)
    silent = set()
    for part, offset in places.items():
        if part in ends.found and offset < ends.found[part].offset:
            try:
                found = yield from _fetch(part, offset)
            except errors.ConsumerError:
                break
            if not found.failed:
                break
            silent.add(part)
    return frozenset(silent)


def _search(part: TopicPartition, offset: int) -> Flow[int]:
    """Find the first offset above one at which the leader fails that it can serve; the log's end without one."""
    ends = yield from try_offsets({part: LATEST}, read_committed=False)
    good = log_end = ends.found[part].offset if part in ends.found else -1
    bad, step = offset, 1
    while bad + step < log_end:
        if (yield from _fetch(part, bad + step)).failed:
            bad, step = bad + step, 2 * step
        else:
            good = bad + step
            break
    while good - bad > 1:
        middle = (bad + good) // 2
        failed = (yield from _fetch(part, middle)).failed
        bad, good = (middle, good) if failed else (bad, middle)
    again, behind = (yield from _fetch(part, offset)), (yield from _fetch(part, good))
    if log_end <= offset or not again.failed or (behind.batch is not None and behind.batch.base <= offset):
        raise errors.OffsetLookupFailed(
            f"partition {part.name}: its leader failed at offset {offset} for a moment only; try again"
        )
    return good


def _fetch(part: TopicPartition, offset: int) -> Flow[Found]:
    def request(epochs: Mapping[TopicPartition, int]) -> FetchRequest:
        asked = FetchPartition(
            partition=part.partition,
            current_leader_epoch=epochs[part],
            fetch_offset=offset,
            partition_max_bytes=BYTES_MAX,
        )
        topics = (FetchTopic(topic=part.topic, partitions=(asked,)),)
        return FetchRequest(replica_id=CONSUMER, max_wait_ms=0, min_bytes=0, topics=topics)

    def read(response: Any, attempt: Attempt[Found]) -> None:
        for each in (each for topic in response.responses for each in topic.partitions):
            end = each.high_watermark
            batch = _first(each.records or b"", offset)
            # No bytes below the end of the log: to the broker its file ends within the batch.
            failed = each.error_code in BROKER_FAILS or (batch is None and offset < end)
            known = each.error_code in BROKER_FAILS or each.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            code = ErrorCode.NONE if known else each.error_code
            attempt.judge(Api.FETCH, part, code, Found(batch, failed, end))

    attempt: Attempt[Found] = yield from ask_leaders((part,), request, read)
    if part in attempt.refused:
        raise attempt.refused[part]
    if part not in attempt.found:
        raise errors.OffsetLookupFailed(f"partition {part.name}: {attempt.waiting[part]}")
    return attempt.found[part]


def _first(records: bytes, offset: int) -> _Batch | None:
    """The first batch of an answer by its header, None without a whole header or with one that cannot be."""
    if len(records) < HEAD.size:
        return None
    base, length, _, magic, crc, attributes, delta = HEAD.unpack_from(records)
    end = base + 1 + (delta if magic >= 2 else 0)  # a batch of the old formats is named by its last offset
    place = LENGTH_FROM + length
    if length <= 0 or end <= offset:
        return None
    following = struct.unpack_from(">q", records, place)[0] if place + 8 <= len(records) else None
    # A damaged marker is the bad batch itself, and so is another batch that only looks like one.
    marker = magic >= 2 and bool(attributes & CONTROL) and crc == _crc32c(records[CRC_FROM:place])
    return _Batch(base, end, following, marker)


def _crc32c(data: bytes) -> int:
    """The checksum of a batch (Castagnoli), bit by bit: markers have a few dozen bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
