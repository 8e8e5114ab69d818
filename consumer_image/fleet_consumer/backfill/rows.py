"""Columns of Arrow batches: the records that Spark hands to tasks, and the rows that tasks give back.

pyarrow is imported at the first use, because only Spark's image has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fleet_consumer.record import Headers, Record

if TYPE_CHECKING:
    import pyarrow

SELECTED: Final = ("partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers")
"""Columns of Kafka's source that tasks get."""

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
COORDINATES: Final = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "bigint"}
"""The input of a row: each row begins with its coordinates."""

OUTPUT_COLUMNS: Final = {
    **COORDINATES,
    "output": "int",
    "out_topic": "string",
    "key": "binary",
    "value": "binary",
    "headers": HEADERS_TYPE,
}
"""A returned record: its number among the input's outputs, and what the handler made."""

ANSWER_COLUMNS: Final = {**COORDINATES, "key": "binary", "answer": "string"}
"""One handler's answer to a record, for the join of two passes."""

DIFFERENCE_COLUMNS: Final = {
    **COORDINATES,
    "key": "binary",
    "live": "string",
    "candidate": "string",
    "live_error": "string",
    "candidate_error": "string",
}
"""A record that two handlers answered differently; the result of a side that failed is null."""

Columns = dict[str, str]
Row = tuple[Any, ...]


class Raw(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def record(self, topic: str) -> Record:
        """A new record of these bytes, for one handler."""
        return Record(topic, self.partition, self.offset, self.timestamp, self.key, self.value, self.headers)

    @property
    def size(self) -> int:
        """Its bytes in key and value."""
        return len(self.key or b"") + len(self.value or b"")


def schema_of(columns: Columns) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def raw_records(batch: pyarrow.RecordBatch) -> Iterator[Raw]:
    """The records of a batch, in its order."""
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "timestamp", "key", "value")]
    headers = batch.column("headers")
    found: Sequence[Any] = [None] * batch.num_rows if headers.null_count == batch.num_rows else headers.to_pylist()
    for (partition, offset, timestamp, key, value), own in zip(zip(*columns, strict=True), found, strict=True):
        pairs = () if own is None else tuple((each["key"], each["value"]) for each in own)
        yield Raw(partition, offset, timestamp, key, value, pairs)


def batch_of(columns: Columns, rows: Sequence[Row]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        HEADERS_TYPE: pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    }
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = [pa.array(each, types[kind]) for each, kind in zip(values, columns.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
