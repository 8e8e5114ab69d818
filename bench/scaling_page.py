"""The page and the plot of the scaling benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl

from bench.report import RESULTS

mpl.use("svg")

from matplotlib import pyplot as plt

PLOT: Final = "scaling.svg"
OWN: Final = "spec.scaling"
PEER: Final = "KEDA"
GOAL_S: Final = 25.0
FORMER_S: Final = 42.0
"""The time of the previous rules in the case `step`."""
MEASURES: Final = {
    "lag_seconds": "lag-seconds",
    "worst_lag": "worst lag",
    "longest_wait_s": "longest wait of a record, s",
    "pod_seconds": "pod-seconds",
    "rebalances": "rebalances",
    "answer_s": "first record of a new worker, s",
}
"""Compared figures; less is better."""
SHOWN: Final = MEASURES | {
    "drained_s": "lag is back, s",
    "most_pods": "most workers",
    "last_pods": "workers at the end",
    "last_lag": "lag at the end",
}
ABOUT: Final = (
    f"`{OWN}` and KEDA size the same workers one after the other in one cluster, under the same curve. In each case",
    "the load steps up once; the way down is not measured. A rebalance is a time without Stable, or with other",
    "members; those less than 10 s apart are one. The longest wait of a record is from its arrival to its handler.",
    "The time to a new worker's first record begins when the first late record arrives, one that waits for a second",
    "longer than a record takes. The lag is back when no more waits than arrives in ten seconds, until the end.",
)
NEVER: Final = "not within the run"


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both sides in a case; None if that was not reached."""

    case: str
    measure: str
    own: float | None
    peer: float | None

    @property
    def ratio(self) -> float:
        """Ratio of ours to KEDA's; infinite if only KEDA reached it."""
        if self.own == self.peer:
            return 1.0
        if self.own is None or self.peer == 0:
            return float("inf")
        return 0.0 if self.peer is None else self.own / self.peer

    def line(self) -> str:
        factor = f" (×{self.ratio:.2f})" if 0.0 < self.ratio < float("inf") else ""
        return f"- `{self.case}`: {MEASURES[self.measure]}: {_number(self.own)}, {PEER} {_number(self.peer)}{factor}"


def differences(figures: Mapping[str, Any]) -> list[Difference]:
    """All figures of all cases, ours with the worst ratio first."""
    found = [
        Difference(case["name"], measure, case["sides"][OWN][measure], case["sides"][PEER][measure])
        for case in figures["cases"]
        for measure in MEASURES
    ]
    return sorted(found, key=lambda each: -each.ratio)


def page(figures: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the page: figures in which KEDA is better, figures in which we are, and the cases."""
    compared = differences(figures)
    yield "# Scaling under load, compared with KEDA and an HPA"
    yield ""
    yield from ABOUT
    yield f"20 million additions in a Python function take {figures['additions_s']:.2f} s on this machine."
    yield ""
    yield f"## Worse than {PEER}"
    yield ""
    yield from _goal(figures, missed=True)
    yield from [each.line() for each in compared if each.ratio > 1.0] or ["- Nothing that is compared."]
    yield ""
    yield f"## As good as {PEER}, or better"
    yield ""
    yield from _goal(figures, missed=False)
    yield from [each.line() for each in reversed(compared) if each.ratio <= 1.0] or ["- Nothing that is compared."]
    for case in figures["cases"]:
        yield ""
        yield from _case(case)
    yield ""
    yield f"![lag and workers]({PLOT})"


def _goal(figures: Mapping[str, Any], *, missed: bool) -> Iterator[str]:
    """The line about the goal of the step, if it is missed, or with `missed` False if it is met."""
    for case in figures["cases"]:
        if case["name"] == "step":
            answer = case["sides"][OWN]["answer_s"]
            if (answer is None or answer > GOAL_S) is missed:
                word = "missed" if missed else "met"
                yield (
                    f"- `step`: the goal of {GOAL_S:.0f} s to a new worker's first record is {word}: "
                    f"{_number(answer)}; the former rules took {FORMER_S:.0f}"
                )


def _case(case: Mapping[str, Any]) -> Iterator[str]:
    (calm, calm_s), (stepped, stepped_s) = case["stretches"]
    yield f"## {case['name']}: {case['title']}"
    yield ""
    yield (
        f"{calm:g} records a second for {calm_s:g} s, then {stepped:g} for {stepped_s:g} s, in {case['partitions']} "
        f"partitions. A record takes its worker {case['per_record_s']:g} s, so {case['busy_workers']:.1f} workers are "
        f"busy after the step. `lagThreshold` is {case['threshold']}."
    )
    yield ""
    yield f"| | {OWN} | {PEER} |"
    yield "|---|---:|---:|"
    for measure, title in SHOWN.items():
        own, peer = (_number(case["sides"][side][measure]) for side in (OWN, PEER))
        yield f"| {title} | {own} | {peer} |"


def _number(value: float | None) -> str:
    if value is None:
        return NEVER
    return f"{value:,}"


def draw(figures: Mapping[str, Any]) -> None:
    """Plot lag and workers of both sides over time, one column per case, and write the plot to the results."""
    cases = figures["cases"]
    size = (4 * len(cases), 5)
    figure, axes = plt.subplots(2, len(cases), figsize=size, sharex="col", squeeze=False, constrained_layout=True)
    for column, case in enumerate(cases):
        for row, name in enumerate(("lag", "pods")):
            for side, run in case["sides"].items():
                seconds, values = zip(*run["series"][name], strict=True)
                axes[row][column].plot(seconds, values, label=side, drawstyle="steps-post", linewidth=1.3)
            axes[row][column].set_ylim(bottom=0)
        axes[0][column].set_title(case["name"])
        axes[1][column].set_xlabel("seconds")
    axes[0][0].set_ylabel("records that wait")
    axes[1][0].set_ylabel("workers")
    axes[0][0].legend(loc="upper left")
    figure.savefig(RESULTS / PLOT, metadata={"Date": None})
    plt.close(figure)
