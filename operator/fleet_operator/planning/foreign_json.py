"""Reader of untrusted JSON that raises no exception other than ValueError.

Annotations, ConfigMaps, commit metadata and workers' answers may be any string. Python's reader accepts more than JSON
(NaN, Infinity, 1e999), which no status can hold, and raises RecursionError for deep nesting.
"""

import json
import math
from collections.abc import Mapping
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Parse a JSON string. Raises ValueError if it is not valid JSON."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def read_object(text: Any) -> dict[str, Any] | None:
    """The JSON object in a string; None if the string is unreadable or contains no object."""
    try:
        value = read_json(text or "")
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_last_object(text: str) -> dict[str, Any] | None:
    """The JSON object in the last non-blank line of a string; None without one."""
    lines = [line for line in text.splitlines() if line.strip()]
    return read_object(lines[-1]) if lines else None


def read_count(found: Mapping[str, Any], key: str) -> int:
    """A non-negative integer field of an object; 0 for anything else."""
    value = found.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not valid JSON")
