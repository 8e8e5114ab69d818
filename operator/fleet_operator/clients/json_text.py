"""Reads and writes the JSON of Kubernetes objects with orjson, or with the standard library for values that orjson
refuses.

orjson refuses lone surrogates, and deep nesting that the API server accepts. Anybody may create an object with such
values, and a single such object must not make a whole list unreadable. The choice of the library depends only on the
value, so equal values have equal digests. An integer beyond 64 bits is read as the nearest float, as in the API server.

Decision: docs/decisions/0048-thousands-of-groups.md.
"""

import json
from typing import Any

import orjson


def loads(text: bytes) -> Any:
    """Parse a JSON text. Raises ValueError and RecursionError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def dumps(value: Any) -> bytes:
    """Encode a value as JSON. Raises TypeError for a value that JSON cannot represent, and RecursionError."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value).encode()


def packed(value: Any) -> bytes:
    """Like `dumps`, for text that is kept in memory. Returns a copy, because orjson's buffer is several times as long
    as the text."""
    return bytes(memoryview(dumps(value)))


def canonical(value: Any) -> bytes:
    """The JSON text of a value with sorted keys; equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
