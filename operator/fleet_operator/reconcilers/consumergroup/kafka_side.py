"""Carries out the actions of a ConsumerGroup in Kafka: changes of managed topics, and removal of the static members of
removed workers.

Both actions are safe to repeat, and begin with a live read. They run in the background: a reconcile starts an attempt
and reports the last attempt's error.

Topics of many groups are created in one request, because a Kafka controller takes about as long for a hundred topics as
for one, and a thousand groups may be created together. Requests to one cluster are sent one after the other. Topics
that become wanted during a request are added to the next request.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import POD, JsonObject
from fleet_operator.observe.kafka_admin import Refusal, TopicChanges
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.parsing import read_pod
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, Part
from fleet_operator.planning.labels import selector_text
from fleet_operator.planning.observation import GroupObservation, MemberObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.topics import TopicsPlan
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import Event, EventRecorder, regarded
from fleet_operator.runtime.store import Store

GATHER_SECONDS: Final = 0.05
"""Time in seconds for which a request waits for topics of other groups, which are then created by the same request."""
PARTITIONS_MAX: Final = 200
"""Largest number of new partitions in one request. A broker must create a directory for each partition within the
request's timeout."""

Cluster = tuple[Key, str | None]
"""A KafkaCluster's key, and the id of the Kafka cluster in which topics are to be created."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Topics that are created in one request; `done` is a future for the outcome of all these topics."""

    done: asyncio.Future[TopicChanges]
    topics: dict[str, WantedTopic] = field(default_factory=dict)

    def takes(self, topics: Iterable[WantedTopic]) -> bool:
        partitions = sum(topic.partitions for topic in (*self.topics.values(), *topics))
        return not self.topics or partitions <= PARTITIONS_MAX


class TopicCreations:
    """Creates the topics of all groups. Used on the event loop only; `close` cancels running creations."""

    def __init__(self, observers: ObserverPool) -> None:
        self._observers = observers
        self._waiting: dict[Cluster, list[_Batch]] = defaultdict(list)
        self._working: dict[Cluster, asyncio.Task[None]] = {}

    async def create(self, cluster: Cluster, topics: tuple[WantedTopic, ...]) -> TopicChanges:
        """Create topics; returns the outcome for these topics. Raises the errors of `ObserverPool.change`."""
        batches, names = self._waiting[cluster], {topic.name for topic in topics}
        # If a caller was cancelled and calls again, its topics may still be in a waiting batch.
        batch = next((each for each in batches if names <= each.topics.keys()), None)
        batch = batch or next((each for each in batches if each.takes(topics)), None)
        if batch is None:
            batch = _Batch(asyncio.get_running_loop().create_future())
            batches.append(batch)
        batch.topics |= {topic.name: topic for topic in topics}
        if cluster not in self._working:
            self._working[cluster] = asyncio.create_task(self._work(cluster), name="topic-creations")
        # The cancellation of one caller must not cancel a request that it shares with others.
        outcome = await asyncio.shield(batch.done)
        return TopicChanges(
            made=[name for name in outcome.made if name in names],
            refusals=[refusal for refusal in outcome.refusals if refusal.subject in names],
        )

    async def close(self) -> None:
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
            batch.done.exception()  # retrieve the error, because asyncio would report it if all callers were cancelled
        else:
            batch.done.set_result(outcome)


log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 30.0
TOPICS_SECONDS: Final = 120.0
"""Timeout in seconds of an attempt to change topics; ATTEMPT_SECONDS is the timeout of other attempts. Both times
include the wait for the observer's thread. TOPICS_SECONDS is longer, because an attempt to create topics also waits
until topics of other groups can be created with them."""
MEMBERS_PAUSE_SECONDS: Final = 1.0
"""Pause in seconds after a successful removal of members. The pause is short, because the pods of a scale-down end one
after the other, and a stopped pod's partitions are not consumed until its member is removed."""
TOPICS: Final = "managed-topics"
MEMBERS: Final = "departed-members"
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: "allow the operator's principal to create, alter and describe topics that begin "
    f"with {naming.RESERVED_PREFIX}",
    conditions.TOPIC_NAME_COLLIDES: "Kafka does not allow topic names that differ only in '.' and '_': choose another "
    "spec.groupId",
    conditions.NOT_ENOUGH_BROKERS: "lower spec.managedTopics.replicationFactor, or add brokers",
}
"""Advice for the user, keyed by the reason of the brokers' refusal."""


class KafkaSide:
    """Creates and corrects managed topics of all groups, and removes departed members. Used on the event loop only."""

    def __init__(self, store: Store, events: EventRecorder, observers: ObserverPool) -> None:
        self._store = store
        self._events = events
        self._observers = observers
        self.creations = TopicCreations(observers)

    def keep_topics(self, session: GroupSession, gathered: Gathered, plan: TopicsPlan) -> None:
        """Start an attempt to carry out the plan for managed topics: create or change topics, add partitions, and
        delete retry topics of removed delays."""
        if plan.ready and plan.idle:
            session.found(topic_refusal=None)
        if not plan.idle:
            # Thousands of attempts may wait, so each attempt keeps only the data that it needs.
            cluster, retry_group = (
                (gathered.cluster_key, gathered.cluster_id),
                RETRY.kafka_group(gathered.group.group_id),
            )
            make = partial(self._change_topics, session, cluster, retry_group, plan, regarded(gathered.body))
            session.background.start(TOPICS, make, seconds=TOPICS_SECONDS)

    def remove_departed(self, session: GroupSession, gathered: Gathered, observed: GroupObservation | None) -> None:
        """Start to remove the static members of workers that a scale-down removed, if their pods no longer exist.

        Without the removal, these members would keep their partitions for a whole session timeout.
        """
        if departed := _departed(gathered, observed):
            make = partial(self._remove_members, gathered, departed)
            session.background.start(MEMBERS, make, seconds=ATTEMPT_SECONDS, pause=MEMBERS_PAUSE_SECONDS)

    async def _change_topics(
        self, session: GroupSession, cluster: Cluster, retry_group: str, plan: TopicsPlan, body: JsonObject
    ) -> None:
        done = await self.creations.create(cluster, plan.create) if plan.create else TopicChanges()
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
            self._observers.poll_soon(cluster[0], done.changed)
        if done.deleted:
            note = (
                f"deleted retry topics whose delay was removed and in which no record waited: {name_some(done.deleted)}"
            )
            self._events.record(Event(body, "Normal", "RetryTopicsDeleted", note))

    async def _remove_members(self, gathered: Gathered, departed: Mapping[Part, Mapping[str, int]]) -> None:
        """Remove members whose pods no longer exist. Pods are read live, because a removed member whose pod still runs
        would be fenced, and would rejoin."""
        namespace, name = gathered.key
        for part, ordinals in departed.items():
            live = await self._store.list(POD, namespace, selector_text(part.selector(name)))
            running = {read_pod(pod).ordinal for pod in live.items}
            wanted = frozenset(instance for instance, ordinal in ordinals.items() if ordinal not in running)
            if wanted:
                await self._remove(gathered, part.kafka_group(gathered.group.group_id), wanted)

    async def _remove(self, gathered: Gathered, group_id: str, wanted: frozenset[str]) -> None:
        removed = await self._observers.change(
            gathered.cluster_key, gathered.cluster_id, lambda admin: admin.remove_members(group_id, wanted)
        )
        if removed:
            note = f"static members of removed workers were removed from group {group_id}: {', '.join(removed)}"
            self._events.record(Event(gathered.body, "Normal", "MembersRemoved", note))
            self._observers.poll_soon(gathered.cluster_key)


def _refused(plan: TopicsPlan, refusals: Sequence[Refusal]) -> Problem:
    """The problem to report. It describes the first refusal for which ADVICE has an entry. If there is no such refusal,
    it describes the first refusal."""
    first = min(refusals, key=lambda refusal: refusal.reason not in ADVICE)
    verb = "create" if any(topic.name == first.subject for topic in plan.create) else "change"
    reason = conditions.TOPIC_NOT_CREATED if verb == "create" else conditions.TOPIC_NOT_CORRECTED
    message = f"the brokers refuse to {verb} topic {first.subject}: {first.reason}: {first.message}"
    if first.reason in ADVICE:
        return Problem(first.reason, f"{message}; {ADVICE[first.reason]}")
    return Problem(reason, message)


def _departed(gathered: Gathered, observed: GroupObservation | None) -> dict[Part, dict[str, int]]:
    """The ordinals of departed static members, keyed by part and by instance id. A member has departed if the
    StatefulSet has been scaled down below the member's ordinal, and no pod with this ordinal exists."""
    if observed is None:
        return {}
    members = {MAIN: observed.members}
    if observed.retry is not None and not observed.retry.error:
        members[RETRY] = observed.retry.members
    unmanned = {part: _unmanned(gathered, joined, gathered.parts[part]) for part, joined in members.items()}
    return {part: ordinals for part, ordinals in unmanned.items() if ordinals}


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
