"""A whole redrive.json, and records as they lie in a failed topic."""

from __future__ import annotations

import copy
from typing import Any

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.record import Record
from fleet_consumer.retry.failure import Failure
from fleet_consumer.retry.headers import FailedDelivery, Origin, RetryHistory, failed_headers, redriven_headers

ID = "0f6c2f3e-8f0e-4e0d-9a1b-000000000001"
OTHER_ID = "0f6c2f3e-8f0e-4e0d-9a1b-000000000002"
NOW = 1_700_000_000_000
FAILED = "_fleet.orders.failed"
REDRIVE = "_fleet.orders.redrive"

_DOCUMENT: dict[str, Any] = {
    "version": 1,
    "id": ID,
    "name": "again",
    "namespace": "shop",
    "groupId": "orders",
    "connection": {"bootstrapServers": ["127.0.0.1:9092"], "tls": None, "sasl": None},
    "filter": {"reasons": [], "errorRegex": None, "keyRegex": None, "fromTime": None, "toTime": None},
    "recordsPerSecond": None,
    "maxRecords": None,
    "dryRun": False,
    "maxRedrives": 3,
    "partitions": 4,
    "maxMessageBytes": 1_114_124,
    "log": {"level": "Info", "format": "Json"},
}


def document(**changed: Any) -> dict[str, Any]:
    """The settings of one run; `filter__keyRegex` names a field inside another."""
    made = copy.deepcopy(_DOCUMENT)
    for name, value in changed.items():
        *outer, last = name.split("__")
        place = made
        for step in outer:
            place = place[step]
        place[last] = value
    return made


def failed(
    offset: int,
    *,
    origin: int | None = None,
    redrives: int = 0,
    redrive_id: str | None = None,
    reason: FailureReason = FailureReason.EXHAUSTED,
    error: str = "cancelled",
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    at: int = NOW,
) -> Record:
    """A record of the failed topic at `offset`, whose origin is by default another for each offset."""
    history = RetryHistory(
        Origin("flights", 0, offset if origin is None else origin, 7), 3, NOW - 1000, None, redrive_id, redrives
    )
    headers = failed_headers(
        FailedDelivery(Record("x", 0, 0, 0, key, value), Failure(reason, "ValueError", error), "orders", at, history)
    )
    return Record(FAILED, 0, offset, at, key, value, headers)


def moved(record: Record, history: RetryHistory, redrive_id: str) -> Record:
    """The copy of a failed record in the redrive topic."""
    source = f"{record.partition}:{record.offset}"
    headers = redriven_headers(record.headers, history, redrive_id=redrive_id, source=source, now_ms=NOW)
    return Record(REDRIVE, 1, 99, NOW, record.key, record.value, headers)
