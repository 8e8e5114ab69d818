"""One session for each ConsumerGroup: what this process knows of it besides its state.

A session is lost with the process, which makes the next one slower or more careful, and is dropped with the object.
"""

from __future__ import annotations

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
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.reconcilers.context import FAILURES, Context, FirstLook
from fleet_operator.runtime.background import Background, Tasks
from fleet_operator.runtime.cache import Key

Place = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Times and loads that a plan leaves for the next one."""

    retry: RetryMemory = field(default_factory=RetryMemory)
    watched: Watched = field(default_factory=Watched)
    trail: Trail = field(default_factory=Trail)
    scale: ScaleDecision | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Outcomes of work in the background and of the last plan.

    - `visits`: the memory of visits that keep the commits of an empty group, by part.
    - `topic_refusal`: the brokers' last refusal to change the group's managed topics.
    - `child_refusal`: the API server's refusal of a child at the last reconcile.
    """

    visits: Mapping[Part, ExpiryMemory] = field(default_factory=dict)
    topic_refusal: Problem | None = None
    child_refusal: Problem | None = None


@dataclass(slots=True)
class Reading:
    """The last reconcile's reading of the group's offsets: what its lag is computed from, and what the status shows."""

    cluster: Key
    group_id: str
    partitions: Mapping[str, int]
    reset: ResetPolicy
    has_commits: bool
    unknown: tuple[frozenset[Place], ...]
    failed_records: int | None
    retry: tuple[object, ...] | None
    observed_at: float


@dataclass(frozen=True, slots=True)
class Load:
    """The facts of the last reconcile of a scaled group, its entry in the status, and the newest decision, which a
    reconcile may still have to carry out."""

    facts: ScalingFacts
    shown: Mapping[str, Any]
    newest: ScaleDecision


@dataclass(slots=True)
class GroupSession:
    """Knowledge of this process about one ConsumerGroup.

    - `background`: work in Kafka in the background.
    - `references`: what an Event about the deleted object needs, packed: thousands are remembered.
    - `begun`: this process has written the object's status.
    - `reading`, `load`: None for a group that is reconciled at each change of its offsets, or is not scaled.
    """

    key: Key
    background: Background
    first_look: FirstLook
    uid: str = ""
    references: bytes = b""
    begun: bool = False
    memory: Memory = field(default_factory=Memory)
    reading: Reading | None = None
    load: Load | None = None
    findings: Findings = field(default_factory=Findings)

    def found(self, **changes: Any) -> None:
        """Take in what some work has found."""
        self.findings = replace(self.findings, **changes)

    def visited(self, part: Part, memory: ExpiryMemory) -> None:
        """Take in what is remembered now of visits to the Kafka group of a part."""
        self.found(visits={**self.findings.visits, part: memory})

    def remember(self, plan_memory: Memory, decided: Mapping[Part, ExpiryMemory], since: Findings) -> None:
        """Take in what a plan leaves. It was made from the findings `since`: a visit that ended meanwhile counts."""
        self.memory = plan_memory
        if self.findings.visits is since.visits:
            self.found(visits=dict(decided))

    def refer_to(self, body: JsonObject) -> None:
        """Keep what an Event about the deletion of this object needs."""
        spec = {name: part for name, part in body["spec"].items() if name in ("groupId", "clusterRef")}
        head = {name: body[name] for name in ("apiVersion", "kind", "metadata")}
        self.uid = body["metadata"]["uid"]
        self.references = json_text.packed({**head, "spec": spec})

    def stop_following(self) -> None:
        """Take part in no decision between reconciles: the group is going, or cannot be read."""
        self.reading = self.load = None


class GroupSessions:
    """The sessions of all ConsumerGroups. Used on the event loop only; `close` ends what is under way."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks = Tasks()
        self._sessions: dict[Key, GroupSession] = {}
        context.ending.push_async_callback(self._tasks.close)

    def open(self, key: Key) -> GroupSession:
        """The session of an object, a new one at its first reconcile."""
        session = self._sessions.get(key)
        if session is None:
            again = partial(self._context.queues[CONSUMER_GROUP].add, key)
            session = self._sessions[key] = new_session(key, self._context.clock, self._tasks, again)
        return session

    def is_of_namesake(self, key: Key, uid: str) -> bool:
        """True if the session is that of a former object, whose deletion was never seen: an object with this uid has
        taken its place."""
        found = self._sessions.get(key)
        return found is not None and found.uid not in ("", uid)

    def find(self, key: Key) -> GroupSession | None:
        return self._sessions.get(key)

    def keys(self) -> list[Key]:
        return list(self._sessions)

    def drop(self, key: Key) -> GroupSession | None:
        return self._sessions.pop(key, None)


def new_session(key: Key, clock: Clock, tasks: Tasks, again: Callable[[], None]) -> GroupSession:
    """A session of which nothing is known yet; `again` queues the object."""
    return GroupSession(key, Background("/".join(key), clock, tasks, again, FAILURES), FirstLook(clock))
