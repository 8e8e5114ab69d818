"""The outcome of a simulation: the steps of each rule, its figures beside the others', and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.simulate.run import Figures


class PlotUnavailableError(Exception):
    """A plot was asked for, and matplotlib is not installed."""

    reason = "PlotUnavailable"


def lines(found: Sequence[Figures]) -> Iterator[str]:
    """The outcome as text."""
    for figures in found:
        yield f"{figures.rule}: {len(figures.steps)} steps"
        for step in figures.steps:
            yield f"  {_clock(step.at)}  {step.before:>3} -> {step.after:<3}  {step.reason}"
        yield ""
    head = ("rule", "steps", "reversals", "rebalances", "lag-seconds", "pod-seconds", "late", "most lag", "most pods")
    rows = [head, *(_row(figures) for figures in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join((row[0].ljust(len(first)), *others))


def _row(figures: Figures) -> tuple[str, ...]:
    return (
        figures.rule,
        str(len(figures.steps)),
        str(figures.reversals),
        str(figures.rebalances),
        f"{figures.lag_seconds:,.0f}",
        f"{figures.pod_seconds:,.0f}",
        f"{figures.late_seconds:,.0f} s",
        f"{figures.most_lag:,.0f}",
        str(figures.most_pods),
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def as_json(found: Sequence[Figures]) -> str:
    """The outcome for programs."""
    return json.dumps({figures.rule: _document(figures) for figures in found}, indent=1)


def _document(figures: Figures) -> dict[str, Any]:
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
    }


def plot(found: Sequence[Figures], path: Path, title: str) -> None:
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
            for figures in found if place else found[:1]:
                minutes = [point[0] / 60 for point in figures.series]
                values = [point[place + 1] for point in figures.series]
                label = figures.rule if place else None
                axes[place].plot(minutes, values, drawstyle="steps-post", label=label, linewidth=1.4)
            axes[place].set_ylabel(name)
            axes[place].set_ylim(bottom=0)
        axes[1].legend(loc="upper right")
        axes[2].set_xlabel("minutes")
        figure.suptitle(title)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)
