"""What a ConsumerGroup needs done in Kafka: its failed topic made, its removed workers' static members taken out.

Both are safe to repeat and read the live state first. An attempt that failed is repeated after a pause, not with every
reconcile; the pauses are remembered in memory only, a restart may try at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer import naming
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import POD
from fleet_operator.observe import actions
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.planning.labels import worker_selector_text
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.readings import read_pod
from fleet_operator.planning.status_facts import ConsumerGroupFacts
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.gathering import Gathered
from fleet_operator.reconcilers.publishing import ACTION
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import News

log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 20.0
"""How long a reconcile waits for the observer's thread to come to an action and do it."""
PAUSE_SECONDS: Final = 30.0
FAILED_RETENTION_SECONDS: Final = 30 * 24 * 3600


@dataclass(slots=True)
class KafkaSide:
    """Actions on Kafka for all groups. One at a time for each group, as for all its reconciling."""

    context: Context
    # When an action on a group may be attempted again (monotonic seconds), and what the last attempt ran into.
    _topic_pause: dict[Key, tuple[float, Problem | None]] = field(default_factory=dict)
    _member_pause: dict[Key, float] = field(default_factory=dict)

    def forget(self, group: Key) -> None:
        """Drop what is remembered of a group that is gone."""
        self._topic_pause.pop(group, None)
        self._member_pause.pop(group, None)

    async def ensure_failed_topic(self, gathered: Gathered, facts: ConsumerGroupFacts) -> Problem | None:
        """Make the failed topic once the source topics are known; returns why it could not be made, if so."""
        observation, counts = gathered.observation, facts.partition_counts
        seen = observation.topics.get(facts.failed_topic) if observation and observation.reachable else None
        if seen is None or counts is None or seen.error is None:
            self._topic_pause.pop(gathered.key, None)
            return None
        if seen.error != conditions.TOPIC_NOT_FOUND:
            return Problem(seen.error, f"topic {facts.failed_topic} cannot be used: {seen.error}")
        now = self.context.clock.monotonic()
        until, problem = self._topic_pause.get(gathered.key, (0.0, None))
        if now < until:
            return problem
        problem = await self._make_topic(gathered, _failed_topic(gathered, facts.failed_topic, counts))
        self._topic_pause[gathered.key] = (now + PAUSE_SECONDS, problem)
        return problem

    async def _make_topic(self, gathered: Gathered, topic: actions.NewTopic) -> Problem | None:
        observatory = self.context.observatory
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                refusal = await observatory.act(
                    gathered.cluster_key, lambda client: actions.create_topic(client, topic)
                )
        except (NetError, ObserverStoppedError, TimeoutError) as error:
            log.warning("failed topic not made", extra={"key": "/".join(gathered.key), "error": str(error)})
            return None  # whether it exists is unknown; the next look tells
        if refusal is not None:
            message = f"the brokers refuse to make topic {topic.name}: {refusal.reason}: {refusal.message}"
            return Problem(conditions.TOPIC_NOT_CREATED, message)
        log.info("failed topic made", extra={"key": "/".join(gathered.key), "topic": topic.name})
        observatory.look(gathered.cluster_key)
        return None

    async def remove_departed(self, gathered: Gathered, facts: ConsumerGroupFacts) -> None:
        """Take out the static members of ordinals that were removed, once their pods are gone.

        Without this the group keeps their partitions for a whole session timeout. The pods are read live: a static
        member whose pod still runs would be fenced and come back.
        """
        gone = _departed(gathered, facts)
        now = self.context.clock.monotonic()
        if not gone or now < self._member_pause.get(gathered.key, 0.0):
            return
        namespace, name = gathered.key
        live = await self.context.store.kube.list(POD, namespace, label_selector=worker_selector_text(name))
        running = {read_pod(pod).ordinal for pod in live.items}
        wanted = frozenset(instance for instance, ordinal in gone.items() if ordinal not in running)
        if not wanted:
            return
        self._member_pause[gathered.key] = now + PAUSE_SECONDS
        group_id = gathered.group.group_id
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                removed = await self.context.observatory.act(
                    gathered.cluster_key, lambda client: actions.remove_members(client, group_id, wanted)
                )
        except (NetError, KafkaError, ObserverStoppedError, TimeoutError) as error:
            log.warning("members not removed", extra={"key": "/".join(gathered.key), "error": str(error)})
            return
        if removed:
            self._member_pause.pop(gathered.key, None)
            note = f"static members of removed workers left the group: {', '.join(removed)}"
            self.context.events.record(News(gathered.body, "Normal", "MembersRemoved", ACTION, note))
            self.context.observatory.look(gathered.cluster_key)


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
