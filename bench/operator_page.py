"""The page and the plot of the operator's benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl

from bench.report import RESULTS

mpl.use("svg")

from matplotlib import pyplot as plt

REFERENCE_S: Final = 1.2
"""Seconds of 20 million additions on the reference machine of the targets."""
PLOT: Final = "operator.svg"

Sizes = Sequence[Mapping[str, Any]]


def draw(sizes: Sizes) -> None:
    """Plot CPU time, memory, requests and writes by size, and write the plot to the results."""
    counts = [each["groups"] for each in sizes]
    panels = {
        "CPU to all children (s)": [each["children_cpu_s"] for each in sizes],
        "memory, peak (MiB)": [each["peak_mib"] for each in sizes],
        "requests to all children": [each["children_requests"] for each in sizes],
        "writes to all children": [each["children_writes"] for each in sizes],
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3), constrained_layout=True)
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        axis.plot(counts, values, marker="o")
        axis.set_title(title)
        axis.set_xlabel("groups")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    figure.savefig(RESULTS / PLOT, metadata={"Date": None})
    plt.close(figure)


def _groups(figures: Mapping[str, Any]) -> str:
    return f"{figures['groups']:,}{', scaled' if figures['scaled'] else ''}"


def _own_status(figures: Mapping[str, Any]) -> str:
    """Times from creation to status; older recorded sizes have none."""
    if "own_status_p99_s" not in figures:
        return "not measured"
    return f"{figures['own_status_p50_s']:.1f} s, {figures['own_status_p99_s']:.1f} s"


def page(sizes: Sizes) -> Iterator[str]:
    yield "# The operator with many ConsumerGroups"
    yield ""
    yield "A third of the groups has retries, one worker each; scaled ones have `spec.scaling`, within one worker. API"
    yield "server, etcd, broker, and the stand-ins for kubelets, controllers and members share the machine with the"
    yield "operator; CPU and memory are those of the operator alone."
    yield f"In brackets CPU times of a machine where 20 million additions in a Python function take {REFERENCE_S} s."
    yield ""
    yield "First statuses: until each group has one, since the first was created; own status: from the creation of a"
    yield "group to its own first status, the p50 and the p99."
    yield ""
    yield (
        "| groups | additions | first statuses | own status p50, p99 | all children | CPU | requests | "
        "for each group | writes | statuses | peak |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for each in sizes:
        factor = REFERENCE_S / each["additions_s"]
        yield (
            f"| {_groups(each)} | {each['additions_s']:.2f} s | {each['first_status_s']:.0f} s | "
            f"{_own_status(each)} | {each['children_s']:.0f} s | "
            f"{each['children_cpu_s']:.0f} s ({each['children_cpu_s'] * factor:.0f} s) | "
            f"{each['children_requests']:,.0f} | {each['children_requests'] / each['groups']:.1f} | "
            f"{each['children_writes']:,.0f} | "
            f"{each['children_status_writes']:,.0f} | {each['peak_mib']} MiB |"
        )
    yield ""
    yield "| groups | | cores | memory | requests/s | writes | statuses/s | decision age p99 |"
    yield "|---:|---|---:|---:|---:|---:|---:|---:|"
    for each in sizes:
        factor = REFERENCE_S / each["additions_s"]
        for name, title in (("moving", "commits move"), ("idle", "nothing moves")):
            of = each[name]
            yield (
                f"| {_groups(each)} | {title} | {of['cores']:.3f} ({of['cores'] * factor:.2f}) | "
                f"{of['rss_mib']:.0f} MiB | {of['requests_per_s']:.1f} | {of['writes']:.0f} | "
                f"{of['status_writes_per_s']:.1f} | ≤ {of['decision_age_p99_s']} s |"
            )
    yield ""
    yield "| groups | restart: works | at rest | CPU | requests | writes | peak |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for each in sizes:
        of = each["restart"]
        yield (
            f"| {_groups(each)} | {of['ready_s']:.1f} s | {of['settled_s']:.0f} s | {of['cpu_s']:.1f} s | "
            f"{of['requests']:,.0f} | {of['writes']:,.0f} | {of['peak_mib']:.0f} MiB |"
        )
    yield ""
    yield f"![growth]({PLOT})"
