"""The page and the plot of the scaling benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import matplotlib as mpl

from bench.report import RESULTS

mpl.use("svg")

from matplotlib import pyplot as plt

PLOT: Final = "scaling.svg"


def draw(figures: Mapping[str, Any]) -> None:
    """Draw lag and workers of each group over time, into the results."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, constrained_layout=True)
    for run in figures["runs"]:
        for axis, name in ((above, "lag"), (below, "pods")):
            points = run["series"][name]
            minutes, values = [at / 60 for at, _ in points], [value for _, value in points]
            axis.plot(minutes, values, label=run["title"], drawstyle="steps-post", linewidth=1.3)
    for axis, title in ((above, "records that wait"), (below, "workers")):
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
    above.legend(loc="upper right")
    below.set_xlabel("minutes")
    figure.savefig(RESULTS / PLOT, metadata={"Date": None})
    plt.close(figure)


def page(figures: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    rate, curve = figures["base_rate"], figures["curve"]
    steps = ", ".join(f"×{multiple:g} for {seconds:g} s" for multiple, seconds in curve)
    steps += " (with noise: the rate of each five seconds varies by a third)"
    yield "# Scaling under load steps, beside KEDA with an HPA"
    yield ""
    yield f"Three groups of {figures['partitions']} partitions in one cluster, at the same time, under the same curve:"
    yield f"{steps}, of {rate:g} records a second. A record takes its worker {figures['per_record_s'] * 1000:.0f} ms."
    yield "An episode is a time without Stable, or with other members; those less than 10 s apart are one. The lag is"
    yield "back when no more waits than arrives in ten seconds, for the rest of the stretch. 20 million additions in a"
    yield f"Python function take {figures['additions_s']:.2f} s on this machine."
    yield ""
    yield "| | rebalance episodes | generations | lag-seconds | pod-seconds | most lag | most workers |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for run in figures["runs"]:
        generations = sum(part["generations"] for part in run["parts"])
        yield (
            f"| {run['title']} | {run['episodes']} | {generations} | {run['lag_seconds']:,} | {run['pod_seconds']:,} | "
            f"{run['most_lag']:,} | {run['most_pods']} |"
        )
    yield ""
    yield "| | stretch | episodes | generations | changes of workers | reversals | lag is back | workers at its end |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for run in figures["runs"]:
        for part in run["parts"]:
            back = "not within it" if part["drained_s"] is None else f"{part['drained_s']:.0f} s"
            yield (
                f"| {run['title']} | ×{part['multiple']:g} | {part['episodes']} | {part['generations']} | "
                f"{part['steps']} | {part['reversals']} | {back} | {part['last_pods']} |"
            )
    yield ""
    yield f"![lag and workers]({PLOT})"
