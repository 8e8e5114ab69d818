"""Computes SVG coordinates of plots, and their axes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 160


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: its name, its `pieces` as SVG coordinates, its largest value `most` and its last value.
    Between two pieces, the value is unknown. `last` is None if the value is unknown now."""

    name: str
    pieces: tuple[str, ...]
    most: float
    last: float | None


def step_line(name: str, values: Sequence[tuple[float, float | None]], since: float, until: float, most: float) -> Line:
    """A step line: each value holds until the time of the next value; None means unknown until then. `most` is the
    value at the plot's upper edge."""
    pieces: list[list[tuple[float, float]]] = []
    before: float | None = None
    for (at, value), end in zip(values, [*(at for at, _ in values[1:]), until], strict=True):
        if value is not None:
            if before is None:
                pieces.append([])
            pieces[-1] += [(at, value), (end, value)]
        before = value
    texts = (" ".join(f"{across(at, since, until):.1f},{up(value, most):.1f}" for at, value in each) for each in pieces)
    known = [value for _, value in values if value is not None]
    return Line(name, tuple(texts), max(known, default=0.0), before)


def across(at: float, since: float, until: float) -> float:
    """The horizontal SVG coordinate of a time, between 0 and WIDTH."""
    span = until - since
    return min(max((at - since) / span, 0.0), 1.0) * WIDTH if span > 0 else 0.0


def up(value: float, most: float) -> float:
    """The vertical SVG coordinate of a value, measured from the upper edge."""
    return HEIGHT - min(max(value / most, 0.0), 1.0) * HEIGHT if most > 0 else float(HEIGHT)


def upper_edge(values: Iterable[float]) -> float:
    """The upper end of an axis: the smallest of 1, 2, 5, 10, 20, 50 … that is at least the largest value."""
    most, edge = max(values, default=0.0), 1.0
    for factor in (2.0, 2.5, 2.0) * 20:
        if edge >= most:
            break
        edge *= factor
    return edge
