"""Reconciles KafkaCluster: its Secrets configure its observer, its observation becomes its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.observe.observer_pool import TooManyObserversError
from fleet_operator.planning import times
from fleet_operator.planning.fleet import deletion
from fleet_operator.planning.fleet.blocking import SECRET_PROBLEMS
from fleet_operator.planning.problem import Problem, name_some, spec_problem
from fleet_operator.planning.status.kafkacluster import project_kafkacluster_status
from fleet_operator.reconcilers.context import Context, has_finalizer, publish, set_finalizer
from fleet_operator.reconcilers.credentials import SecretReader, UnusableSecretError
from fleet_operator.reconcilers.first_looks import FIRST_LOOK_SECONDS, FirstLooks
from fleet_operator.reconcilers.offsets_topic import OffsetsTopicWork
from fleet_operator.reconcilers.references import parse
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Result
from fleet_operator.runtime.events import News

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
        self._first_looks = FirstLooks(context.clock)
        self._ending_since: dict[Key, float] = {}  # monotonic
        self._secret_gone: set[Key] = set()  # seen once, while the brokers answered

    async def reconcile(self, key: Key) -> Result:
        """Bring one KafkaCluster up to date; secrets are read again each time, so a mended one is soon taken up."""
        context = self._context
        body = context.store.get(KAFKA_CLUSTER, key)
        if body is not None and await self._is_kept(key, body):
            return Result(deletion.POLL_S)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._ending_since.pop(key, None)
            self._secret_gone.discard(key)
            context.observers.stop(key)
            context.statuses.forget(KAFKA_CLUSTER.kind, key)
            context.metrics.forget_cluster(*key)
            self._offsets_topics.forget(key)
            self._first_looks.forget(key)
            return Result()
        previous = body.get("status") or {}
        now, wait = context.clock.wall(), None
        try:
            cluster = KafkaCluster.model_validate(body)
        except ValidationError as error:
            problem = spec_problem(error)
            context.observers.refuse(key, problem.reason, problem.message)
            status = _invalid(body["metadata"], problem, previous, now)
        else:
            await self._observe(key, cluster)
            seen = context.observers.latest(key)
            if self._first_looks.awaits(key, coming=seen is None) and previous.get("conditions"):
                return Result(FIRST_LOOK_SECONDS)
            wait = self._offsets_topics.keep(key, body, cluster, seen)
            refusal = self._offsets_topics.refusal(key)
            status = project_kafkacluster_status(cluster, seen, previous, now, refusal=refusal)
        again = await publish(context, body, status)
        seen = context.observers.latest(key)
        waits_for_secret = key in self._secret_gone or (seen is not None and seen.reason in MENDED_BY_SECRETS)
        wishes = (SECRET_SECONDS if waits_for_secret else CALM_SECONDS, wait)
        return Result(None if again is None else min((again, *(wish for wish in wishes if wish is not None))))

    async def _is_kept(self, key: Key, body: JsonObject) -> bool:
        """True while a deleted KafkaCluster is kept for groups whose `spec.deletion` needs it; otherwise it may go.

        Its observer goes on with the connection that it has, for the Secrets may be gone already.
        """
        if not has_finalizer(body, deletion.CLUSTER_FINALIZER):
            return False
        context, store = self._context, self._context.store
        found = store.cache(CONSUMER_GROUP).having((KAFKA_CLUSTER, key))
        waiting = [group["metadata"] for group in found if has_finalizer(group)]
        going = bool(body["metadata"].get("deletionTimestamp"))
        now = context.clock.monotonic()
        held = now - self._ending_since.setdefault(key, now) < deletion.CLUSTER_HOLD_S if going else True
        users = [metadata for metadata in waiting if held or metadata.get("deletionTimestamp")]
        if not users:
            await set_finalizer(store, body, deletion.CLUSTER_FINALIZER, wanted=False)
            return False
        if not going:
            return False
        names = name_some(sorted(metadata["name"] for metadata in users))
        note = f"kept until spec.deletion of these ConsumerGroups is carried out: {names}"
        context.events.record(News(body, "Normal", "KeptForGroups", note))
        cluster = parse(KafkaCluster, body, ending=True)
        if cluster is not None and context.observers.latest(key) is None:
            await self._observe(key, cluster)
        return True

    async def _observe(self, key: Key, cluster: KafkaCluster) -> None:
        """Start or keep the observer, or record why there is none."""
        observers, connection = self._context.observers, cluster.spec.connection
        try:
            settings = await SecretReader(self._context.store.kube, key[0]).observer_settings(cluster)
            settings.check()
        except UnusableSecretError as error:
            seen, gone = observers.latest(key), error.problem.reason == conditions.SECRET_NOT_FOUND
            if gone and key not in self._secret_gone and seen is not None and seen.reachable:
                # A namespace that ends loses its Secrets first, and a deletion in Kafka needs the observer.
                self._secret_gone.add(key)
                return
            observers.refuse(key, error.problem.reason, error.problem.message, connection)
        except ValueError as error:
            observers.refuse(key, conditions.SPEC_INVALID, str(error), connection)
        else:
            self._secret_gone.discard(key)
            try:
                observers.ensure(key, settings, connection)
            except TooManyObserversError as error:
                observers.refuse(key, conditions.TOO_MANY_CONNECTIONS, str(error), connection)


def _invalid(metadata: JsonObject, problem: Problem, previous: Mapping[str, Any], now: float) -> JsonObject:
    """The status of an object that the CRD should have refused: the last known one, and why it is not looked at."""
    generation = metadata.get("generation", 0)
    verdicts = [
        conditions.Condition(kind, "False" if kind == conditions.READY else "Unknown", problem.reason, problem.message)
        for kind in conditions.KAFKA_CLUSTER_CONDITIONS
    ]
    return conditions.with_conditions(previous, verdicts, times.to_text(now), generation)
