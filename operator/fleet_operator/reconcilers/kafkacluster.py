"""Reconciles KafkaCluster: its Secrets configure its observer, its observation becomes its status.

With `manage: Provision`, attempts to create `__consumer_offsets` and to correct its settings run in the background: a
reconcile starts one and reports the refusal of the last one; its end queues the KafkaCluster. An attempt decides again
from what the brokers say then. So it may be repeated, and two operators may make it at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.observe.kafka_admin import Refusal, TopicChanges
from fleet_operator.observe.observer_pool import ObserverPool, TooManyObserversError
from fleet_operator.planning import times
from fleet_operator.planning.fleet import deletion
from fleet_operator.planning.fleet.blocking import SECRET_PROBLEMS, identity_after
from fleet_operator.planning.labels import CLUSTER_FINALIZER
from fleet_operator.planning.observation import ClusterObservation, as_of, believed
from fleet_operator.planning.offsets_topic import OFFSETS_TOPIC, decide_offsets_topic
from fleet_operator.planning.problem import Problem, name_some, spec_problem
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.status.kafkacluster import project_kafkacluster_status
from fleet_operator.reconcilers.context import (
    FAILURES,
    FIRST_LOOK_SECONDS,
    Context,
    FirstLook,
    has_finalizer,
    publish,
    set_finalizer,
)
from fleet_operator.reconcilers.credentials import SecretReader, UnusableSecretError
from fleet_operator.reconcilers.references import identified, parse
from fleet_operator.reconcilers.states import StateTakenError
from fleet_operator.runtime.background import Background, Tasks
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Result
from fleet_operator.runtime.events import EventRecorder, News

log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 300.0
"""Pause after an attempt, doubled with each further one that changed nothing."""
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: f"let the operator's principal Create and AlterConfigs the topic {OFFSETS_TOPIC}, "
    "or set spec.offsetsTopic.manage to Observe",
    conditions.NOT_ENOUGH_BROKERS: "start more brokers, or set spec.offsetsTopic.replicationFactor to fewer",
}


@dataclass(slots=True)
class ClusterSession:
    """Knowledge of this process about one KafkaCluster besides its state.

    - `ending_since`: when it was first seen deleted, monotonic seconds.
    - `secret_gone`: a Secret was missing once while the brokers answered.
    - `refusal`: the brokers' last refusal to create or change the offsets topic; `fruitless` attempts in a row changed
      nothing.
    """

    background: Background
    first_look: FirstLook
    ending_since: float | None = None
    secret_gone: bool = False
    refusal: Problem | None = None
    fruitless: int = 0


@dataclass(frozen=True, slots=True)
class OffsetsTopicWork:
    """The attempts to keep `__consumer_offsets` as KafkaClusters specify it."""

    observers: ObserverPool
    events: EventRecorder

    def keep(
        self,
        session: ClusterSession,
        key: Key,
        body: JsonObject,
        cluster: KafkaCluster,
        seen: ClusterObservation | None,
    ) -> None:
        """Start an attempt if something is to be done and may be done now.

        Nothing is done before the id of the Kafka cluster stands in the state, nor while another one answers.
        """
        if cluster.spec.offsets_topic.manage != "Provision":
            session.refusal, session.fruitless = None, 0
            return
        if seen is None or not (seen.reachable and seen.current and seen.identified):
            return
        if cluster.identity.cluster_id != seen.cluster_id:
            return
        if decide_offsets_topic(seen, cluster.spec.offsets_topic).idle:
            session.refusal = None
            return
        pause = min(PAUSE_SECONDS * 2.0 ** min(session.fruitless + 1, 16), PAUSE_SECONDS_MAX)
        make = partial(self._attempt, session, key, body, cluster)
        session.background.start(OFFSETS_TOPIC, make, seconds=ATTEMPT_SECONDS, pause=pause, after_failure=pause)

    async def _attempt(self, session: ClusterSession, key: Key, body: JsonObject, cluster: KafkaCluster) -> None:
        wanted = cluster.spec.offsets_topic
        session.fruitless += 1
        done = await self.observers.change(
            key, cluster.identity.cluster_id, lambda admin: admin.provision_offsets_topic(wanted)
        )
        session.refusal = _refused(done.refusals[0]) if done.refusals else None
        if done.changed:
            session.fruitless = 0
            self._report(key, body, done)
            self.observers.look(key, done.changed)

    def _report(self, key: Key, body: JsonObject, done: TopicChanges) -> None:
        reason, did = ("OffsetsTopicCreated", "created") if done.made else ("OffsetsTopicChanged", "corrected")
        log.info("offsets topic %s", did, extra={"key": "/".join(key)})
        self.events.record(News(body, "Normal", reason, f"{OFFSETS_TOPIC} was {did} as spec.offsetsTopic says"))


def _refused(refusal: Refusal) -> Problem:
    """The problem that a refusal makes, under one of our reasons where there is advice for it."""
    message = f"the brokers refuse to create or change {OFFSETS_TOPIC}: {refusal.reason}: {refusal.message}"
    if refusal.reason in ADVICE:
        return Problem(refusal.reason, f"{message}; {ADVICE[refusal.reason]}")
    return Problem(conditions.OFFSETS_TOPIC_REFUSED, message)


SECRET_SECONDS: Final = 10.0
"""Interval at which Secrets are read again while they keep us from the cluster; they are not watched."""
CALM_SECONDS: Final = 60.0
"""Interval at which Secrets are read again while all is well: a renewed one is taken up before the old one ends."""
MENDED_BY_SECRETS: Final = SECRET_PROBLEMS | {conditions.AUTHENTICATION_FAILED, "TlsFailed"}


class KafkaClusterReconciler:
    """Keeps each cluster's observer and status as its object says."""

    def __init__(self, context: Context, offsets_topics: OffsetsTopicWork) -> None:
        self._context = context
        self._offsets_topics = offsets_topics
        self._tasks = Tasks()
        self._sessions: dict[Key, ClusterSession] = {}
        context.ending.push_async_callback(self._tasks.close)

    async def reconcile(self, key: Key) -> Result:
        """Bring one KafkaCluster up to date; secrets are read again each time, so a mended one is soon taken up."""
        context = self._context
        body = context.store.get(KAFKA_CLUSTER, key)
        session = self._open(key)
        if body is not None and await self._is_kept(session, key, body):
            return Result(deletion.POLL_S)
        if body is None or body["metadata"].get("deletionTimestamp"):
            del self._sessions[key]
            context.observers.stop(key)
            context.statuses.forget(KAFKA_CLUSTER.kind, key)
            context.states.forget(KAFKA_CLUSTER, key)
            context.metrics.forget_cluster(*key)
            return Result()
        previous = body.get("status") or {}
        now = context.clock.wall()
        try:
            cluster = identified(context, KafkaCluster.model_validate(body), body)
        except (ValidationError, UnreadableStateError) as error:
            problem = error.problem if isinstance(error, UnreadableStateError) else spec_problem(error)
            context.observers.refuse(key, problem.reason, problem.message)
            status = conditions.invalid_status(
                conditions.KAFKA_CLUSTER_CONDITIONS, problem.reason, problem.message, body, times.to_text(now)
            )
        else:
            await self._observe(session, key, cluster)
            seen = context.observers.latest(key)
            if session.first_look.awaits(coming=seen is None) and previous.get("conditions"):
                return Result(FIRST_LOOK_SECONDS)
            cluster = await self._identify(body, cluster, seen)
            self._offsets_topics.keep(session, key, body, cluster, seen)
            status = project_kafkacluster_status(cluster, seen, previous, now, refusal=session.refusal)
        again = await publish(context, body, status)
        seen = context.observers.latest(key)
        waits_for_secret = session.secret_gone or (seen is not None and seen.reason in MENDED_BY_SECRETS)
        return Result(None if again is None else min(again, SECRET_SECONDS if waits_for_secret else CALM_SECONDS))

    def _open(self, key: Key) -> ClusterSession:
        session = self._sessions.get(key)
        if session is None:
            clock, again = self._context.clock, partial(self._context.queues[KAFKA_CLUSTER].add, key)
            background = Background("/".join(key), clock, self._tasks, again, FAILURES)
            session = self._sessions[key] = ClusterSession(background, FirstLook(clock))
        return session

    async def _identify(self, body: JsonObject, cluster: KafkaCluster, seen: ClusterObservation | None) -> KafkaCluster:
        """Remember which Kafka cluster this is, before anything rests on it. Raises KubeError."""
        interval = float(cluster.spec.observe_interval_seconds)
        observation = believed(as_of(seen, interval_s=interval, now=self._context.clock.wall()))
        identity = identity_after(cluster, observation)
        if identity == cluster.identity:
            return cluster
        try:
            await self._context.states.save(body, identity, before=cluster.identity)
        except StateTakenError as error:
            self._context.events.record(News(body, "Warning", conditions.NAME_TAKEN, str(error)))
            return cluster
        return cluster.model_copy(update={"identity": identity})

    async def _is_kept(self, session: ClusterSession, key: Key, body: JsonObject) -> bool:
        """True while a deleted KafkaCluster is kept for groups whose `spec.deletion` needs it; otherwise it may go.

        Its observer goes on with the connection that it has, for the Secrets may be gone already.
        """
        if not has_finalizer(body, CLUSTER_FINALIZER):
            return False
        context, store = self._context, self._context.store
        found = store.cache(CONSUMER_GROUP).having((KAFKA_CLUSTER, key))
        waiting = [group["metadata"] for group in found if has_finalizer(group)]
        going = bool(body["metadata"].get("deletionTimestamp"))
        now = context.clock.monotonic()
        if going and session.ending_since is None:
            session.ending_since = now
        held = session.ending_since is None or now - session.ending_since < deletion.CLUSTER_HOLD_S
        users = [metadata for metadata in waiting if held or metadata.get("deletionTimestamp")]
        if not users:
            await set_finalizer(store, body, CLUSTER_FINALIZER, wanted=False)
            return False
        if not going:
            return False
        names = name_some(sorted(metadata["name"] for metadata in users))
        note = f"kept until spec.deletion of these ConsumerGroups is carried out: {names}"
        context.events.record(News(body, "Normal", "KeptForGroups", note))
        cluster = parse(KafkaCluster, body, ending=True)
        if cluster is not None and context.observers.latest(key) is None:
            await self._observe(session, key, cluster)
        return True

    async def _observe(self, session: ClusterSession, key: Key, cluster: KafkaCluster) -> None:
        """Start or keep the observer, or record why there is none."""
        observers, connection = self._context.observers, cluster.spec.connection
        try:
            settings = await SecretReader(self._context.store.kube, key[0]).observer_settings(cluster)
            settings.check()
        except UnusableSecretError as error:
            seen, gone = observers.latest(key), error.problem.reason == conditions.SECRET_NOT_FOUND
            if gone and not session.secret_gone and seen is not None and seen.reachable:
                # A namespace that ends loses its Secrets first, and a deletion in Kafka needs the observer.
                session.secret_gone = True
                return
            observers.refuse(key, error.problem.reason, error.problem.message, connection)
        except ValueError as error:
            observers.refuse(key, conditions.SPEC_INVALID, str(error), connection)
        else:
            session.secret_gone = False
            try:
                observers.ensure(key, settings, connection)
            except TooManyObserversError as error:
                observers.refuse(key, conditions.TOO_MANY_CONNECTIONS, str(error), connection)
