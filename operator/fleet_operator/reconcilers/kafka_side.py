"""What a ConsumerGroup needs done in Kafka: its failed topic made, its removed workers' static members taken out.

Both are safe to repeat and read the live state first. They run beside the reconciles, which never wait for Kafka: a
reconcile starts an attempt and reports what the last one ran into; the end of an attempt brings the group back into the
queue. Attempts keep a pause between them, also successful ones, as the observation that asked for them lags behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from fleet_consumer import naming
from fleet_consumer.clock import Clock
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import POD
from fleet_operator.clients.kube import KubeError
from fleet_operator.observe import actions
from fleet_operator.observe.observatory import Observatory
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.planning.labels import worker_selector_text
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.readings import read_pod
from fleet_operator.planning.status_facts import ConsumerGroupFacts
from fleet_operator.reconcilers.gathering import Gathered
from fleet_operator.reconcilers.transitions import ACTION
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import EventRecorder, News
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 30.0
"""How long an attempt waits for the observer's thread to come to it and do it."""
PAUSE_SECONDS: Final = 10.0
"""Between two attempts of a sort for a group. In memory only: a restart may try at once."""
TOPIC: Final = "failed-topic"
MEMBERS: Final = "departed-members"
FAILED_RETENTION_SECONDS: Final = 30 * 24 * 3600


class KafkaSide:
    """Actions on Kafka for all groups, at most one of each sort at a time for each group.

    Used on the event loop only; `close` ends the attempts that are under way. `again` queues a group.
    """

    def __init__(self, store: Store, clock: Clock, events: EventRecorder, observatory: Observatory) -> None:
        self._store = store
        self._clock = clock
        self._events = events
        self._observatory = observatory
        self._attempts: dict[tuple[str, Key], asyncio.Task[None]] = {}
        self._pauses: dict[tuple[str, Key], float] = {}  # until when (monotonic seconds) not to try again
        self._refusals: dict[Key, Problem] = {}  # why the brokers would not make a group's failed topic

    async def close(self) -> None:
        """End the attempts that are under way."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    def forget(self, group: Key) -> None:
        """Drop what is remembered of a group that is gone."""
        self._refusals.pop(group, None)
        for sort in (TOPIC, MEMBERS):
            self._pauses.pop((sort, group), None)

    def ensure_failed_topic(self, gathered: Gathered, facts: ConsumerGroupFacts, again: Callable[[], None]) -> None:
        """Have the failed topic made once the source topics are known and it is seen to be missing."""
        observation, counts = gathered.observation, facts.partition_counts
        seen = observation.topics.get(facts.failed_topic) if observation and observation.reachable else None
        if seen is not None and seen.error is None:
            self._refusals.pop(gathered.key, None)
        elif seen is not None and seen.error == conditions.TOPIC_NOT_FOUND and counts is not None:
            topic = _failed_topic(gathered, facts.failed_topic, counts)
            self._attempt(TOPIC, gathered.key, lambda: self._make_topic(gathered, topic), again)

    def topic_problem(self, gathered: Gathered, facts: ConsumerGroupFacts) -> Problem | None:
        """Why the failed topic cannot be used, if so."""
        observation = gathered.observation
        seen = observation.topics.get(facts.failed_topic) if observation and observation.reachable else None
        if seen is not None and seen.error not in (None, conditions.TOPIC_NOT_FOUND):
            return Problem(str(seen.error), f"topic {facts.failed_topic} cannot be used: {seen.error}")
        return self._refusals.get(gathered.key)

    def remove_departed(self, gathered: Gathered, facts: ConsumerGroupFacts, again: Callable[[], None]) -> None:
        """Have the static members of removed ordinals taken out, once their pods are gone.

        Without this the group keeps their partitions for a whole session timeout.
        """
        departed = _departed(gathered, facts)
        if departed:
            self._attempt(MEMBERS, gathered.key, lambda: self._remove_members(gathered, departed), again)

    def _attempt(self, sort: str, group: Key, make: Callable[[], Awaitable[None]], again: Callable[[], None]) -> None:
        """Start an attempt unless one is under way, or the pause after the last one is not over."""
        address = (sort, group)
        if address in self._attempts or self._clock.monotonic() < self._pauses.get(address, 0.0):
            return

        async def attempt() -> None:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await make()
            except (NetError, KafkaError, KubeError, ObserverStoppedError, TimeoutError) as error:
                # Whether it was done is unknown; the next look tells.
                fields = {"key": "/".join(group), "action": sort, "error": str(error) or type(error).__name__}
                log.warning("action on Kafka failed", extra=fields)
            finally:
                del self._attempts[address]
                self._pauses[address] = self._clock.monotonic() + PAUSE_SECONDS
            again()

        self._attempts[address] = asyncio.create_task(attempt(), name=f"{sort}-of-{'/'.join(group)}")

    async def _make_topic(self, gathered: Gathered, topic: actions.NewTopic) -> None:
        refusal = await self._observatory.act(gathered.cluster_key, lambda client: actions.create_topic(client, topic))
        if refusal is not None:
            message = f"the brokers refuse to make topic {topic.name}: {refusal.reason}: {refusal.message}"
            self._refusals[gathered.key] = Problem(conditions.TOPIC_NOT_CREATED, message)
            return
        log.info("failed topic made", extra={"key": "/".join(gathered.key), "topic": topic.name})
        self._observatory.look(gathered.cluster_key)

    async def _remove_members(self, gathered: Gathered, departed: dict[str, int]) -> None:
        """The pods are read live: a static member whose pod still runs would be fenced and come back."""
        namespace, name = gathered.key
        live = await self._store.kube.list(POD, namespace, label_selector=worker_selector_text(name))
        running = {read_pod(pod).ordinal for pod in live.items}
        wanted = frozenset(instance for instance, ordinal in departed.items() if ordinal not in running)
        if not wanted:
            return
        group_id = gathered.group.group_id
        removed = await self._observatory.act(
            gathered.cluster_key, lambda client: actions.remove_members(client, group_id, wanted)
        )
        if removed:
            note = f"static members of removed workers left the group: {', '.join(removed)}"
            self._events.record(News(gathered.body, "Normal", "MembersRemoved", ACTION, note))
            self._observatory.look(gathered.cluster_key)


def _failed_topic(gathered: Gathered, name: str, counts: dict[str, int]) -> actions.NewTopic:
    """As many partitions as the largest source topic, the cluster's replication, kept for a month."""
    retry = gathered.group.spec.retry
    topics = retry.topics if retry else None
    retention = topics.failed_retention_seconds if topics else FAILED_RETENTION_SECONDS
    return actions.NewTopic(
        name=name,
        partitions=(topics.partitions if topics else None) or max(counts.values()),
        replication_factor=(topics.replication_factor if topics else None) or actions.BROKER_DEFAULT,
        configs=(("cleanup.policy", "delete"), ("retention.ms", str(retention * 1000))),
    )


def _departed(gathered: Gathered, facts: ConsumerGroupFacts) -> dict[str, int]:
    """Instance ids of ours in the group, with ordinals that the StatefulSet no longer wants and no known pod has."""
    observed, fleet = facts.observed_group, facts.fleet
    if observed is None or fleet is None or not fleet.observed:
        return {}
    metadata = gathered.group.metadata
    prefix = naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid)
    known = {pod.ordinal for pod in facts.pods}
    found = {}
    for member in observed.members:
        ordinal = naming.instance_ordinal(prefix, member.instance_id or "")
        if member.instance_id and ordinal is not None and ordinal >= fleet.replicas and ordinal not in known:
            found[member.instance_id] = ordinal
    return found
