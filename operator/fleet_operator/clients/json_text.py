"""JSON of the API server's objects: quickly, and in the rare cases that the quick library refuses, slowly.

orjson refuses half surrogate pairs, and nesting that the API server still stores. Anybody may write such an object, and
it must not keep the others of its list from being read.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError and RecursionError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def dumps(value: Any) -> bytes:
    """The JSON text of a value. Raises TypeError for what is no JSON, and RecursionError."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value).encode()


def packed(value: Any) -> bytes:
    """As `dumps`, for a text that is kept. orjson's own has the whole buffer that it was written into, several times
    its length."""
    return bytes(memoryview(dumps(value)))


def canonical(value: Any) -> bytes:
    """The JSON text of a value with sorted names: equal for equal JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
