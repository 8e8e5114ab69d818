"""Reconciles KafkaClusters: configures the observer from the spec and its Secrets, and publishes the observation as the
status.

With `manage: Provision`, attempts to create `__consumer_offsets` or to correct its settings run in the background. A
reconcile starts an attempt, and reports an error if the brokers refused the last attempt. The end of an attempt queues
the KafkaCluster. Attempts are safe to repeat, even by two operators at the same time, because each attempt uses only
live data.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.observe.kafka_admin import Refusal
from fleet_operator.observe.observer_pool import TooManyObserversError
from fleet_operator.planning import times
from fleet_operator.planning.fleet import deletion
from fleet_operator.planning.fleet.blocking import SECRET_PROBLEMS, identity_after
from fleet_operator.planning.labels import CLUSTER_FINALIZER
from fleet_operator.planning.observation import ClusterObservation, as_of, last_known
from fleet_operator.planning.offsets_topic import OFFSETS_TOPIC, decide_offsets_topic
from fleet_operator.planning.problem import Problem, name_some, spec_problem
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.status.kafkacluster import project_kafkacluster_status
from fleet_operator.planning.status.problem_series import CLUSTER_PROBLEMS, find_problems
from fleet_operator.reconcilers.context import (
    FAILURES,
    FIRST_OBSERVATION_SECONDS,
    Context,
    FirstObservation,
    has_finalizer,
    publish,
    set_finalizer,
)
from fleet_operator.reconcilers.credentials import SecretReader, UnusableSecretError
from fleet_operator.reconcilers.references import identified, parse
from fleet_operator.reconcilers.states import StateTakenError
from fleet_operator.runtime.background import Background, Tasks
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.events import Event

log = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 300.0
"""Longest pause in seconds after an attempt. The pause doubles with each further attempt that changes nothing."""
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: "grant the operator's principal Create and AlterConfigs on the topic "
    f"{OFFSETS_TOPIC}, or set spec.offsetsTopic.manage to Observe",
    conditions.NOT_ENOUGH_BROKERS: "start more brokers, or lower spec.offsetsTopic.replicationFactor",
}


@dataclass(slots=True)
class ClusterSession:
    """In-memory data about one KafkaCluster, in addition to the stored state.

    - `ending_since`: the time at which this process first saw the deletion of the KafkaCluster (monotonic seconds).
    - `secret_gone`: at the last read, a Secret was missing, although the brokers answered. The missing Secret is
      reported as an error only if the next read finds the same.
    - `refusal`: the brokers' last refusal to create or change the offsets topic.
    - `fruitless`: number of consecutive attempts to create or change the offsets topic that changed nothing.
    """

    background: Background
    first_observation: FirstObservation
    ending_since: float | None = None
    secret_gone: bool = False
    refusal: Problem | None = None
    fruitless: int = 0


def _refused(refusal: Refusal) -> Problem:
    """The problem to report for a refusal. If ADVICE has an entry for the refusal's reason, the problem has this
    reason; otherwise it has the reason OFFSETS_TOPIC_REFUSED."""
    message = f"the brokers refuse to create or change {OFFSETS_TOPIC}: {refusal.reason}: {refusal.message}"
    if refusal.reason in ADVICE:
        return Problem(refusal.reason, f"{message}; {ADVICE[refusal.reason]}")
    return Problem(conditions.OFFSETS_TOPIC_REFUSED, message)


SECRET_SECONDS: Final = 10.0
"""Interval at which Secrets are read again while they prevent access to the cluster. Secrets are not watched."""
CALM_SECONDS: Final = 60.0
"""Interval at which Secrets are read again while they cause no problem, so that renewed credentials are used in
time."""
FIXED_BY_SECRETS: Final = SECRET_PROBLEMS | {conditions.AUTHENTICATION_FAILED, "TlsFailed"}


class KafkaClusterReconciler:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks = Tasks()
        self._sessions: dict[Key, ClusterSession] = {}
        context.ending.push_async_callback(self._tasks.close)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one KafkaCluster. Its Secrets are read each time, so that a corrected Secret is used soon."""
        context = self._context
        body = context.store.get(KAFKA_CLUSTER, key)
        session = self._open(key)
        if body is not None and await self._is_kept(session, key, body):
            context.metrics.cluster_problems.remove(key)
            return deletion.POLL_S
        if body is None or body["metadata"].get("deletionTimestamp"):
            del self._sessions[key]
            context.observers.stop(key)
            context.statuses.drop_object(KAFKA_CLUSTER.kind, key)
            context.states.drop_state(KAFKA_CLUSTER, key)
            context.metrics.drop_cluster(*key)
            return None
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
            if session.first_observation.awaits(coming=seen is None) and previous.get("conditions"):
                return FIRST_OBSERVATION_SECONDS
            cluster = await self._identify(body, cluster, seen)
            self.keep_offsets_topic(session, body, cluster, seen)
            status = project_kafkacluster_status(cluster, seen, previous, now, refusal=session.refusal)
        context.metrics.cluster_problems.show(key, find_problems(status["conditions"], CLUSTER_PROBLEMS))
        again = await publish(context, body, status)
        seen = context.observers.latest(key)
        waits_for_secret = session.secret_gone or (seen is not None and seen.reason in FIXED_BY_SECRETS)
        return None if again is None else min(again, SECRET_SECONDS if waits_for_secret else CALM_SECONDS)

    def _open(self, key: Key) -> ClusterSession:
        session = self._sessions.get(key)
        if session is None:
            clock, again = self._context.clock, partial(self._context.queues[KAFKA_CLUSTER].add, key)
            background = Background("/".join(key), clock, self._tasks, again, FAILURES)
            session = self._sessions[key] = ClusterSession(background, FirstObservation(clock))
        return session

    async def _identify(self, body: JsonObject, cluster: KafkaCluster, seen: ClusterObservation | None) -> KafkaCluster:
        """Store the Kafka cluster's identity before anything depends on it. Raises KubeError."""
        interval = float(cluster.spec.observe_interval_seconds)
        observation = last_known(as_of(seen, interval_s=interval, now=self._context.clock.wall()))
        identity = identity_after(cluster, observation)
        if identity == cluster.identity:
            return cluster
        try:
            await self._context.states.save(body, identity, before=cluster.identity)
        except StateTakenError as error:
            self._context.events.record(Event(body, "Warning", conditions.NAME_TAKEN, str(error)))
            return cluster
        return cluster.model_copy(update={"identity": identity})

    async def _is_kept(self, session: ClusterSession, key: Key, body: JsonObject) -> bool:
        """True while a KafkaCluster that is being deleted is kept for ConsumerGroups whose `spec.deletion` needs it.

        Removes the finalizer when no ConsumerGroup needs the KafkaCluster. The observer of a kept KafkaCluster keeps
        its present connection, because the Secrets may already be deleted.
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
        note = f"kept until the steps in spec.deletion of these ConsumerGroups are done: {names}"
        context.events.record(Event(body, "Normal", "KeptForGroups", note))
        cluster = parse(KafkaCluster, body, ending=True)
        if cluster is not None and context.observers.latest(key) is None:
            await self._observe(session, key, cluster)
        return True

    async def _observe(self, session: ClusterSession, key: Key, cluster: KafkaCluster) -> None:
        """Start the observer or keep it running, or record the reason why it cannot run."""
        observers, connection = self._context.observers, cluster.spec.connection
        try:
            settings = await SecretReader(self._context.store.kube, key[0]).observer_settings(cluster)
        except UnusableSecretError as error:
            seen, gone = observers.latest(key), error.problem.reason == conditions.SECRET_NOT_FOUND
            if gone and not session.secret_gone and seen is not None and seen.reachable:
                # In a terminating namespace, Secrets may be deleted first, but the observer is still needed to delete
                # topics in Kafka.
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

    def keep_offsets_topic(
        self, session: ClusterSession, body: JsonObject, cluster: KafkaCluster, seen: ClusterObservation | None
    ) -> None:
        """Start an attempt to create or correct `__consumer_offsets`, if needed and if the operator manages it. No
        attempt is made before the Kafka cluster's id is stored in the state, or while another Kafka cluster answers."""
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
        make = partial(self._attempt, session, body, cluster)
        session.background.start(OFFSETS_TOPIC, make, seconds=ATTEMPT_SECONDS, pause=pause, after_failure=pause)

    async def _attempt(self, session: ClusterSession, body: JsonObject, cluster: KafkaCluster) -> None:
        key, wanted, observers = key_of(body), cluster.spec.offsets_topic, self._context.observers
        session.fruitless += 1
        done = await observers.change(
            key, cluster.identity.cluster_id, lambda admin: admin.provision_offsets_topic(wanted)
        )
        session.refusal = _refused(done.refusals[0]) if done.refusals else None
        if done.changed:
            session.fruitless = 0
            reason, did = ("OffsetsTopicCreated", "created") if done.made else ("OffsetsTopicChanged", "corrected")
            log.info("offsets topic %s", did, extra={"key": "/".join(key)})
            note = f"{OFFSETS_TOPIC} was {did} as specified in spec.offsetsTopic"
            self._context.events.record(Event(body, "Normal", reason, note))
            observers.poll_soon(key, done.changed)
