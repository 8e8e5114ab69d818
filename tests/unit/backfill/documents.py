"""A backfill.json that is right, for tests to change one thing in."""

from __future__ import annotations

from typing import Any

from tests.unit.worker.documents import worker_document


def backfill_document(**changes: Any) -> dict[str, Any]:
    """The settings of a Backfill of two partitions; `changes` replace top-level fields."""
    return {
        "version": 1,
        "id": "0d9c2f3e",
        "name": "again",
        "namespace": "default",
        "worker": worker_document(),
        "topic": "flights",
        "ranges": {"0": [0, 100], "1": [50, 150]},
        "filter": {"keyRegex": None, "headerEquals": {}, "fromTime": None, "toTime": None},
        "ordering": "Partition",
        "sliceRecords": 50,
        "sliceSeconds": 10,
        "onError": "Fail",
        "parallelism": 2,
        "sink": {"topic": None, "parquet": None},
        "compare": None,
        "ledger": "again-ledger",
        "control": "again-control",
    } | changes


def compare_section(handlers: str = "Both") -> dict[str, Any]:
    """`compare` of these handlers."""
    candidate = {"callable": "handler:handle", "path": "/etc/consumer-fleet/candidate"}
    return {"candidate": candidate, "ignoreFields": ["at"], "handlers": handlers}


def table_section(**changes: Any) -> dict[str, Any]:
    """`sink.table`."""
    columns = [{"name": "n", "type": "int", "from": "Value", "field": None, "required": False}]
    head: dict[str, Any] = {"format": "Parquet", "path": "/var/sink", "name": None, "mode": "Append", "partitionBy": []}
    return head | {"columns": columns} | changes
