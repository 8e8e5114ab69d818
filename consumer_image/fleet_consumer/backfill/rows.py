"""Rows that tasks give to Spark, and their columns.

pyarrow is imported at the first use, because only Spark's image has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.contract.backfill_config import LIVE, BackfillConfig
from fleet_consumer.record import Headers

if TYPE_CHECKING:
    import pyarrow

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


class Rows:
    """Rows by columns, which is how they are sent and how Arrow takes them."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: list[list[Any]] = []

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def add(self, *row: Any) -> None:
        """Add a row."""
        if not self.columns:
            self.columns = [[] for _ in row]
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)


def encoded_headers(headers: Headers) -> list[tuple[str, bytes | None]] | None:
    """The headers as a row has them."""
    return [(name, value) for name, value in headers] or None


def columns_of(config: BackfillConfig) -> Columns:
    """The columns of the rows that a task of this Backfill gives back."""
    table = config.sink.table
    if table is not None and table.columns is not None:
        return {each.name: each.type for each in table.columns}
    if config.compare is None:
        return OUTPUT_COLUMNS
    return ANSWER_COLUMNS if config.compare.handlers == LIVE else DIFFERENCE_COLUMNS


def schema_of(columns: Columns) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def batch_of(columns: Columns, values: Sequence[Sequence[Any]]) -> pyarrow.RecordBatch:
    """An Arrow batch of these values, column by column."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "date": pa.date32(),
        HEADERS_TYPE: pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    }
    for kind in columns.values():
        if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
            types[kind] = pa.decimal128(int(found[1]), int(found[2]))
    arrays = [pa.array(each, types[kind]) for each, kind in zip(values, columns.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
