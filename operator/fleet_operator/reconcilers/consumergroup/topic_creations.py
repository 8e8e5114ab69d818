"""Creation of managed topics, for many groups in one request.

A controller of Kafka takes about as long for a hundred topics as for one, and a thousand groups that are made at once
want theirs at the same time. Requests of one cluster follow one another; what is wanted meanwhile goes into the next.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.observe.kafka_admin import TopicChanges
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.runtime.cache import Key

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
