"""Facts of a rollout, as `readings` finds them in cluster objects: revisions, check pods, the StatefulSet, its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.problem import Problem


class RevisionState(StrEnum):
    """State of a revision; the value of the annotation `consumerfleet.io/revision-state`."""

    CANDIDATE = "Candidate"
    GOOD = "Good"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord:
    """One revision ConfigMap as found.

    `since` (epoch seconds) is when it became Good, or when its last failed check ended. `reason` and `message` are
    those of the refusal, or of the last failed check. `request` is the digest of what asked for the revision when it
    was refused: another one asks for a new try. `complete` is False when the copy of the handler's source is missing.
    """

    hash: str
    state: RevisionState = RevisionState.CANDIDATE
    since: float | None = None
    reason: str = ""
    message: str = ""
    request: str = ""
    checked: bool = False
    complete: bool = True
    pod_template: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """One check pod as found.

    `ok` is None until it ended; `outside` marks a cause that may pass. A check that has not ended runs since
    `started_at`, or `waits` for something outside, or has a `reason` of its own that keeps it from running.
    """

    pod: str
    revision: str
    ok: bool | None = None
    outside: bool = False
    reason: str = ""
    message: str = ""
    waits: Problem | None = None
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
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

    `unready_since`, `reason` and `message` are for a pod that is not Ready, and so is `waits`: the cause, if it lies
    outside the revision. `started_at` is the last start of the container that started most often, `restarts` times
    after the first. `ended` is the death of a container that still counts as failing.
    """

    name: str
    revision: str
    ordinal: int
    unready_since: float | None = None
    deleting: bool = False
    reason: str = ""
    message: str = ""
    waits: Problem | None = None
    started_at: float | None = None
    restarts: int = 0
    ended: ContainerEnd | None = None

    @property
    def ready(self) -> bool:
        return self.unready_since is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Everything a rollout depends on.

    - `wanted`: hash of the revision planned from the spec; None when none can be planned, with the reason in `blocked`.
    - `request`: digest of what asks for the revision, see `revision.request_digest`.
    - `outside_ok`: Kafka answers; without it an unready pod proves nothing against its revision.
    - `watched_since`: start of the time that counts for deadlines: Kafka has answered since then, and the operator's
      clock has not jumped.
    - `patience_s`: added to the progress deadline while others rebalance the group.
    - `used`: revisions that other parts of the fleet run.
    """

    wanted: str | None
    wanted_replicas: int
    request: str = ""
    blocked: Problem | None = None
    records: Mapping[str, RevisionRecord] = field(default_factory=dict)
    checks: tuple[CheckFacts, ...] = ()
    fleet: FleetFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    outside_ok: bool = True
    watched_since: float = 0.0
    progress_deadline_s: float = 600.0
    check_deadline_s: float = 300.0
    patience_s: float = 0.0
    used: frozenset[str] = frozenset()
