"""Curves of arrivals and of what workers can do: recorded in a CSV file, or written as steps."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RATE_MAX: Final = 1e12
SECONDS_MAX: Final = 86_400.0
POINTS_MAX: Final = 1_000_000
PARTITIONS_MAX: Final = 10_000
PREFIX: Final = "partition_"
NUMBERS: Final = {
    "rate": (0.0, RATE_MAX),
    "capacity": (1e-9, RATE_MAX),
    "record_seconds": (1e-6, SECONDS_MAX),
    "downstream": (0.0, RATE_MAX),
}
"""Least and largest value of each column."""


class CurveInvalid(Exception):
    """A curve cannot be used: the place in it, what is wrong, and what is expected."""

    reason = "CurveInvalid"


@dataclass(frozen=True, slots=True)
class RecordedCurve:
    """Values from times on, in seconds since the beginning; each holds until the next, the last one until `seconds`."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    seconds: float

    def __call__(self, at: float) -> float:
        return self.values[max(bisect_right(self.times, at) - 1, 0)]


@dataclass(frozen=True, slots=True)
class RecordedShares:
    """Parts of the arrivals that go to each partition, from times on; those of a time add up to 1."""

    times: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def __call__(self, at: float) -> Sequence[float]:
        return self.values[max(bisect_right(self.times, at) - 1, 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The columns of a file; None for those that it does not have."""

    arrivals: RecordedCurve
    capacity: RecordedCurve | None = None
    record_s: RecordedCurve | None = None
    downstream: RecordedCurve | None = None
    shares: RecordedShares | None = None


def read_csv(path: Path) -> Recording:
    """The curves of a file with the columns `time` and `rate`, and those of `NUMBERS` and `partition_0` to
    `partition_N` that it has. Times may begin anywhere, as Unix times do; shares are parts of their sum. Raises
    CurveInvalid."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _recording(csv.DictReader(file), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CurveInvalid(f"{path} cannot be read: {error}; give a CSV file in UTF-8") from error


def _recording(rows: csv.DictReader[str], path: str) -> Recording:
    names = tuple(rows.fieldnames or ())
    partitions = _check_names(names, path)
    columns = [name for name in NUMBERS if name in names]
    times, values, shares = list[float](), list[list[float]](), list[tuple[float, ...]]()
    for row in rows:
        place = f"{path}, line {rows.line_num}"
        at = _number(row["time"], f"{place}, time")
        if times and at <= times[-1]:
            raise CurveInvalid(f"{place}: times must rise, but {at:g} follows {times[-1]:g}; sort the lines by time")
        if len(times) >= POINTS_MAX:
            raise CurveInvalid(f"{path} has more than {POINTS_MAX:,} lines; thin it out")
        times.append(at)
        values.append([_value(row, name, place) for name in columns])
        if partitions:
            shares.append(_shares(row, partitions, place))
    if len(times) < 2:
        raise CurveInvalid(f"{path} has {len(times)} lines of data and needs two at least: the last one ends the curve")
    begins, seconds = tuple(at - times[0] for at in times), times[-1] - times[0]
    found = {
        name: RecordedCurve(begins, tuple(line[place] for line in values), seconds)
        for place, name in enumerate(columns)
    }
    return Recording(
        arrivals=found["rate"],
        capacity=found.get("capacity"),
        record_s=found.get("record_seconds"),
        downstream=found.get("downstream"),
        shares=RecordedShares(begins, tuple(shares)) if partitions else None,
    )


def _check_names(names: Sequence[str], path: str) -> int:
    """The number of partitions that have columns."""
    if not {"time", "rate"} <= set(names):
        found = ", ".join(names) or "nothing"
        raise CurveInvalid(f"{path}, line 1: the columns time and rate are missing; it has {found}; name both there")
    numbered = [name for name in names if name.startswith(PREFIX)]
    unknown = [name for name in names if name not in {"time", *NUMBERS, *numbered}]
    if unknown:
        known = ", ".join(("time", *NUMBERS, f"{PREFIX}0"))
        raise CurveInvalid(f"{path}, line 1: the column {unknown[0]!r} is unknown; columns are {known}, …; remove it")
    if len(set(names)) < len(names):
        raise CurveInvalid(f"{path}, line 1: a column is there twice in {', '.join(names)}; remove one of them")
    if numbered and {f"{PREFIX}{number}" for number in range(len(numbered))} != set(numbered):
        raise CurveInvalid(
            f"{path}, line 1: the {len(numbered)} columns of partitions must be numbered from {PREFIX}0 on without a "
            f"gap; it has {', '.join(numbered)}; number them so"
        )
    if len(numbered) > PARTITIONS_MAX:
        raise CurveInvalid(f"{path}, line 1: {len(numbered):,} partitions; give {PARTITIONS_MAX:,} at most")
    return len(numbered)


def _value(row: Mapping[str, str | None], name: str, place: str) -> float:
    value, (least, most) = _number(row[name], f"{place}, {name}"), NUMBERS[name]
    if not least <= value <= most:
        raise CurveInvalid(f"{place}: {name} is {value:g}; give a number from {least:g} to {most:g}")
    return value


def _shares(row: Mapping[str, str | None], partitions: int, place: str) -> tuple[float, ...]:
    names = [f"{PREFIX}{number}" for number in range(partitions)]
    found = [_number(row[name], f"{place}, {name}") for name in names]
    if min(found) < 0.0 or not 0.0 < sum(found) <= RATE_MAX:
        raise CurveInvalid(f"{place}: shares must not be negative, and one must be more than 0; correct the line")
    return tuple(share / sum(found) for share in found)


def parse_steps(text: str) -> RecordedCurve:
    """A curve from steps such as `600:50,900:300`: seconds and records a second of each. Raises CurveInvalid."""
    at, points = 0.0, list[tuple[float, float]]()
    for step in text.split(","):
        seconds, colon, rate = step.partition(":")
        if not colon:
            raise CurveInvalid(f"{step!r} is no step: write seconds:records-per-second, such as 600:50")
        length, value = _number(seconds, f"the step {step!r}"), _number(rate, f"the step {step!r}")
        if length <= 0.0 or not 0.0 <= value <= RATE_MAX:
            raise CurveInvalid(
                f"the step {step!r} lasts {length:g} s with {value:g} records a second; give more than 0 s, and "
                f"a rate from 0 to {RATE_MAX:g}"
            )
        points.append((at, value))
        at += length
    return _curve(points, at)


def _curve(points: Iterable[tuple[float, float]], seconds: float) -> RecordedCurve:
    times, values = zip(*points, strict=True)
    return RecordedCurve(times, values, seconds)


def _number(text: str | None, place: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        found = "nothing" if not text else repr(text)
        raise CurveInvalid(f"{place}: found {found}; give a number")
    return value
