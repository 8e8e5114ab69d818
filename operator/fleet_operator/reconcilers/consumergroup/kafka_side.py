"""Actions of a ConsumerGroup in Kafka: managed topics, and the static members of removed workers.

Both are safe to repeat and read the live state first. They run in the background: a reconcile starts an attempt and
reports the error of the last one.

Topics of many groups are created in one request. A controller of Kafka takes about as long for a hundred topics as for
one, and a thousand groups that are made at once want theirs at the same time. Requests of one cluster follow one
another; what is wanted meanwhile goes into the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import POD, JsonObject
from fleet_operator.observe.kafka_admin import Refusal, TopicChanges
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, Part
from fleet_operator.planning.fleet.readings import read_pod
from fleet_operator.planning.labels import selector_text
from fleet_operator.planning.observation import GroupObservation, MemberObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.topics import TopicsPlan
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import EventRecorder, News, regarded
from fleet_operator.runtime.store import Store

GATHER_SECONDS: Final = 0.05
"""Time for which the first of several wishes waits for the others."""
PARTITIONS_MAX: Final = 200
"""Partitions of one request: a broker makes a directory for each, within the request's time-out."""

Cluster = tuple[Key, str | None]
"""The KafkaCluster, and the id of the Kafka cluster that the topics are meant for."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Topics that are created in one request; `done` has the outcome for all of them."""

    done: asyncio.Future[TopicChanges]
    topics: dict[str, WantedTopic] = field(default_factory=dict)

    def takes(self, topics: Iterable[WantedTopic]) -> bool:
        partitions = sum(topic.partitions for topic in (*self.topics.values(), *topics))
        return not self.topics or partitions <= PARTITIONS_MAX


class TopicCreations:
    """All creations of one operator. Used on the event loop only; `close` at the end."""

    def __init__(self, observers: ObserverPool) -> None:
        self._observers = observers
        self._waiting: dict[Cluster, list[_Batch]] = defaultdict(list)
        self._working: dict[Cluster, asyncio.Task[None]] = {}

    async def create(self, cluster: Cluster, topics: tuple[WantedTopic, ...]) -> TopicChanges:
        """Create topics; returns their part of the outcome. Raises what the action on the cluster raises."""
        batches, names = self._waiting[cluster], {topic.name for topic in topics}
        # Whoever gave up and asks again finds its wish where it was.
        batch = next((each for each in batches if names <= each.topics.keys()), None)
        batch = batch or next((each for each in batches if each.takes(topics)), None)
        if batch is None:
            batch = _Batch(asyncio.get_running_loop().create_future())
            batches.append(batch)
        batch.topics |= {topic.name: topic for topic in topics}
        if cluster not in self._working:
            self._working[cluster] = asyncio.create_task(self._work(cluster), name="topic-creations")
        # One that gives up must not take the others along.
        outcome = await asyncio.shield(batch.done)
        return TopicChanges(
            made=[name for name in outcome.made if name in names],
            refusals=[refusal for refusal in outcome.refusals if refusal.subject in names],
        )

    async def close(self) -> None:
        """Cancel what is under way."""
        working = list(self._working.values())
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    async def _work(self, cluster: Cluster) -> None:
        try:
            while batches := self._waiting[cluster]:
                await asyncio.sleep(GATHER_SECONDS)
                batch = batches.pop(0)
                await self._carry_out(cluster, batch)
        finally:
            del self._working[cluster]
            for batch in self._waiting.pop(cluster, ()):
                batch.done.cancel()

    async def _carry_out(self, cluster: Cluster, batch: _Batch) -> None:
        (key, cluster_id), topics = cluster, tuple(batch.topics.values())
        try:
            outcome = await self._observers.change(key, cluster_id, lambda admin: admin.create_topics(topics))
        except Exception as error:
            batch.done.set_exception(error)
            batch.done.exception()  # whoever waits gets it; if nobody does any more, it is no bug
        else:
            batch.done.set_result(outcome)


log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 30.0
TOPICS_SECONDS: Final = 120.0
"""Timeouts of an attempt, with its wait for the observer's thread; topics also wait for those of other groups."""
MEMBERS_PAUSE_SECONDS: Final = 1.0
"""The same after a removal of members that succeeded: pods of one step end one after the other, and the partitions of
each wait for its removal."""
TOPICS: Final = "managed-topics"
MEMBERS: Final = "departed-members"
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: "let the operator's principal create, alter and describe topics that begin with "
    f"{naming.RESERVED_PREFIX}",
    conditions.TOPIC_NAME_COLLIDES: "names of topics must differ in more than '.' and '_': give the group another "
    "spec.groupId",
    conditions.NOT_ENOUGH_BROKERS: "lower spec.managedTopics.replicationFactor, or add brokers",
}
"""Advice for refusals with a reason of their own."""


class KafkaSide:
    """Managed topics and departed members of all groups.

    Used on the event loop only; `close` ends creations that are under way.
    """

    def __init__(self, store: Store, events: EventRecorder, observers: ObserverPool) -> None:
        self._store = store
        self._events = events
        self._observers = observers
        self._creations = TopicCreations(observers)

    async def close(self) -> None:
        await self._creations.close()

    def keep_topics(self, session: GroupSession, gathered: Gathered, plan: TopicsPlan) -> None:
        """Create, alter and grow managed topics, and delete those of removed delays, as planned."""
        if plan.ready and plan.idle:
            session.found(topic_refusal=None)
        if not plan.idle:
            # Thousands may wait for their turn, so each keeps no more than it needs.
            work = _TopicWork((gathered.cluster_key, gathered.cluster_id), gathered.group.group_id, plan)
            make = partial(self._change_topics, session, work, regarded(gathered.body))
            session.background.start(TOPICS, make, seconds=TOPICS_SECONDS)

    def remove_departed(self, session: GroupSession, gathered: Gathered, observed: GroupObservation | None) -> None:
        """Remove the static members of removed ordinals, once their pods are gone.

        Otherwise the group keeps their partitions for a whole session timeout.
        """
        departed = tuple(part for part in _departed(gathered, observed) if part.ordinals)
        if departed:
            make = partial(self._remove_members, gathered, departed)
            session.background.start(MEMBERS, make, seconds=ATTEMPT_SECONDS, pause=MEMBERS_PAUSE_SECONDS)

    async def _change_topics(self, session: GroupSession, work: _TopicWork, body: JsonObject) -> None:
        cluster, plan, retry_group = work.cluster, work.plan, naming.retry_group(work.group_id)
        done = await self._creations.create(cluster, plan.create) if plan.create else TopicChanges()
        rest = replace(plan, create=())
        if not rest.idle:
            others = await self._observers.change(
                *cluster, lambda admin: admin.change_topics(rest, retry_group=retry_group)
            )
            done = done.with_others(others)
        session.found(topic_refusal=_refused(plan, done.refusals) if done.refusals else None)
        if done.changed:
            fields = {sort: ", ".join(names) for sort, names in done.by_sort.items() if names}
            log.info("managed topics changed", extra={"key": session.background.name, **fields})
            self._observers.look(cluster[0], done.changed)
        if done.deleted:
            note = f"deleted topics of removed delays, in which no record waited: {name_some(done.deleted)}"
            self._events.record(News(body, "Normal", "RetryTopicsDeleted", note))

    async def _remove_members(self, gathered: Gathered, departed: Sequence[_Departed]) -> None:
        """Remove members whose pods are gone, read live: one with a running pod would be fenced and rejoin."""
        namespace, name = gathered.key
        for part in departed:
            selector = selector_text(part.part.selector(name))
            live = await self._store.list(POD, namespace, selector)
            running = {read_pod(pod).ordinal for pod in live.items}
            wanted = frozenset(instance for instance, ordinal in part.ordinals.items() if ordinal not in running)
            if wanted:
                await self._remove(gathered, part.group_id, wanted)

    async def _remove(self, gathered: Gathered, group_id: str, wanted: frozenset[str]) -> None:
        removed = await self._observers.change(
            gathered.cluster_key, gathered.cluster_id, lambda admin: admin.remove_members(group_id, wanted)
        )
        if removed:
            note = f"static members of removed workers left group {group_id}: {', '.join(removed)}"
            self._events.record(News(gathered.body, "Normal", "MembersRemoved", note))
            self._observers.look(gathered.cluster_key)


@dataclass(frozen=True, slots=True)
class _TopicWork:
    """The change of one group's topics: its cluster, its Kafka group, and the plan."""

    cluster: Cluster
    group_id: str
    plan: TopicsPlan


@dataclass(frozen=True, slots=True)
class _Departed:
    """Members of a part's Kafka group whose workers are gone: ordinals by instance id."""

    part: Part
    group_id: str
    ordinals: Mapping[str, int]


def _refused(plan: TopicsPlan, refusals: Sequence[Refusal]) -> Problem:
    """The problem for the first refusal; refusals with advice come first."""
    first = min(refusals, key=lambda refusal: refusal.reason not in ADVICE)
    verb = "create" if any(topic.name == first.subject for topic in plan.create) else "change"
    reason = conditions.TOPIC_NOT_CREATED if verb == "create" else conditions.TOPIC_NOT_MENDED
    message = f"the brokers refuse to {verb} topic {first.subject}: {first.reason}: {first.message}"
    if first.reason in ADVICE:
        return Problem(first.reason, f"{message}; {ADVICE[first.reason]}")
    return Problem(reason, message)


def _departed(gathered: Gathered, observed: GroupObservation | None) -> Iterator[_Departed]:
    """Instance ids of ours in all parts' groups, with ordinals that the StatefulSet no longer wants and no pod has."""
    if observed is None:
        return
    members = {MAIN: observed.members}
    if observed.retry is not None and not observed.retry.error:
        members[RETRY] = observed.retry.members
    for part, joined in members.items():
        group_id = part.kafka_group(gathered.group.group_id)
        yield _Departed(part, group_id, _unmanned(gathered, joined, gathered.parts[part]))


def _unmanned(gathered: Gathered, members: Sequence[MemberObservation], found: FleetPart) -> dict[str, int]:
    if found.fleet is None or not found.fleet.observed:
        return {}
    metadata = gathered.group.metadata
    prefix = naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid)
    known = {pod.ordinal for pod in found.workers}
    ordinals = {}
    for member in members:
        ordinal = naming.instance_ordinal(prefix, member.instance_id or "")
        if member.instance_id and ordinal is not None and ordinal >= found.fleet.replicas and ordinal not in known:
            ordinals[member.instance_id] = ordinal
    return ordinals
