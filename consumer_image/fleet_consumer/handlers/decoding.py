"""Decoders of keys and values.

A decoder is None if there is nothing to do, so that the default costs nothing in the worker's loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fleet_consumer.retry.failure import Undecodable

Decoder = Callable[[bytes], Any]


def decoder(field: str, format_name: str) -> Decoder | None:
    """The function that decodes a record's `field` ("key" or "value") as `format_name`: String, Json, or Bytes (None).

    The function is never called with None: an absent key or value (a tombstone) stays None. It raises
    Undecodable. JSON follows RFC 8259: UTF-8, and neither NaN nor infinities.
    """
    if format_name == "Bytes":
        return None
    return _text(field) if format_name == "String" else _json(field)


def checker(field: str, format_name: str) -> Decoder | None:
    """As `decoder`, for handlers that take bytes: it only validates, and returns the bytes unchanged."""
    decode = decoder(field, format_name)
    if decode is None:
        return None

    def check(raw: bytes) -> bytes:
        decode(raw)
        return raw

    return check


def _text(field: str) -> Decoder:
    def decode(raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Undecodable(field, "String (UTF-8)", f"{error.reason} at byte {error.start}") from error

    return decode


def _json(field: str) -> Decoder:
    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON value")

    parse = json.JSONDecoder(parse_constant=refuse_constant).decode

    def decode(raw: bytes) -> Any:
        try:
            return parse(raw.decode("utf-8"))
        except json.JSONDecodeError as error:
            raise Undecodable(field, "Json", f"{error.msg} at character {error.pos}") from error
        except UnicodeDecodeError as error:
            raise Undecodable(field, "Json", f"not UTF-8 at byte {error.start}") from error
        except (ValueError, RecursionError) as error:
            # RecursionError: nested deeper than the interpreter's limit. ValueError: NaN, or an integer of more
            # digits than Python converts (a guard against quadratic time).
            raise Undecodable(field, "Json", str(error)) from error

    return decode
