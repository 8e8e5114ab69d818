"""Rules that choose the number of workers, and that of this operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from bench.simulate.dealing import TOPIC
from bench.simulate.sight import Sight
from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.lag import group_lag
from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.scaling.schedules import bounds_at
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.work import RecordInHand, WorkObservation

REPORTS_S: Final = 10.0
"""Interval in which the operator reads the pages of workers for which records wait."""


class Choice(NamedTuple):
    """A number of workers, and the reason where it is another one than before."""

    workers: int
    reason: str = ""


class Rule(Protocol):
    """A rule. `choose` is called each second; `sight.pods` is the number that it chose last."""

    @property
    def name(self) -> str: ...

    def choose(self, sight: Sight) -> Choice: ...


@dataclass(slots=True)
class FleetRule:
    """The planner of this operator, which decides at each poll."""

    scaling: Scaling
    name: str = "fleet"
    decisions: list[tuple[float, ScaleDecision]] = field(default_factory=list)
    _memory: SizingState = field(default_factory=SizingState)
    _history: ScalingHistory = field(default_factory=ScalingHistory)
    _reports: tuple[WorkerObservation, ...] = ()

    def choose(self, sight: Sight) -> Choice:
        if not sight.polls:
            return Choice(sight.pods)
        if sight.now % REPORTS_S == 0.0:
            self._reports = _reports(sight)
        decision, self._history = decide(self._facts(sight), self._history, sight.at)
        self._memory = decision.memory or self._memory
        if not self.decisions or _shown(self.decisions[-1][1]) != _shown(decision):
            self.decisions.append((sight.now, decision))
        return Choice(decision.replicas, decision.reason)

    def _facts(self, sight: Sight) -> ScalingFacts:
        observed, current = sight.observed, sight.pods
        keys = [(TOPIC, number) for number in range(sight.partitions)]
        return ScalingFacts(
            spec=self.scaling,
            bounds=bounds_at(self.scaling, sight.at),
            current=current,
            found=current,
            ready=sight.ready,
            commit_interval_s=sight.commit_s,
            assignor=sight.assignor,
            partition_counts={TOPIC: sight.partitions},
            observed=observed,
            lag=None if observed is None else group_lag(observed, keys, "Earliest"),
            members=observed.members if observed is not None else (),
            rolling=sight.is_rolling,
            revision=sight.revision,
            reports=self._reports,
            memory=self._memory,
        )


def _reports(sight: Sight) -> tuple[WorkerObservation, ...]:
    """The workers' pages, as the operator reads them."""
    return tuple(
        WorkerObservation(
            pod=f"worker-{page.ordinal}-{page.since:.0f}",
            heard_at=sight.at,
            work=WorkObservation(
                busy_seconds=page.busy_s,
                records=int(page.records),
                slots=1,
                in_hand=tuple(RecordInHand(TOPIC, number, 0, sight.at) for number in page.in_hand),
            ),
        )
        for page in sight.pages()
    )


def _shown(decision: ScaleDecision) -> tuple[int, str]:
    return decision.replicas, decision.limit
