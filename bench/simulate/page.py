"""The outcome of simulations: a table of all rules, the steps of each, JSON, and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.simulate.cases import Case
from bench.simulate.comparison import Comparison
from bench.simulate.run import Figures

HEAD: Final = (
    *("rule", "lag-seconds", "most lag", "last lag", "late", "pod-seconds", "most pods"),
    *("steps", "reversals", "rebalances", "lag is"),
)
POINTS_MOST: Final = 400
"""Points of a line in a plot; more cannot be told apart."""


class PlotUnavailableError(Exception):
    """A plot was asked for, and matplotlib is not installed."""

    reason = "PlotUnavailable"


def case_list(cases: Sequence[Case]) -> Iterator[str]:
    """All built-in cases by group."""
    width = max(len(case.name) for case in cases)
    group = ""
    for case in cases:
        if case.group != group:
            group = case.group
            yield f"{group}:"
        yield f"  {case.name.ljust(width)}  {case.shows}"


def lines(found: Sequence[Comparison], *, seed: int, steps: bool) -> Iterator[str]:
    """The outcome as text."""
    for place, comparison in enumerate(found):
        if place:
            yield ""
        yield from _heading(comparison.case, seed)
        if steps:
            for figures in comparison.figures:
                yield f"{figures.rule}:"
                for step in figures.steps:
                    yield f"  {_clock(step.at)}  {step.before:>3} -> {step.after:<3}  {step.reason}"
        rows = [HEAD, *(_row(comparison, figures) for figures in comparison.figures)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        for row in rows:
            name, *numbers, verdict = row
            cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
            yield "  ".join((name.ljust(widths[0]), *cells, verdict))


def _heading(case: Case, seed: int) -> Iterator[str]:
    world = case.world
    yield f"{case.name}: {case.shows}"
    yield (
        f"{case.seconds:g} s from {case.start} workers, {world.partitions} partitions, {world.assignor}, polls each "
        f"{world.poll_s:g} s, commits each {world.commit_s:g} s, seed {seed}"
    )


def _row(comparison: Comparison, figures: Figures) -> tuple[str, ...]:
    return (
        figures.rule,
        f"{figures.lag_seconds:,.0f}",
        f"{figures.most_lag:,.0f}",
        f"{figures.last_lag:,.0f}",
        f"{figures.late_seconds:,.0f} s",
        f"{figures.pod_seconds:,.0f}",
        str(figures.most_pods),
        str(len(figures.steps)),
        str(figures.reversals),
        str(figures.rebalances),
        comparison.verdict(figures),
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def as_json(found: Sequence[Comparison], *, seed: int) -> str:
    """The outcome for programs."""
    return json.dumps({"seed": seed, "cases": [_document(comparison) for comparison in found]}, indent=1)


def _document(comparison: Comparison) -> dict[str, Any]:
    case, world = comparison.case, comparison.case.world
    return {
        "name": case.name,
        "shows": case.shows,
        "seconds": case.seconds,
        "start": case.start,
        "scaling": dict(case.spec),
        "partitions": world.partitions,
        "assignor": world.assignor,
        "pollSeconds": world.poll_s,
        "commitSeconds": world.commit_s,
        "rules": {figures.rule: _figures(comparison, figures) for figures in comparison.figures},
    }


def _figures(comparison: Comparison, figures: Figures) -> dict[str, Any]:
    return {
        "steps": [
            {"second": step.at, "from": step.before, "to": step.after, "reason": step.reason} for step in figures.steps
        ],
        "reversals": figures.reversals,
        "rebalances": figures.rebalances,
        "lagSeconds": round(figures.lag_seconds),
        "podSeconds": round(figures.pod_seconds),
        "lateSeconds": round(figures.late_seconds),
        "mostLag": round(figures.most_lag),
        "lastLag": round(figures.last_lag),
        "mostPods": figures.most_pods,
        "verdict": comparison.verdict(figures),
    }


def plot(found: Comparison, path: Path) -> None:
    """Draw arrivals, lag and workers into a file, whose ending names its format. Raises PlotUnavailableError."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise PlotUnavailableError("--plot needs matplotlib: install it with pip install matplotlib") from None
    mpl.use("agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "simulate"}):
        figure, axes = plt.subplots(3, 1, figsize=(9, 6.5), sharex=True, constrained_layout=True)
        for place, name in enumerate(("records/s", "lag", "workers")):
            for figures in found.figures if place else found.figures[:1]:
                minutes, values = _line(figures, place + 1)
                label = figures.rule if place else None
                axes[place].plot(minutes, values, drawstyle="steps-post", label=label, linewidth=1.4)
            axes[place].set_ylabel(name)
            axes[place].set_ylim(bottom=0)
        axes[1].legend(loc="upper right")
        axes[2].set_xlabel("minutes")
        figure.suptitle(f"{found.case.name}: {found.case.world.partitions} partitions")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _line(figures: Figures, column: int) -> tuple[list[float], list[float]]:
    """A line of the plot: each point stands for a stretch of time and has the largest value of it."""
    series, length = figures.series, -(-len(figures.series) // POINTS_MOST)
    stretches = [series[begin : begin + length] for begin in range(0, len(series), length)]
    return [each[0][0] / 60 for each in stretches], [max(point[column] for point in each) for each in stretches]
