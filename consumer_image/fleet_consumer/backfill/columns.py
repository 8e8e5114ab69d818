"""Conversion of a handler's output and its input record to a row of typed columns. Pure functions."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from math import isfinite
from typing import Any, Final

from fleet_consumer.contract.backfill_config import ColumnConfig
from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.failure import OutputRefused

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DECIMAL: Final = "decimal"

Convert = Callable[[Any], Any]
"""Converts a JSON value to a column's type. Raises ValueError, TypeError, OverflowError or InvalidOperation."""


class TableRows:
    def __init__(self, columns: Sequence[ColumnConfig]) -> None:
        self._columns = [(each, (each.field or each.name).split("."), converter(each.type)) for each in columns]
        self._reads_value = any(each.source == "Value" for each in columns)
        exact = any(each.type.startswith(DECIMAL) for each in columns)
        # A float cannot keep all digits of a decimal.
        self._parse = json.JSONDecoder(parse_float=Decimal if exact else None, parse_constant=_refuse_constant).decode

    def row(self, topic: str, record: Record, produce: Produce) -> list[Any]:
        """Return the row for one output of a record. Raises OutputRefused if the output does not fit the columns."""
        value = self._value(produce.value) if self._reads_value else {}
        found = []
        for column, path, convert in self._columns:
            given = None
            try:
                given = self._given(column.source, path, value, topic, record, produce)
                found.append(None if given is None else convert(given))
            except (ValueError, TypeError, OverflowError, InvalidOperation) as error:
                seen = f"{type(given).__name__} {str(given)[:60]!r}"
                raise OutputRefused(f"column {column.name!r} of the table must be {column.type}, not {seen}") from error
            if given is None and column.required:
                raise OutputRefused(
                    f"column {column.name!r} of the table is required, and the output has no value for it"
                )
        return found

    def _value(self, value: bytes | str | None) -> Mapping[str, Any]:
        if value is None:
            return {}
        try:
            parsed = self._parse(value if isinstance(value, str) else value.decode())
        except (ValueError, RecursionError) as error:
            raise OutputRefused(f"the value of an output for a table must be a JSON object: {error}") from error
        if not isinstance(parsed, dict):
            raise OutputRefused(
                f"the value of an output for a table must be a JSON object, not {type(parsed).__name__}"
            )
        return parsed

    @staticmethod
    def _given(
        source: str, path: Sequence[str], value: Mapping[str, Any], topic: str, record: Record, produce: Produce
    ) -> Any:
        if source == "Value":
            found: Any = value
            for name in path:
                found = found.get(name) if isinstance(found, dict) else None
            return found
        if source == "Key":
            return produce.key.decode() if isinstance(produce.key, bytes) else produce.key
        if source == "Topic":
            return topic
        return getattr(record, source.lower())


def converter(kind: str) -> Convert:
    """Return the conversion to a column's type; `kind` is the type's name in the CRD."""
    if kind.startswith(DECIMAL):
        precision, scale = (int(part) for part in kind[len(DECIMAL) + 1 : -1].split(","))
        return lambda given: _decimal(given, precision, scale)
    return CONVERTERS[kind]


def _text(given: Any) -> str:
    text = (
        given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"), default=str)
    )
    if not text.isascii():
        text.encode()  # raises for a lone surrogate, which would otherwise crash the process that writes the file
    return text


def _integer(bits: int) -> Convert:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(given: Any) -> int:
        # The bounds are checked first, because int() would expand all digits of 1e999999999.
        if not least <= _number(given) <= most or int(given) != given:
            raise ValueError("not an integer of this size")
        return int(given)

    return convert


def _double(given: Any) -> float:
    found = float(_number(given))
    if not isfinite(found):
        raise ValueError("too large")
    return found


def _boolean(given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError("not a boolean")
    return given


def _timestamp(given: Any) -> datetime:
    if isinstance(given, str):
        found = datetime.fromisoformat(given)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return EPOCH + timedelta(milliseconds=_integer(64)(given))


def _date(given: Any) -> date:
    if isinstance(given, str) and len(given) == len("2026-01-31"):
        return date.fromisoformat(given)
    return _timestamp(given).date()


def _decimal(given: Any, precision: int, scale: int) -> Decimal:
    found = Decimal(given if isinstance(given, str) else str(_number(given)))
    with localcontext() as context:
        context.prec = precision + scale + 2
        made = found.quantize(Decimal(1).scaleb(-scale))
    if made != found or len(made.as_tuple().digits) > max(precision, 1):
        raise ValueError("more digits than the column has")
    return made


def _number(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise TypeError("not a number")
    return given


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


CONVERTERS: Final[Mapping[str, Convert]] = {
    "string": _text,
    "int": _integer(32),
    "bigint": _integer(64),
    "double": _double,
    "boolean": _boolean,
    "timestamp": _timestamp,
    "date": _date,
}
"""Conversions, keyed by column type. Decimal types have parameters, so `converter` makes their conversions."""
