"""Input of the scaling decision: the observed load, the fleet as found, and obstacles to a step.

A rate over a few seconds shows a change immediately, but a rate from few records is inaccurate. So an arrival rate is
measured over the shortest window of samples with enough records. The fewer records the partitions have, the more their
rates are adjusted towards the mean of all partitions. For example, of three partitions with 0, 1 and 2 records in a
window, none is known to be busier than another.
"""

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

WINDOWS_S: Final = (5.0, 10.0, 20.0, 60.0, 90.0, 300.0, 900.0)
ENOUGH: Final = 20
"""Number of records from which a rate can be measured with an error of about 25 %."""
PRIOR: Final = 3.0
"""Weight of the mean rate of all partitions in the rate of each partition, given as a number of records. This is a
Bayesian estimate of a Poisson rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Records per second of each partition over a window of `seconds`. `arrival` and `commits` omit partitions whose
    offsets were unknown at the start or end of the window. They also omit partitions whose offsets decreased, for
    example because the topic was recreated or the offsets were reset."""

    seconds: float
    arrival: Mapping[Partition, float]
    commits: Mapping[Partition, float]

    @property
    def arrived(self) -> float:
        """Number of records that arrived in all partitions during the window."""
        return sum(self.arrival.values()) * self.seconds


def window(samples: Sequence[ProgressSample], seconds: float) -> Sequence[ProgressSample]:
    """Return the newest samples that together span at least `seconds`, or all samples if they span less."""
    if not samples:
        return samples
    begin = samples[-1].at - seconds
    first = max((place for place, sample in enumerate(samples) if sample.at <= begin), default=0)
    return samples[first:]


def span(samples: Sequence[ProgressSample]) -> float:
    return samples[-1].at - samples[0].at if samples else 0.0


def rates_over(samples: Sequence[ProgressSample]) -> Rates | None:
    """Return the rates from the first sample to the last; None without two samples of different times."""
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


def rates_from(samples: Sequence[ProgressSample], least_s: float) -> Mapping[Partition, float] | None:
    """Return the records that arrive per second in each partition, adjusted towards the mean of all partitions.

    They are measured over the shortest window of at least `least_s` seconds that has enough records. If no window has
    enough records, all samples are used. None without two samples."""
    reach, found = span(samples), None
    for seconds in WINDOWS_S:
        if seconds < least_s:
            continue
        found = rates_over(window(samples, seconds))
        if found is None or found.arrived >= ENOUGH or seconds >= reach:
            break
    if found is None:
        return None
    mean = found.arrived / max(len(found.arrival), 1)
    own = mean / (mean + PRIOR)
    rest = (1.0 - own) * mean / found.seconds
    return {key: own * rate + rest for key, rate in found.arrival.items()}


AGE_MAX_S: Final = 30.0
"""An observation that is older than this many seconds does not count. Samples for a rate are at most this many seconds
apart."""
RATES_AWAITED_S: Final = 15.0
"""Seconds for which a fleet with zero workers waits for rates. The second observation normally follows within two
seconds."""
STABLE: Final = "Stable"
RESTING: Final = frozenset({"Empty", "Dead"})
"""States of a Kafka group without members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFacts:
    """Inputs of the decision.

    - `current`: the number of workers decided last. Without a decision, the StatefulSet's number of replicas; without a
      StatefulSet, `spec.replicas`.
    - `ready`: the number of ready pods. `found`: the StatefulSet's number of replicas, None without a StatefulSet.
    - `from_start`: True if workers read a partition without a commit from its first record.
    - `partition_counts`, `observed`, `lag`: None while unknown. `observed` is always the newest observation. If a topic
      or partition is unknown, `partition_counts` and `lag` have only the known ones, and `lag.complete` is False.
    - `age_s`: seconds since the newest observation.
    - `members`: the group's members that are workers of this fleet.
    - `hold`: the reason why the number of workers must not change now, as one of the limits in `decision`; None without
      one.
    - `rolling`: True during a rollout; then only a growing lag changes the number of workers.
    - `revision`: the workers' revision; None while one revision replaces another.
    - `timeout_s`: the seconds for which a handler may run for one record.
    - `reported_stuck`: partitions with a record that a worker reports as stuck.
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
    age_s: float = 0.0
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
        """True if rates need another observation: there is only one sample of offsets, or the newest is too old."""
        known = self.lag is not None and self.lag.total is not None and self.partition_counts is not None
        if not known or self.observed is None or self.wakes_without_rates:
            return False
        return span(self.observed.samples) <= 0.0 or self.age_s > AGE_MAX_S

    @property
    def wakes_without_rates(self) -> bool:
        """True if records wait for a fleet with zero workers, and the group is polled too rarely for rates. An example
        is a cluster with thousands of groups in which a broker that does not answer delays every poll."""
        lag, observed = self.lag, self.observed
        if self.current or lag is None or not lag.total or observed is None or len(observed.samples) != 1:
            return False
        # If there is still only one sample after RATES_AWAITED_S, the observer dropped earlier samples, because they
        # were too far apart.
        return bool(observed.transitions) and observed.observed_at - observed.transitions[-1].at >= RATES_AWAITED_S

    @property
    def stable_since(self) -> float | None:
        """The time since which the group has been observed as Stable; None if the group is not Stable. A transition
        later than the newest observation is ignored: it was recorded before the clock was set back."""
        observed = self.observed
        if observed is None or observed.state != STABLE or not observed.transitions or not observed.samples:
            return None
        at = observed.transitions[-1].at
        return at if at <= observed.observed_at else observed.samples[0].at
