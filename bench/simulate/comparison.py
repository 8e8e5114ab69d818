"""All rules over one curve, and the verdict on each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.simulate.cases import Case
from bench.simulate.flink import FlinkRule
from bench.simulate.keda import DEFAULT_THRESHOLD, KedaRule
from bench.simulate.oracle import best_plan
from bench.simulate.rules import FleetRule, Rule
from bench.simulate.run import Figures, simulate
from fleet_operator.api.v1alpha1.consumergroup import Scaling

WORK_S: Final = 10.0
"""Seconds of one worker's work that the second lag threshold stands for."""
ACCEPTABLE_S: Final = 60.0
BOUNDED: Final = "bounded"
UNBOUNDED: Final = "UNBOUNDED"
HELPLESS: Final = "no number helps"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of all rules over a curve, those of the oracle last."""

    case: Case
    figures: tuple[Figures, ...]

    def verdict(self, figures: Figures) -> str:
        """The word for the lag: it is without a bound if it still rises at the end, and the oracle's does not."""
        if not figures.rises:
            return BOUNDED
        return HELPLESS if self.figures[-1].rises else UNBOUNDED


def compare(case: Case, threshold: int | None = None) -> Comparison:
    """Run all rules. `threshold` replaces that of ten seconds of work."""
    scaling = Scaling.model_validate(dict(case.spec))
    least, most = scaling.min_replicas, min(scaling.max_replicas or case.world.partitions, case.world.partitions)
    if least > most:
        raise ValueError(f"--min-replicas: {least} is more than the {most} workers that can have a partition")
    start, acceptable_s = max(case.start, least), float(scaling.max_lag_seconds or ACCEPTABLE_S)
    figures = [
        simulate(rule, case.world, seconds=case.seconds, start=start, acceptable_s=acceptable_s)
        for rule in _rules(case, scaling, threshold, (least, most))
    ]
    oracle = best_plan(case.world, seconds=case.seconds, start=start, least=least, most=most, acceptable_s=acceptable_s)
    return Comparison(case, (*figures, oracle))


def _rules(case: Case, scaling: Scaling, threshold: int | None, bounds: tuple[int, int]) -> Iterator[Rule]:
    work = threshold or max(1, round(WORK_S * case.world.pace(0.0)))
    yield FleetRule(scaling)
    for each in dict.fromkeys((work, DEFAULT_THRESHOLD)):
        yield KedaRule(each, *bounds)
    yield FlinkRule(*bounds)
