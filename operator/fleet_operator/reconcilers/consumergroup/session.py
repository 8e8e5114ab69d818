"""One session per ConsumerGroup: in-memory data about the group, in addition to the stored state.

A session is dropped when its object is deleted. A new process starts without sessions, and decides more slowly or more
cautiously until it has collected the data again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fleet_consumer.clock import Clock
from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.fleet.parts import Part
from fleet_operator.planning.fleet.rollout_facts import Watched
from fleet_operator.planning.lag import ResetPolicy
from fleet_operator.planning.offsets.expiry import ExpiryMemory
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.reconcilers.context import FAILURES, Context, FirstObservation
from fleet_operator.runtime.background import Background, Tasks
from fleet_operator.runtime.cache import Key


@dataclass(frozen=True, slots=True)
class Memory:
    """Times and load data that each plan passes to the next plan."""

    retry: RetryMemory = field(default_factory=RetryMemory)
    watched: Watched = field(default_factory=Watched)
    history: ScalingHistory = field(default_factory=ScalingHistory)
    scale: ScaleDecision | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Outcomes of background work and of the last plan.

    - `visits`: history of the visits that keep the commits of empty groups, keyed by part.
    - `topic_refusal`: the brokers' last refusal to change the group's managed topics.
    - `child_refusal`: the API server's refusal of a child at the last reconcile.
    """

    visits: Mapping[Part, ExpiryMemory] = field(default_factory=dict)
    topic_refusal: Problem | None = None
    child_refusal: Problem | None = None


@dataclass(slots=True)
class LagInputs:
    """Inputs for computing a group's lag, cached at the last reconcile. `decisive`: facts whose change requires a
    reconcile. `observed_at`: time of the observation that was last used."""

    cluster: Key
    group_id: str
    partitions: Mapping[str, int]
    reset: ResetPolicy
    decisive: tuple[object, ...]
    observed_at: float


@dataclass(frozen=True, slots=True)
class Load:
    """Scaling data of one group: the facts of the last reconcile, the scaling entry that the status shows, and the
    newest decision, which may not have been carried out yet."""

    facts: ScalingFacts
    shown: Mapping[str, Any]
    newest: ScaleDecision


@dataclass(slots=True)
class GroupSession:
    """In-memory data about one ConsumerGroup.

    - `background`: background work in Kafka.
    - `references`: the fields that an Event about the object's deletion needs, packed to save memory.
    - `begun`: True if this process has written the object's status.
    - `lag_inputs`: None for a group that is reconciled at each change of its offsets.
    - `load`: None for a group that is not scaled.
    """

    key: Key
    background: Background
    first_observation: FirstObservation
    uid: str = ""
    references: bytes = b""
    begun: bool = False
    memory: Memory = field(default_factory=Memory)
    lag_inputs: LagInputs | None = None
    load: Load | None = None
    findings: Findings = field(default_factory=Findings)

    def found(self, **changes: Any) -> None:
        self.findings = replace(self.findings, **changes)

    def visited(self, part: Part, memory: ExpiryMemory) -> None:
        self.found(visits={**self.findings.visits, part: memory})

    def remember(self, plan_memory: Memory, decided: Mapping[Part, ExpiryMemory], since: Findings) -> None:
        """Store a plan's results. Results about visits are dropped if a visit has ended since the plan read `since`."""
        self.memory = plan_memory
        if self.findings.visits is since.visits:
            self.found(visits=dict(decided))

    def refer_to(self, body: JsonObject) -> None:
        spec = {name: part for name, part in body["spec"].items() if name in ("groupId", "clusterRef")}
        head = {name: body[name] for name in ("apiVersion", "kind", "metadata")}
        self.uid = body["metadata"]["uid"]
        self.references = json_text.packed({**head, "spec": spec})

    def stop_following(self) -> None:
        self.lag_inputs = self.load = None


class GroupSessions:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks = Tasks()
        self._sessions: dict[Key, GroupSession] = {}
        context.ending.push_async_callback(self._tasks.close)

    def open(self, key: Key) -> GroupSession:
        session = self._sessions.get(key)
        if session is None:
            again = partial(self._context.queues[CONSUMER_GROUP].add, key)
            session = self._sessions[key] = new_session(key, self._context.clock, self._tasks, again)
        return session

    def is_of_namesake(self, key: Key, uid: str) -> bool:
        """True if the session belongs to a deleted object with the name of the object with this `uid`. The session is
        left over if the object was replaced before the operator noticed the deletion."""
        found = self._sessions.get(key)
        return found is not None and found.uid not in ("", uid)

    def find(self, key: Key) -> GroupSession | None:
        return self._sessions.get(key)

    def keys(self) -> list[Key]:
        return list(self._sessions)

    def drop(self, key: Key) -> GroupSession | None:
        return self._sessions.pop(key, None)


def new_session(key: Key, clock: Clock, tasks: Tasks, again: Callable[[], None]) -> GroupSession:
    return GroupSession(key, Background("/".join(key), clock, tasks, again, FAILURES), FirstObservation(clock))
