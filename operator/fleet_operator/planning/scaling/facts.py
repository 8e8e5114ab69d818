"""Input of the scaling decision: the load as observed, the fleet as found, and what stands in the way of a step.

Rates of arrival and of commits are those over a fixed window of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.lag import GroupLag
from fleet_operator.planning.observation import GroupObservation, MemberObservation, ProgressSample, WorkerObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.scaling.schedules import Bounds
from fleet_operator.planning.state.sizing import SizingState

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Records per second of each partition over `seconds`.

    `arrival` and `commits` lack partitions that were unknown at one end of the window, or whose offsets went back
    within it: a topic that was recreated, a reset.
    """

    seconds: float
    arrival: Mapping[Partition, float]
    commits: Mapping[Partition, float]

    @property
    def arrived(self) -> float:
        """The number of records that have arrived in all partitions."""
        return sum(self.arrival.values()) * self.seconds


def window(samples: Sequence[ProgressSample], seconds: float) -> Sequence[ProgressSample]:
    """The newest samples that span at least so many seconds; all of them where they span less."""
    if not samples:
        return samples
    begin = samples[-1].at - seconds
    first = max((place for place, sample in enumerate(samples) if sample.at <= begin), default=0)
    return samples[first:]


def span(samples: Sequence[ProgressSample]) -> float:
    """Seconds from the first sample to the last."""
    return samples[-1].at - samples[0].at if samples else 0.0


def rates_over(samples: Sequence[ProgressSample]) -> Rates | None:
    """The rates from the first sample to the last; None without two of different times."""
    seconds = span(samples)
    if seconds <= 0.0:
        return None
    first, last = samples[0], samples[-1]
    return Rates(
        seconds=seconds,
        arrival=_rates(first.end_offsets, last.end_offsets, seconds),
        commits=_rates(first.committed, last.committed, seconds),
    )


def _rates(first: Mapping[Partition, int], last: Mapping[Partition, int], seconds: float) -> dict[Partition, float]:
    both = first.keys() & last.keys()
    return {key: (last[key] - first[key]) / seconds for key in both if last[key] >= first[key]}


STABLE: Final = "Stable"
RESTING: Final = frozenset({"Empty", "Dead"})
"""States of a Kafka group without members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFacts:
    """Everything that the decision depends on.

    - `bounds`: those of the spec and of the schedules that are under way.
    - `current`: the number that was decided last, or is found; `spec.replicas`, to begin with.
    - `ready`: pods of the fleet that are ready; `found`: its StatefulSet's number, None without one.
    - `from_start`: a partition without a commit is read from its first record.
    - `partition_counts`, `observed`, `lag`: None while unknown; `observed` rests on an answer, never on belief. Where a
      topic or a partition is unknown, `lag` is not complete, and both have the others.
    - `members`: the group's members that are workers of this fleet.
    - `hold`: the reason why nothing may be decided now, with a limit's word.
    - `rolling`: workers of a revision are on their way: only a lag that grows changes the number.
    - `revision`: the workers' revision, None while one replaces another.
    - `reports`: what the workers say of themselves, as far as they can be reached.
    - `timeout_s`: the time that a record may take.
    - `reported_stuck`: partitions at which a worker reports a record that it cannot complete.
    - `memory`: what is remembered of earlier decisions.
    """

    spec: Scaling
    bounds: Bounds
    current: int
    found: int | None = None
    ready: int = 0
    commit_interval_s: float = 5.0
    from_start: bool = False
    assignor: str = ""
    partition_counts: Mapping[str, int] | None = None
    observed: GroupObservation | None = None
    lag: GroupLag | None = None
    members: tuple[MemberObservation, ...] = ()
    hold: Problem | None = None
    rolling: bool = False
    revision: str | None = None
    reports: tuple[WorkerObservation, ...] = ()
    timeout_s: float = 60.0
    reported_stuck: frozenset[Partition] = frozenset()
    memory: SizingState = field(default_factory=SizingState)

    @property
    def awaits_rates(self) -> bool:
        """True if offsets are known for the first time, as after a start: rates take a second observation."""
        known = self.lag is not None and self.lag.total is not None and self.partition_counts is not None
        return known and self.observed is not None and span(self.observed.samples) <= 0.0

    @property
    def stable_since(self) -> float | None:
        """Time since which the group has been Stable as far as it was observed; None where it is not.

        A change that is later than what was observed was noted before the clock was set back.
        """
        observed = self.observed
        if observed is None or observed.state != STABLE or not observed.transitions or not observed.samples:
            return None
        at = observed.transitions[-1].at
        return at if at <= observed.observed_at else observed.samples[0].at
