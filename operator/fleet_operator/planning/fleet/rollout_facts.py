"""Facts of a rollout, parsed by `parsing`: the revisions, the check pods, the StatefulSet and its pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionState, RevisionVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord(RevisionVerdict):
    """A revision and its verdict. `complete`: False if the ConfigMap or the copy of the handler's source is missing."""

    hash: str
    complete: bool = True
    pod_template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> RevisionVerdict:
        return RevisionVerdict(**{each.name: getattr(self, each.name) for each in fields(RevisionVerdict)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """One check pod, parsed. `ok`: None until the check ends. `outside`: True if a failed check has a cause outside the
    revision.

    A check that has not ended has `started`, or `waits` for a cause outside the revision, or cannot run for a `reason`
    inside the revision."""

    pod: str
    revision: str
    uid: str = ""
    ok: bool | None = None
    outside: bool = False
    reason: str = ""
    message: str = ""
    waits: Problem | None = None
    started: bool = False
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """The StatefulSet, parsed. `observed`: False until the StatefulSet's controller has seen the newest template."""

    revision: str
    replicas: int
    observed: bool
    current_replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One worker pod, parsed. `reason`, `message`: why a pod that is not Ready does not run, if Kubernetes reports it.
    `waits`: the cause outside the revision for which the pod waits. `ended`: the recent death of a container; a pod
    with such a death counts as failing."""

    name: str
    revision: str
    ordinal: int
    uid: str = ""
    ready: bool = True
    deleting: bool = False
    reason: str = ""
    message: str = ""
    waits: Problem | None = None
    ended: ContainerEnd | None = None


class PodState(Enum):
    TRIES = "runs without being ready, or keeps dying"
    READY = "is ready"
    WAITS = "waits for something outside its revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTime:
    """The time counted for a pod, or for something that delays a rollout.

    - `state`: the pod's state at the last reconcile.
    - `seconds`: the seconds for which the pod has been in the state `TRIES`. They restart from zero once the pod has
      been ready for `deadlines.READY_S`.
    - `ready_s`: the seconds for which the pod has been ready without interruption until now.
    """

    state: PodState
    seconds: float = 0.0
    ready_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The counted times of a rollout. `subject`: identifies the wanted and the running revision and the request. If the
    subject changes, all times restart from zero. `checked_at`: time of the last reconcile, in monotonic seconds.
    `counted`: keyed by a pod's uid, or by a key from `deadlines`, such as `MISSING`."""

    subject: str = ""
    checked_at: float = 0.0
    counted: Mapping[str, CountedTime] = field(default_factory=dict)

    def seconds(self, key: str) -> float:
        found = self.counted.get(key)
        return found.seconds if found is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Inputs of the decision about a rollout.

    - `wanted`: hash of the revision planned from the spec; None if no revision can be planned, for the reason in
      `blocked`.
    - `unproven`: the reason why no pod may start with the wanted revision's connection yet; running pods continue.
    - `request`: digest of the spec and of the request for another try, see `revision.request_digest`.
    - `outside_ok`: Kafka answers. While Kafka does not answer, an unready pod does not count against its revision.
    - `patience_s`: seconds added to the progress deadline while the Kafka group rebalances, which delays new members.
    - `used`: revisions that must be kept for other parts of the fleet, such as the retry workers.
    """

    wanted: str | None
    wanted_replicas: int
    request: str = ""
    blocked: Problem | None = None
    unproven: Problem | None = None
    records: Mapping[str, RevisionRecord] = field(default_factory=dict)
    checks: tuple[CheckFacts, ...] = ()
    fleet: FleetFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    outside_ok: bool = True
    watched: Watched = field(default_factory=Watched)
    wanted_before: str | None = None
    progress_deadline_s: float = 600.0
    check_deadline_s: float = 300.0
    patience_s: float = 0.0
    grace_s: float = 0.0
    used: frozenset[str] = frozenset()

    def newest_good(self, *, other_than: str | None = None) -> RevisionRecord | None:
        """The revision that became good last; None without one. During another rollout of this revision, its record
        keeps the old time until the revision is good again."""
        good = [r for r in self.records.values() if r.state is RevisionState.GOOD and r.hash != other_than]
        return max(good, key=lambda record: (record.since or 0.0, record.hash == self.wanted), default=None)

    def good_since(self, now: float) -> float:
        """The time to record for a revision that becomes good now, in epoch seconds.

        This time must be later than the times of all other good revisions, even if a leader with a fast clock recorded
        their times. Otherwise an older revision would count as the newest good revision, and the present revision would
        be recorded repeatedly."""
        newest = self.newest_good(other_than=self.wanted)
        return now if newest is None or newest.since is None else max(now, newest.since + 1.0)

    @property
    def running(self) -> str | None:
        """The StatefulSet's revision; None without a StatefulSet or without a usable record of the revision."""
        return self.fleet.revision if self.fleet and self.fleet.revision in self.records else None

    @property
    def fallback(self) -> str | None:
        """The revision to run while the wanted revision may not run. This is the newest other good revision or, without
        another good revision, the `running` revision. None without a StatefulSet."""
        good = self.newest_good(other_than=self.wanted)
        return good.hash if good and self.fleet else self.running

    def prunable(self, target: str | None) -> tuple[str, ...]:
        """Revisions that may be deleted. The wanted revision, the revisions of pods and the fallback are kept. Empty
        while the wanted revision is unknown, or while the StatefulSet's controller has not seen its newest template."""
        if self.wanted is None or (self.fleet is not None and not self.fleet.observed):
            return ()
        good = (self.newest_good(), self.newest_good(other_than=self.wanted))
        kept = {self.wanted, target, *self.used, *(pod.revision for pod in self.pods)}
        kept |= {self.fleet.revision} if self.fleet else set()
        kept |= {record.hash for record in good if record}
        return tuple(sorted(set(self.records) - kept))
