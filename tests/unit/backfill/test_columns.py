"""Typed columns: what becomes a value of which type, and what an output is refused for."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from fleet_consumer.backfill.columns import TableRows
from fleet_consumer.backfill.rows import OUTPUT_COLUMNS, columns_of
from fleet_consumer.contract.backfill_config import ColumnConfig, parse_config
from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.failure import OutputRefused
from tests.unit.backfill.documents import backfill_document, table_section

RECORD = Record(topic="flights", partition=3, offset=7, timestamp=1_769_860_800_123, key=b"k", value=b"v", headers=())


def column(kind: str, **changes: Any) -> ColumnConfig:
    return ColumnConfig(**({"name": "a", "type": kind, "source": "Value", "field": None, "required": False} | changes))


def row(value: object, *columns: ColumnConfig, key: bytes | str | None = None) -> list[Any]:
    text = value if isinstance(value, bytes | str | None) else json.dumps(value)
    return TableRows(columns).row("flights", RECORD, Produce("done", text, key=key))


@pytest.mark.parametrize(
    ("kind", "given", "made"),
    [
        ("string", "é", "é"),
        ("string", {"b": [1, "é"]}, '{"b":[1,"é"]}'),
        ("string", 5, "5"),
        ("string", True, "true"),
        ("int", -(2**31), -(2**31)),
        ("int", 5.0, 5),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("double", 1, 1.0),
        ("double", 1.5, 1.5),
        ("boolean", False, False),
        ("timestamp", 1_769_860_800_123, datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)),
        ("timestamp", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("timestamp", "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ("timestamp", "2026-01-31 12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("date", "2026-01-31T23:30:00-01:00", date(2026, 2, 1)),
        ("date", 1_769_860_800_123, date(2026, 1, 31)),
        ("decimal(10,2)", "12.50", Decimal("12.50")),
        ("decimal(10,2)", 12.5, Decimal("12.50")),
        ("decimal(38,0)", 10**37, Decimal(10**37)),
        ("decimal(3,3)", 0.125, Decimal("0.125")),
    ],
)
def test_values_become_the_type_of_their_column(kind: str, given: object, made: object) -> None:
    (found,) = row({"a": given}, column(kind))
    assert found == made
    assert type(found) is type(made)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", 2**31),
        ("int", 1.5),
        ("int", "5"),
        ("int", True),
        ("bigint", 2**63),
        ("double", "1"),
        ("double", 10**400),
        ("boolean", 1),
        ("timestamp", "yesterday"),
        ("timestamp", 10**18),
        ("timestamp", True),
        ("date", "2026-02-30"),
        ("decimal(4,2)", 100),
        ("decimal(4,2)", "1.005"),
        ("decimal(4,2)", "NaN"),
        ("decimal(4,2)", "1e999999999"),
        ("string", "\ud800"),
    ],
)
def test_values_of_other_types_are_refused_by_the_name_of_their_column(kind: str, given: object) -> None:
    with pytest.raises(OutputRefused, match="column 'a' of the table must be"):
        row({"a": given}, column(kind))


@pytest.mark.parametrize("text", ["[1]", "5", "null", "", "{", '{"a": NaN}', b"\xff", "[" * 100_000])
def test_values_that_are_no_json_objects_are_refused(text: bytes | str) -> None:
    with pytest.raises(OutputRefused, match="must be a JSON object"):
        row(text, column("int"))


@pytest.mark.parametrize("kind", ["int", "bigint", "timestamp", "double"])
def test_numbers_that_are_short_to_write_and_long_to_hold_are_refused_at_once(kind: str) -> None:
    with pytest.raises(OutputRefused):
        row('{"a": 1e999999999}', column(kind), column("decimal(4,2)", name="b"))


def test_decimals_keep_digits_that_a_float_has_not() -> None:
    found = row('{"a": 12345678901234567890.123456789}', column("decimal(38,9)"))
    assert found == [Decimal("12345678901234567890.123456789")]


def test_fields_are_found_by_their_path_and_absent_ones_are_null() -> None:
    fields = {"x": "meta.at", "y": "meta.no.z", "z": None}
    columns = [column("int", name=name, field=field) for name, field in fields.items()]
    assert row({"meta": {"at": 5, "no": 1}, "z": None}, *columns) == [5, None, None]


@pytest.mark.parametrize("value", [{}, {"a": None}, None])
def test_required_columns_refuse_outputs_without_them(value: object) -> None:
    with pytest.raises(OutputRefused, match="column 'a' of the table is required"):
        row(value, column("int", required=True))


def test_columns_of_the_record_need_no_value_that_is_json() -> None:
    wanted = {"Topic": "string", "Partition": "int", "Offset": "bigint", "Timestamp": "timestamp", "Key": "string"}
    columns = [column(kind, name=source, source=source) for source, kind in wanted.items()]
    at = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
    assert row(b"\xff", *columns, key=b"me") == ["flights", 3, 7, at, "me"]
    with pytest.raises(OutputRefused, match="column 'Key'"):
        row(None, *columns, key=b"\xff")


def test_staged_rows_have_the_names_and_types_of_the_table() -> None:
    sink = {"topic": None, "parquet": None, "table": table_section()}
    assert columns_of(parse_config(backfill_document(sink=sink))) == {"n": "int"}
    sink["table"] = table_section(columns=None)
    assert columns_of(parse_config(backfill_document(sink=sink))) == OUTPUT_COLUMNS
