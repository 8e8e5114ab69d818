"""Everything a ConsumerGroup's reconcile looks at, read once.

What changes often comes from the caches; what must be certain (a handler's source that no watch covers) is read live.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from fleet_consumer import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, KAFKA_CLUSTER, POD, STATEFUL_SET, JsonObject
from fleet_operator.observe.settings import GroupInterest
from fleet_operator.planning.duplicates import Claim, older_owner
from fleet_operator.planning.observation import ClusterObservation, WorkerObservation, as_of
from fleet_operator.planning.topic_pattern import PatternRefused, group_pattern
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.routing import cluster_of, group_id_of
from fleet_operator.runtime.cache import Key, key_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One ConsumerGroup and all that its fleet depends on, as found.

    `cluster` is None when there is none (or it cannot be parsed); `handler_files` is None when the spec refers to a
    ConfigMap that does not exist, and when it refers to none. The lists hold only objects of this very ConsumerGroup.
    """

    body: JsonObject
    group: ConsumerGroup
    cluster: KafkaCluster | None
    observation: ClusterObservation | None
    handler_files: Mapping[str, str] | None
    older: Claim | None
    stateful_set: JsonObject | None
    workers: tuple[JsonObject, ...]
    checks: tuple[JsonObject, ...]
    config_maps: tuple[JsonObject, ...]
    accounts: tuple[WorkerObservation, ...]

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return key_of(self.body)

    @property
    def cluster_key(self) -> Key:
        """The KafkaCluster that the group refers to, existing or not."""
        return cluster_of(self.body)


async def gather(context: Context, body: JsonObject) -> Gathered:
    """Read everything. Raises KubeError, or pydantic's ValidationError for a spec that the CRD should have refused."""
    group = ConsumerGroup.model_validate(body)
    key = namespace, name = key_of(body)
    store = context.store
    cluster = _cluster(store.get(KAFKA_CLUSTER, cluster_of(body)))
    context.observatory.watch(key, cluster_of(body), _interest(group))
    fleet = store.get(STATEFUL_SET, (namespace, naming.stateful_set(name)))
    if fleet is not None and not is_owned_by(fleet, body):
        fleet = None
    pods = store.cache(POD).having(key)
    workers = tuple(pod for pod in pods if fleet is not None and is_owned_by(pod, fleet))
    return Gathered(
        body=body,
        group=group,
        cluster=cluster,
        observation=_observation(context, cluster, cluster_of(body)),
        handler_files=await _handler_files(context, group),
        older=_older(context, body),
        stateful_set=fleet,
        workers=workers,
        checks=tuple(pod for pod in pods if is_owned_by(pod, body)),
        config_maps=tuple(found for found in store.cache(CONFIG_MAP).having(key) if is_owned_by(found, body)),
        accounts=context.workers.answers(key, workers),
    )


def _cluster(body: JsonObject | None) -> KafkaCluster | None:
    if body is None or body["metadata"].get("deletionTimestamp"):
        return None
    try:
        return KafkaCluster.model_validate(body)
    except ValidationError as error:  # its own reconcile says so in a condition
        log.warning("KafkaCluster cannot be parsed", extra={"key": "/".join(key_of(body)), "error": str(error)})
        return None


def _observation(context: Context, cluster: KafkaCluster | None, key: Key) -> ClusterObservation | None:
    """The newest observation, or as unreachable if it is so old that its observer must be hanging."""
    if cluster is None:
        return None
    interval = float(cluster.spec.observe_interval_seconds)
    return as_of(context.observatory.latest(key), interval_s=interval, now=context.clock.wall())


def _interest(group: ConsumerGroup) -> GroupInterest:
    return GroupInterest(
        group_id=group.group_id,
        topics=group.source_topics,
        pattern=_pattern(group),
        other_topics=group.spec.handler.outputs,
        failed_topic=naming.failed_topic(group.group_id),
        read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
        expects_members=group.wanted_replicas > 0,
    )


def _pattern(group: ConsumerGroup) -> re.Pattern[str] | None:
    """The pattern to be matched; one that is refused matches nothing, and a condition says why."""
    try:
        return group_pattern(group)
    except PatternRefused:
        return None


async def _handler_files(context: Context, group: ConsumerGroup) -> Mapping[str, str] | None:
    """The handler's source: from the cache where a watch covers it, else live. Binary data is no source."""
    python = group.spec.handler.python
    reference = python.config_map_ref if python else None
    if reference is None:
        return None
    namespace = group.metadata.namespace
    found = context.store.get(CONFIG_MAP, (namespace, reference.name))
    if found is None:
        found = await context.store.kube.get(CONFIG_MAP, namespace, reference.name)
    return None if found is None else dict(found.get("data") or {})


def _older(context: Context, body: JsonObject) -> Claim | None:
    """The older claim on the same Kafka group, if another object has one."""
    rivals = [
        other
        for other in context.store.cache(CONSUMER_GROUP).having(group_id_of(body))
        if key_of(other) != key_of(body) and not other["metadata"].get("deletionTimestamp")
    ]
    return older_owner(_claim(context, body), [_claim(context, other) for other in rivals]) if rivals else None


def _claim(context: Context, body: JsonObject) -> Claim:
    """A claim; two KafkaCluster objects for one Kafka cluster are the same once their cluster id is known."""
    cluster = cluster_of(body)
    seen = context.observatory.latest(cluster)
    namespace, name = key_of(body)
    return Claim(
        cluster=(seen.cluster_id if seen else None) or "/".join(cluster),
        group_id=group_id_of(body),
        created_at=body["metadata"].get("creationTimestamp", ""),
        namespace=namespace,
        name=name,
    )


def is_owned_by(child: JsonObject, owner: JsonObject) -> bool:
    """Whether an object belongs to this very owner, and not to a deleted namesake of it."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(reference.get("uid") == owner["metadata"]["uid"] for reference in owners)
