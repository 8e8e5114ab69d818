"""Rows that tasks return to Spark, and their columns. pyarrow is imported on first use, because other images lack
it."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.contract.backfill_config import LIVE, BackfillConfig
from fleet_consumer.record import Headers

if TYPE_CHECKING:
    import pyarrow

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
COORDINATES: Final = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "bigint"}
"""The first columns of each row: the coordinates of the input record."""

OUTPUT_COLUMNS: Final = {
    **COORDINATES,
    "output": "int",
    "out_topic": "string",
    "key": "binary",
    "value": "binary",
    "headers": HEADERS_TYPE,
}
"""Columns of a returned record. `output` is the record's index, from 0, among the outputs of its input record."""

ANSWER_COLUMNS: Final = {**COORDINATES, "key": "binary", "answer": "string"}
"""Columns of one handler's answer to a record, as stored for the second pass of a comparison."""

DIFFERENCE_COLUMNS: Final = {
    **COORDINATES,
    "key": "binary",
    "live": "string",
    "candidate": "string",
    "live_error": "string",
    "candidate_error": "string",
}
"""Columns of a record with different answers. `live` or `candidate` is null if that handler failed or gave no
answer."""

Columns = dict[str, str]
Row = tuple[Any, ...]


class Rows:
    """Rows, stored column by column as Arrow needs them."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: list[list[Any]] = []

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def add(self, *row: Any) -> None:
        if not self.columns:
            self.columns = [[] for _ in row]
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)


def encoded_headers(headers: Headers) -> list[tuple[str, bytes | None]] | None:
    return [(name, value) for name, value in headers] or None


def columns_of(config: BackfillConfig) -> Columns:
    table = config.sink.table
    if table is not None and table.columns is not None:
        return {each.name: each.type for each in table.columns}
    if config.compare is None:
        return OUTPUT_COLUMNS
    return ANSWER_COLUMNS if config.compare.handlers == LIVE else DIFFERENCE_COLUMNS


def schema_of(columns: Columns) -> str:
    """Return these columns as a schema in Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def batch_of(columns: Columns, values: Sequence[Sequence[Any]]) -> "pyarrow.RecordBatch":
    """Return an Arrow batch; `values` has one list of values for each column."""
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
