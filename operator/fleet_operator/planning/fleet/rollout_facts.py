"""Facts of a rollout, as `readings` finds them in cluster objects: revisions, check pods, the StatefulSet, its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionMark, RevisionState


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord(RevisionMark):
    """A revision with its ConfigMap as found, and what the group's state says of it.

    `complete` is False when the ConfigMap, or the copy of the handler's source, is missing.
    """

    hash: str
    complete: bool = True
    pod_template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> RevisionMark:
        """The part that the group's state keeps."""
        return RevisionMark(**{each.name: getattr(self, each.name) for each in fields(RevisionMark)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """One check pod as found.

    `ok` is None until it ended; `outside` marks a cause that may pass. A check that has not ended has `started`, or
    `waits` for something outside, or has a `reason` of its own that keeps it from running.
    """

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
    """The StatefulSet as found; `observed` is False while its controller has not seen the newest template."""

    revision: str
    replicas: int
    observed: bool
    current_replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One worker pod as found.

    `reason` and `message` are for a pod that is not Ready, and so is `waits`: the cause, if it lies outside the
    revision. `ended` is the death of a container that still counts as failing.
    """

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


class Standing(Enum):
    """Standing of a pod in a rollout, as seen at one look."""

    TRIES = "runs without being ready, or keeps dying"
    READY = "is ready"
    WAITS = "waits for something outside its revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Seconds for which something has tried without success; `ready_s` is for how long it has been ready since."""

    standing: Standing
    seconds: float = 0.0
    ready_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Stretches by the uid of a pod, as counted until `looked_at` (steady seconds) for one `subject`."""

    subject: str = ""
    looked_at: float = 0.0
    stretches: Mapping[str, Stretch] = field(default_factory=dict)

    def seconds(self, key: str) -> float:
        found = self.stretches.get(key)
        return found.seconds if found is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Everything a rollout depends on.

    - `wanted`: hash of the revision planned from the spec; None when none can be planned, with the reason in `blocked`.
    - `unproven`: the reason why nothing may begin with the wanted revision's connection yet; what runs goes on.
    - `request`: digest of what asks for the revision, see `revision.request_digest`.
    - `outside_ok`: Kafka answers; without it an unready pod proves nothing against its revision.
    - `watched`: how long pods have tried so far, see `deadlines`.
    - `patience_s`: added to the progress deadline while others rebalance the group.
    - `grace_s`: the pods' termination grace.
    - `wanted_before`: the revision that was wanted at the look before.
    - `used`: revisions that other parts of the fleet run.
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
        """The revision that was last seen working. A revision that is rolled out again counts only when confirmed
        again."""
        good = [r for r in self.records.values() if r.state is RevisionState.GOOD and r.hash != other_than]
        return max(good, key=lambda record: (record.since or 0.0, record.hash == self.wanted), default=None)

    def good_since(self, now: float) -> float:
        """The time for a revision that became good now: later than all others, also those marked by a leader whose
        clock was ahead. Otherwise the older one would stay the newest, and this one would be marked again and again."""
        newest = self.newest_good(other_than=self.wanted)
        return now if newest is None or newest.since is None else max(now, newest.since + 1.0)

    @property
    def running(self) -> str | None:
        """The StatefulSet's revision, if its record can be used."""
        return self.fleet.revision if self.fleet and self.fleet.revision in self.records else None

    @property
    def fallback(self) -> str | None:
        """The revision to run while the wanted one may not: the last good one, else the present one."""
        good = self.newest_good(other_than=self.wanted)
        return good.hash if good and self.fleet else self.running

    def prunable(self, target: str | None) -> tuple[str, ...]:
        """Unused revisions: not wanted, not running anywhere, not the fallback.

        Nothing is forgotten while the wanted revision is unknown, or the one that the StatefulSet's controller has.
        """
        if self.wanted is None or (self.fleet is not None and not self.fleet.observed):
            return ()
        good = (self.newest_good(), self.newest_good(other_than=self.wanted))
        kept = {self.wanted, target, *self.used, *(pod.revision for pod in self.pods)}
        kept |= {self.fleet.revision} if self.fleet else set()
        kept |= {record.hash for record in good if record}
        return tuple(sorted(set(self.records) - kept))
