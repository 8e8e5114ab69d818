"""Curves of arrivals: recorded in a CSV file, or written as steps."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RATE_MAX: Final = 1e12
POINTS_MAX: Final = 1_000_000


class CurveInvalid(Exception):
    """A curve cannot be used: the place in it, what is wrong, and what is expected."""

    reason = "CurveInvalid"


@dataclass(frozen=True, slots=True)
class RecordedCurve:
    """Rates from times on, in seconds since the beginning; each holds until the next, the last one until `seconds`."""

    times: tuple[float, ...]
    rates: tuple[float, ...]
    seconds: float

    def __call__(self, at: float) -> float:
        return self.rates[max(bisect_right(self.times, at) - 1, 0)]


def read_csv(path: Path) -> RecordedCurve:
    """A curve from a file with the columns `seconds` and `records_per_second`; times may begin anywhere, as Unix times
    do. Raises CurveInvalid."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _points(csv.DictReader(file), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CurveInvalid(f"{path} cannot be read: {error}") from error


def _points(rows: csv.DictReader[str], path: str) -> RecordedCurve:
    names = rows.fieldnames or ()
    if not {"seconds", "records_per_second"} <= set(names):
        found = ", ".join(names) or "none"
        raise CurveInvalid(
            f"{path}: the first line must name the columns seconds and records_per_second; it has {found}"
        )
    points = list[tuple[float, float]]()
    for number, row in enumerate(rows, start=2):
        at, rate = (_number(row[name], f"{path}, line {number}, {name}") for name in ("seconds", "records_per_second"))
        if rate < 0.0 or rate > RATE_MAX:
            raise CurveInvalid(f"{path}, line {number}: {rate:g} records a second is no rate")
        if points and at <= points[-1][0]:
            raise CurveInvalid(f"{path}, line {number}: times must rise; {at:g} follows {points[-1][0]:g}")
        if len(points) >= POINTS_MAX:
            raise CurveInvalid(f"{path} has more than {POINTS_MAX:,} lines: thin it out")
        points.append((at, rate))
    if len(points) < 2:
        raise CurveInvalid(f"{path} needs two lines at least: the last one ends the curve")
    return _curve(points)


def _curve(points: Iterable[tuple[float, float]]) -> RecordedCurve:
    times, rates = zip(*points, strict=True)
    return RecordedCurve(tuple(at - times[0] for at in times), rates, times[-1] - times[0])


def parse_steps(text: str) -> RecordedCurve:
    """A curve from steps such as `600:50,900:300`: seconds and records a second of each. Raises CurveInvalid."""
    at, points = 0.0, list[tuple[float, float]]()
    for step in text.split(","):
        seconds, colon, rate = step.partition(":")
        if not colon:
            raise CurveInvalid(f"{step!r} is no step: write seconds:records-per-second, such as 600:50")
        length, value = _number(seconds, f"the step {step!r}"), _number(rate, f"the step {step!r}")
        if length <= 0.0 or not 0.0 <= value <= RATE_MAX:
            raise CurveInvalid(f"{step!r} is no step: it lasts {length:g} s with {value:g} records a second")
        points.append((at, value))
        at += length
    return RecordedCurve(tuple(at for at, _ in points), tuple(rate for _, rate in points), at)


def _number(text: str | None, place: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise CurveInvalid(f"{place}: {text!r} is no number") from None
    if not math.isfinite(value):
        raise CurveInvalid(f"{place}: {text!r} is no number")
    return value
