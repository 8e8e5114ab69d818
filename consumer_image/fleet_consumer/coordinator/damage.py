"""Lookup of the end of an unreadable batch, from its header and the data after the batch.

No readable record is skipped. Brokers find batches by their headers, so a batch with a plausible header ends where the
header says. If the length in the header is damaged, the broker also fails. Then fetches at later offsets find the end,
because the broker's index leads past the damage. If the length is too large, the broker treats the batch as the end of
the file, and returns neither bytes nor an error (see `find_silent`).
"""

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
"""Start of a batch: base offset, length of the rest, leader epoch, magic, CRC, attributes, last offset delta."""
LENGTH_FROM = 12
"""Number of bytes at the start of a batch that are not counted in the length field."""
CRC_FROM = 21
"""Number of bytes at the start of a batch that are not covered by the checksum."""
CONTROL = 0x20
"""The attribute bit of transaction markers (control batches)."""
BYTES_MAX = 64 * 1024
"""Maximum bytes of one Fetch response. Only the first batch of a response may exceed this limit."""
BROKER_FAILS = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_FETCH_SIZE})
"""Error codes with which a broker reports that it cannot read its own log."""


class _Batch(NamedTuple):
    """A batch as described by its header; `end` is the offset after the batch. `following` is the base offset of the
    next batch, or None if not in the response. `marker` is True for an intact transaction marker."""

    base: int
    end: int
    following: int | None
    marker: bool


class Found(NamedTuple):
    """A leader's response to a Fetch at an offset. `batch` is the first batch; None if the offset is outside the log or
    the leader `failed` to read. `log_end` is -1 if the response has no log end."""

    batch: _Batch | None
    failed: bool
    log_end: int


def find_batch_end(part: TopicPartition, offset: int) -> Flow[int]:
    """Find the offset after the unreadable batch at `offset`. Intact transaction markers at `offset` are skipped first,
    as consumers do. Raises OffsetLookupFailed, TopicAuthorizationFailed."""
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
            f"partition {part.name}: the batch at offset {offset} has a damaged header, so its end is unknown; "
            "seek to an offset after the batch, or set one with an OffsetReset"
        )
    return batch.end


def find_silent(places: Mapping[TopicPartition, int], *, read_committed: bool) -> Flow[frozenset[TopicPartition]]:
    """Find partitions whose leaders cannot read the given offsets, although their logs continue after these offsets.

    Partitions are checked one at a time, and the check stops at the first readable partition. A partition may be
    readable and still make no progress: the user has not taken its records yet. Then the same is probably true of the
    remaining partitions.
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
    """Find the next readable offset, or the log's end. Raises OffsetLookupFailed if `offset` is readable after all."""
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
            f"partition {part.name}: its leader was only briefly unable to read offset {offset}; try again"
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
            # If the response has no batch although the log continues, the broker sees the end of its file within the
            # batch.
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
    """Return the first batch of a response by its header; None if the header is incomplete or impossible."""
    if len(records) < HEAD.size:
        return None
    base, length, _, magic, crc, attributes, delta = HEAD.unpack_from(records)
    end = base + 1 + (delta if magic >= 2 else 0)  # in the formats before magic 2, `base` is the last offset
    place = LENGTH_FROM + length
    if length <= 0 or end <= offset:
        return None
    following = struct.unpack_from(">q", records, place)[0] if place + 8 <= len(records) else None
    # Only an intact marker is skipped. A damaged batch with the marker bit may be the unreadable batch itself.
    marker = magic >= 2 and bool(attributes & CONTROL) and crc == _crc32c(records[CRC_FROM:place])
    return _Batch(base, end, following, marker)


def _crc32c(data: bytes) -> int:
    """Compute the CRC-32C (Castagnoli) of a batch, bit by bit, which suffices for the few dozen bytes of a marker."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
