"""The `kr-` headers: what a record in a managed topic tells about its origin and its failure.

Names and meanings are one reserved family, UTF-8, times in decimal milliseconds since the epoch. They replace
whatever a record carried under these names before, so the last hop's word is the only one; every other header passes
through unchanged and in order, trace context included.
"""

from __future__ import annotations

from typing import Final

from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.failure import Failure

HEADER_PREFIX: Final = "kr-"

ATTEMPT: Final = "kr-attempt"
FIRST_FAILED_AT: Final = "kr-first-failed-at"
FAILED_AT: Final = "kr-failed-at"
GROUP: Final = "kr-group"
ORIGIN_TOPIC: Final = "kr-origin-topic"
ORIGIN_PARTITION: Final = "kr-origin-partition"
ORIGIN_OFFSET: Final = "kr-origin-offset"
ORIGIN_TIMESTAMP: Final = "kr-origin-timestamp"
ERROR_CLASS: Final = "kr-error-class"
ERROR_MESSAGE: Final = "kr-error-message"
REASON: Final = "kr-reason"

DETAILS: Final = frozenset({ERROR_CLASS, ERROR_MESSAGE})
"""The only headers whose size a handler decides: what is left out when a record would be too large for its topic."""


def failed_headers(record: Record, failure: Failure, *, group_id: str, now_ms: int) -> list[tuple[str, bytes | None]]:
    """The headers of `record`'s copy in the failed topic: its own ones, then ours.

    `now_ms` is when it failed. A record that failed before keeps the time of its first failure.
    """
    first = record.first_failed_at if record.first_failed_at is not None else now_ms
    told = {
        ATTEMPT: str(record.attempt),
        FIRST_FAILED_AT: str(first),
        FAILED_AT: str(now_ms),
        GROUP: group_id,
        ORIGIN_TOPIC: record.topic,
        ORIGIN_PARTITION: str(record.partition),
        ORIGIN_OFFSET: str(record.offset),
        ORIGIN_TIMESTAMP: str(record.timestamp),
        ERROR_CLASS: failure.error_class,
        ERROR_MESSAGE: failure.message,
        REASON: failure.reason.value,
    }
    kept = [(name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)]
    return kept + [(name, text.encode("utf-8", "backslashreplace")) for name, text in told.items()]


def without_details(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The same headers without the error's class and text, for a record that is too large with them."""
    return [(name, value) for name, value in headers if name not in DETAILS]
