"""Scaling rules on all built-in curves of the simulator: `python -m bench --only scaling-rules`.

No clock and no cluster: the same code and the same seed give the same figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.report import ROOT, Load, recorded, write
from bench.simulate.cases import SEED, Case, all_cases
from bench.simulate.comparison import UNBOUNDED, Comparison, compare
from bench.simulate.page import plot
from bench.simulate.run import Figures

NAME: Final = "scaling_rules"
SAME_PODS: Final = 0.05
"""Largest relative difference of pod-seconds at which the lag of two rules is compared."""
EQUAL: Final = 0.01
"""Relative difference up to which figures count as equal: a poll one second earlier is not a better rule."""
PLOTS: Final = {
    "step": "step.svg",
    "a1-warm-partition": "skew.svg",
    "slow-30-s": "slow.svg",
    "database-at-its-limit": "downstream.svg",
    "shop": "shop.svg",
}
"""Cases plotted in docs/scaling.md, and their files."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A case, and the published rules with which the fleet's rule is compared."""

    case: Case
    found: Comparison

    @property
    def fleet(self) -> Figures:
        return self.found.figures[0]

    @property
    def published(self) -> tuple[Figures, ...]:
        """Figures of KEDA at both thresholds, and of Flink."""
        return self.found.figures[1:-1]

    @property
    def peers(self) -> tuple[Figures, ...]:
        """The published rules with about the same pod-seconds."""
        most = SAME_PODS * self.fleet.pod_seconds
        return tuple(each for each in self.published if abs(each.pod_seconds - self.fleet.pod_seconds) <= most)

    @property
    def worse_than(self) -> tuple[Figures, ...]:
        """The peers with less lag or fewer rebalances than the fleet's rule."""
        return tuple(
            each
            for each in self.peers
            if _is_less(each.lag_seconds, self.fleet.lag_seconds) or each.rebalances < self.fleet.rebalances
        )

    @property
    def beaten_by(self) -> tuple[Figures, ...]:
        """Published rules with less lag for at most as many pod-seconds."""
        most = (1.0 + EQUAL) * self.fleet.pod_seconds
        return tuple(
            each
            for each in self.published
            if each.pod_seconds <= most and _is_less(each.lag_seconds, self.fleet.lag_seconds)
        )


def _is_less(one: float, other: float) -> bool:
    return one < other * (1.0 - EQUAL)


def page(judged: Sequence[Judged], seed: int) -> Iterator[str]:
    """Lines of the page: cases in which we are worse, then all figures."""
    yield "# Rules of scaling over curves"
    yield ""
    yield f"{len(judged)} curves on the simulator's model of a group (`python -m bench.simulate`), seed {seed}."
    yield "`fleet` is the operator's own planner; `keda` an HPA that follows KEDA's lag metric, with a lagThreshold of"
    yield "ten seconds of a worker's work and with KEDA's default, 10; `flink` the rule of Flink's autoscaler; `oracle`"
    yield "the least fleet for somebody who knows the curve in advance. Each cell has lag-seconds, pod-seconds, and"
    yield "rebalances."
    yield ""
    yield "## Where the fleet's rule is worse"
    yield ""
    unbounded = [each.case.name for each in judged if each.found.verdict(each.fleet) == UNBOUNDED]
    measured = [each for each in judged if each.peers]
    behind = [each for each in measured if each.worse_than]
    yield f"- Lag without a bound where the oracle has none: {', '.join(unbounded) or 'on no curve'}."
    yield (
        f"- On {len(measured)} curves a published rule uses the same pod-seconds (±{SAME_PODS:.0%}). On {len(behind)} "
        f"of them one has less lag or fewer rebalances{':' if behind else '.'}"
    )
    for each in behind:
        yield from (f"  - {each.case.name}: {_against(each.fleet, other)}" for other in each.worse_than)
    beaten = [each for each in judged if each.beaten_by]
    yield (
        f"- On {len(beaten)} of {len(judged)} curves a published rule has less lag for no more "
        f"pod-seconds{':' if beaten else '.'}"
    )
    for each in beaten:
        yield from (f"  - {each.case.name}: {_against(each.fleet, other)}" for other in each.beaten_by)
    for group in dict.fromkeys(each.case.group for each in judged):
        yield ""
        yield f"## {group.capitalize()}"
        yield ""
        yield "| curve | fleet | keda, 10 s of work | keda, 10 | flink | oracle |"
        yield "|---|---:|---:|---:|---:|---:|"
        for each in (each for each in judged if each.case.group == group):
            yield f"| {each.case.name}: {each.case.shows} | {' | '.join(_cells(each))} |"


def _cells(judged: Judged) -> list[str]:
    """The cells of a row; KEDA has one result for both thresholds if ten seconds of work are ten records."""
    figures = list(judged.found.figures)
    if len(figures) == 4:
        figures.insert(2, figures[1])
    return [
        f"{each.lag_seconds / 1000:,.0f} k, {each.pod_seconds / 1000:,.1f} k, {each.rebalances}"
        + (", **unbounded**" if judged.found.verdict(each) == UNBOUNDED else "")
        for each in figures
    ]


def _against(fleet: Figures, other: Figures) -> str:
    return (
        f"{fleet.lag_seconds:,.0f} lag-seconds, {fleet.pod_seconds:,.0f} pod-seconds and {fleet.rebalances} rebalances "
        f"against {other.lag_seconds:,.0f}, {other.pod_seconds:,.0f} and {other.rebalances} of {other.rule}"
    )


def _figures(each: Figures) -> dict[str, Any]:
    return {
        "lag_seconds": round(each.lag_seconds),
        "pod_seconds": round(each.pod_seconds),
        "rebalances": each.rebalances,
        "most_lag": round(each.most_lag),
        "last_lag": round(each.last_lag),
        "most_pods": each.most_pods,
    }


def main() -> int:
    """Run all cases, and write the page, the figures and the plots of docs/scaling.md."""
    load, judged = Load(), list[Judged]()
    for case in all_cases(SEED):
        print(f"  {case.name}", file=sys.stderr, flush=True)
        judged.append(Judged(case, compare(case)))
    folder: Path = ROOT / "docs" / "scaling"
    for each in judged:
        if each.case.name in PLOTS:
            plot(each.found, folder / PLOTS[each.case.name])
    cases = {
        each.case.name: {
            "verdict": each.found.verdict(each.fleet),
            **{figures.rule: _figures(figures) for figures in each.found.figures},
        }
        for each in judged
    }
    write(recorded(NAME, {"seed": SEED, "cases": cases}, load), list(page(judged, SEED)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
