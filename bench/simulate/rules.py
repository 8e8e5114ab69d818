"""Rules that choose the number of workers: this operator's, and those of an HPA that follows KEDA's lag metric."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.simulate.model import TOPIC, Group
from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.lag import group_lag
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.state.sizing import SizingState

SYNC_S: Final = 15.0
"""Interval of the HPA's controller."""
TOLERANCE: Final = 0.1
"""Deviation of the metric that changes nothing."""
DOWN_S: Final = 300.0
"""Stabilization window of the HPA for fewer replicas."""
UP_PODS: Final = 4
"""Most replicas that are added within `SYNC_S`, or as many as there are."""


class Rule(Protocol):
    """A rule. `choose` is called each second, and returns the number of workers and the reason of a change."""

    name: str

    def choose(self, group: Group) -> tuple[int, str]: ...


@dataclass(slots=True)
class FleetRule:
    """The planner of this operator. It decides at each observation."""

    scaling: Scaling
    assignor: str = "cooperative-sticky"
    name: str = "fleet"
    decisions: list[tuple[float, ScaleDecision]] = field(default_factory=list)
    _memory: SizingState = field(default_factory=SizingState)
    _trail: Trail = field(default_factory=Trail)
    _seen_at: float = 0.0

    def choose(self, group: Group) -> tuple[int, str]:
        observed, current = group.observed, len(group.pods)
        if observed is not None and observed.observed_at <= self._seen_at:
            stale = group.world.is_unseen(group.now) and group.now % group.world.look_s == 0.0
            if not stale:
                return current, ""
            observed = None
        elif observed is not None:
            self._seen_at = observed.observed_at
        lag = None if observed is None else group_lag(observed, group.keys, "Earliest")
        facts = ScalingFacts(
            spec=self.scaling,
            current=current,
            found=current,
            ready=group.members,
            commit_interval_s=group.world.commit_s,
            assignor=self.assignor,
            partition_counts={TOPIC: len(group.world.shares)},
            observed=observed,
            lag=lag,
            members=observed.members if observed is not None else (),
            memory=self._memory,
        )
        decision, self._trail = decide(facts, self._trail, group.at)
        self._memory = decision.memory or self._memory
        if not self.decisions or _shown(self.decisions[-1][1]) != _shown(decision):
            self.decisions.append((group.now, decision))
        return decision.replicas, decision.reason


def _shown(decision: ScaleDecision) -> tuple[int, str]:
    return decision.replicas, decision.limit


@dataclass(slots=True)
class LagRule:
    """KEDA's Kafka scaler behind an HPA, with their default behaviour (KEDA 2.19, Kubernetes 1.35).

    The metric is the total lag, capped so that no replica is without a partition; the wanted number is the lag divided
    by `threshold`. More replicas come at once, at most twice as many or four more every 15 s; fewer only when the
    largest wanted number of five minutes is smaller.
    """

    threshold: int
    least: int
    most: int
    name: str = "lag"
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def choose(self, group: Group) -> tuple[int, str]:
        current = len(group.pods)
        if group.now % SYNC_S != 0.0 or group.observed is None:
            return current, ""
        if group.world.is_unseen(group.now):
            return current, ""  # KEDA's scaler fails, and the HPA does nothing without a metric
        seen = group.observed
        lag = sum(max(0, end - seen.committed.get(key, 0)) for key, end in seen.end_offsets.items())
        lag = min(lag, self.threshold * len(group.world.shares))
        wanted = current
        if abs(lag / (self.threshold * max(current, 1)) - 1.0) > TOLERANCE:
            wanted = math.ceil(lag / self.threshold)
        wanted = max(self.least, min(wanted, self.most))
        self._wanted.append((group.now, wanted))
        while self._wanted[0][0] <= group.now - DOWN_S:
            self._wanted.popleft()
        if wanted > current:
            wanted = min(wanted, max(2 * current, current + UP_PODS))
        else:
            wanted = min(current, max(count for _, count in self._wanted))
        return wanted, f"lag {lag}"
