"""Formats workers' logs for reading: lines merged by time, JSON as plain text. Pure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from fleet_kubectl.tables import printable

HEAD: Final = ("time", "level", "logger", "message")
LONG: Final = ("exception", "stackInfo")


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A log line. Lines of several pods are merged by `stamp`, the kubelet's time."""

    stamp: str
    pod: str
    text: str


def line_of(pod: str, raw: str) -> Line:
    """Parse a line that the API returned with `timestamps=true`: the time (RFC 3339 with nanoseconds), a space, the
    text."""
    stamp, _, text = raw.partition(" ")
    return Line(_sortable(stamp), pod, text)


def _sortable(stamp: str) -> str:
    """Pad the time's fraction to nine digits, because the kubelet omits trailing zeros."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return f"{whole}.{fraction:0<9}Z"


def merged(lines: Iterable[Line]) -> list[Line]:
    """Sort lines of several pods by time. Lines with equal times keep their order, because the sort is stable."""
    return sorted(lines, key=lambda line: line.stamp)


def shown(line: Line, pod_width: int) -> list[str]:
    """The lines to print for a log line: time of day, pod, level, message and fields; then a traceback, indented."""
    head = f"{line.stamp[11:23]} {line.pod:<{pod_width}}"
    try:
        said: Any = json.loads(line.text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or "message" not in said:
        return [f"{head} {printable(line.text)}"]
    level = printable(str(said.get("level", ""))).upper()
    rest = " ".join(
        f"{printable(str(name))}={_value(value)}"
        for name, value in said.items()
        if name not in HEAD and name not in LONG
    )
    first = f"{head} {level:<7} {printable(str(said['message']))}" + (f"  {rest}" if rest else "")
    return [first, *(f"    {printable(each)}" for name in LONG if name in said for each in str(said[name]).split("\n"))]


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    safe = printable(text)
    return json.dumps(safe, ensure_ascii=False) if " " in safe or not safe else safe
