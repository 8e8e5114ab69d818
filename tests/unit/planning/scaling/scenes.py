"""A scaled fleet for tests of its decisions: steady load, known capacity, all workers there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.lag import group_lag
from fleet_operator.planning.observation import (
    GroupObservation,
    GroupTransition,
    MemberObservation,
    OpenTransaction,
    ProgressSample,
)
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.scaling.schedules import bounds_at
from fleet_operator.planning.state.sizing import Capacity, SizingState

NOW: Final = 1_800_000_000.0
TOPIC: Final = "orders"
POLL_S: Final = 5.0
REVISION: Final = "0a1b2c3d4e"


@dataclass
class Scene:
    """A fleet of `current` workers on twelve partitions, at which records arrive evenly. `pass_time` moves on by polls;
    each partition's arrival and handling are records per second."""

    spec: dict[str, Any] = field(default_factory=dict)
    current: int = 4
    arrival: float = 120.0
    handled: float | None = None
    partitions: int = 12
    capacity: float | None = 60.0
    lag: int = 0
    state: str = "Stable"
    memory: SizingState = field(default_factory=SizingState)
    history: ScalingHistory = field(default_factory=ScalingHistory)
    now: float = NOW
    weights: Mapping[int, float] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes of the facts."""
    leaderless: frozenset[int] = frozenset()
    uncommitted: frozenset[int] = frozenset()
    """Partitions whose ends, or whose commits, are unknown from now on; both have no lag."""
    open_transactions: Mapping[tuple[str, int], OpenTransaction] = field(default_factory=dict)
    samples: list[ProgressSample] = field(default_factory=list)
    rebalance_seen: bool = True
    """False where the rebalance of a step has not been observed yet, though its workers are in the group."""
    decision: ScaleDecision | None = None

    def __post_init__(self) -> None:
        ends = {(TOPIC, number): 1_000_000.0 for number in range(self.partitions)}
        self._ends = ends
        self._done = {key: end - self.lag / self.partitions for key, end in ends.items()}
        self._since = self.now
        if self.capacity is not None:
            self.memory = replace(self.memory, capacity=Capacity(rate=self.capacity, revision=REVISION, at=self.now))
        self.samples.append(self._sample())

    def _sample(self) -> ProgressSample:
        return ProgressSample(self.now, _whole(self._done, self.uncommitted), _whole(self._ends, self.leaderless))

    def pass_time(self, seconds: float) -> ScaleDecision:
        """Let time pass, with a decision at each poll; a step is carried out. Returns the last decision."""
        for _ in range(round(seconds / POLL_S)):
            self.now += POLL_S
            for number in range(self.partitions):
                weight = self.weights.get(number, 1.0) / self.partitions
                self._ends[TOPIC, number] += self.arrival * weight * POLL_S
                handled = self.arrival if self.handled is None else self.handled
                moved = self._done[TOPIC, number] + handled / self.partitions * POLL_S
                self._done[TOPIC, number] = min(moved, self._ends[TOPIC, number])
            self.samples = [*self.samples, self._sample()][-19:]
            self.decide()
        assert self.decision is not None
        return self.decision

    def decide(self) -> ScaleDecision:
        self.decision, self.history = decide(self.facts(), self.history, self.now)
        self.memory = self.decision.memory or self.memory
        if self.decision.replicas != self.current:
            self.current = self.decision.replicas
            self._since = self.now if self.rebalance_seen else self._since
        return self.decision

    def see_rebalance(self) -> None:
        """Note the rebalance of the last step now."""
        self._since = self.now

    def facts(self) -> ScalingFacts:
        latest = self.samples[-1]
        dealt = [tuple(range(number, self.partitions, max(self.current, 1))) for number in range(self.current)]
        members = tuple(
            MemberObservation(
                member_id=f"m-{number}", instance_id=f"m-{number}", client_id="", host="", partitions={TOPIC: owned}
            )
            for number, owned in enumerate(dealt)
        )
        observed = GroupObservation(
            group_id=TOPIC,
            observed_at=self.now,
            state=self.state if self.current else "Empty",
            members=members,
            transitions=(GroupTransition(before="Unknown", after=self.state, at=self._since),),
            committed=latest.committed,
            end_offsets=latest.end_offsets,
            log_starts=dict.fromkeys(latest.end_offsets, 0),
            open_transactions=self.open_transactions,
            samples=tuple(self.samples),
        )
        spec = Scaling.model_validate(self.spec)
        facts = ScalingFacts(
            spec=spec,
            bounds=bounds_at(spec, self.now),
            current=self.current,
            found=self.current,
            ready=self.current,
            assignor="cooperative-sticky",
            partition_counts={TOPIC: self.partitions},
            observed=observed,
            lag=group_lag(observed, self._ends, "None" if self.uncommitted else "Earliest"),
            members=members,
            revision=REVISION,
            memory=self.memory,
        )
        return replace(facts, **self.changes)


def _whole(offsets: Mapping[tuple[str, int], float], unknown: frozenset[int]) -> dict[tuple[str, int], int]:
    return {key: round(offset) for key, offset in offsets.items() if key[1] not in unknown}


def words(scene: Scene, seconds: float) -> tuple[int, str]:
    """The number and the limit of the last decision after some time."""
    decision = scene.pass_time(seconds)
    return decision.replicas, decision.limit
