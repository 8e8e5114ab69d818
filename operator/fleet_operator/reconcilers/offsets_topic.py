"""Attempts to create `__consumer_offsets` and to correct its settings, for KafkaClusters with `manage: Provision`.

They run beside the reconciles, which start one and report the refusal of the last one; its end queues the KafkaCluster.
An attempt decides again from what the brokers say then. So it may be repeated, and two operators may make it at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.clients.kinds import KAFKA_CLUSTER, JsonObject
from fleet_operator.observe.kafka_admin import AnotherClusterError, Refusal, TopicChanges
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.offsets_topic import OFFSETS_TOPIC, decide_offsets_topic
from fleet_operator.planning.problem import Problem
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Queues
from fleet_operator.runtime.events import EventRecorder, News

log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 60.0
RECORDING_SECONDS: Final = 1.0
"""Seconds after which a KafkaCluster is looked at again whose cluster id is being written to its status."""
PAUSE_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 300.0
"""Pause after an attempt, doubled with each further one that changed nothing."""
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: f"let the operator's principal Create and AlterConfigs the topic {OFFSETS_TOPIC}, "
    "or set spec.offsetsTopic.manage to Observe",
    conditions.NOT_ENOUGH_BROKERS: "start more brokers, or set spec.offsetsTopic.replicationFactor to fewer",
}
FAILURES: Final = (NetError, KafkaError, ObserverStoppedError, AnotherClusterError, TimeoutError)


@dataclass(slots=True)
class _Attempts:
    """One KafkaCluster's attempts; `pause_until` in monotonic seconds."""

    task: asyncio.Task[None] | None = None
    fruitless: int = 0
    pause_until: float = 0.0
    refusal: Problem | None = None


@dataclass(slots=True)
class OffsetsTopicWork:
    """The attempts for all KafkaClusters. Used on the event loop only; `close` cancels those that run."""

    observers: ObserverPool
    events: EventRecorder
    queues: Queues
    clock: Clock
    _of: dict[Key, _Attempts] = field(default_factory=dict)

    async def close(self) -> None:
        running = [each.task for each in self._of.values() if each.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def forget(self, key: Key) -> None:
        known = self._of.pop(key, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    def refusal(self, key: Key) -> Problem | None:
        """The brokers' last refusal."""
        return self._of[key].refusal if key in self._of else None

    def keep(self, key: Key, body: JsonObject, cluster: KafkaCluster, seen: ClusterObservation | None) -> float | None:
        """Start an attempt if something is to be done and may be done now; returns the seconds until the next one.

        Nothing is done before the id of the Kafka cluster stands in the status, nor while another one answers.
        """
        if cluster.spec.offsets_topic.manage != "Provision":
            self.forget(key)
            return None
        if seen is None or not (seen.reachable and seen.current and seen.identified):
            return None
        recorded = cluster.status.get("clusterId")
        if recorded != seen.cluster_id:
            return None if recorded else RECORDING_SECONDS
        here = self._of.setdefault(key, _Attempts())
        if decide_offsets_topic(seen, cluster.spec.offsets_topic).idle:
            here.refusal = None
            return None
        wait = here.pause_until - self.clock.monotonic()
        if here.task is not None or wait > 0.0:
            return max(wait, PAUSE_SECONDS)
        here.task = asyncio.create_task(self._attempt(key, body, cluster, here), name=f"offsets-topic-of-{key[1]}")
        return None

    async def _attempt(self, key: Key, body: JsonObject, cluster: KafkaCluster, here: _Attempts) -> None:
        wanted, changed = cluster.spec.offsets_topic, tuple[str, ...]()
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                done = await self.observers.change(
                    key, cluster.status.get("clusterId"), lambda admin: admin.provision_offsets_topic(wanted)
                )
            changed = done.changed
            here.refusal = _refused(done.refusals[0]) if done.refusals else None
            self._report(key, body, done)
        except FAILURES as error:  # what was done is known at the next look
            log.warning("offsets topic was not changed", extra={"key": "/".join(key), "error": str(error)})
        finally:
            here.task = None
            here.fruitless = 0 if changed else here.fruitless + 1
            pause = min(PAUSE_SECONDS * 2.0 ** min(here.fruitless, 16), PAUSE_SECONDS_MAX)
            here.pause_until = self.clock.monotonic() + pause
        self.observers.look(key, changed)
        self.queues[KAFKA_CLUSTER].add(key)

    def _report(self, key: Key, body: JsonObject, done: TopicChanges) -> None:
        if not done.changed:
            return
        reason, did = ("OffsetsTopicCreated", "created") if done.made else ("OffsetsTopicChanged", "corrected")
        log.info("offsets topic %s", did, extra={"key": "/".join(key)})
        self.events.record(News(body, "Normal", reason, f"{OFFSETS_TOPIC} was {did} as spec.offsetsTopic says"))


def _refused(refusal: Refusal) -> Problem:
    """The problem that a refusal makes, under one of our reasons where there is advice for it."""
    message = f"the brokers refuse to create or change {OFFSETS_TOPIC}: {refusal.reason}: {refusal.message}"
    if refusal.reason in ADVICE:
        return Problem(refusal.reason, f"{message}; {ADVICE[refusal.reason]}")
    return Problem(conditions.OFFSETS_TOPIC_REFUSED, message)
