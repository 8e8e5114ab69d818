"""Reads referenced ConsumerGroups and KafkaClusters from the caches."""

import logging
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.api.v1alpha1.model import CustomResource
from fleet_operator.api.v1alpha1.refs import cluster_of
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, KAFKA_CLUSTER, STATEFUL_SET, JsonObject
from fleet_operator.planning.fleet.blocking import SOURCE_FILES_MAX, cluster_invalid, cluster_not_found
from fleet_operator.planning.fleet.image import choose_image
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.observation import ClusterObservation, as_of
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.run import ReferencedGroup
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.group import GroupState
from fleet_operator.reconcilers.claims import find_rivals
from fleet_operator.reconcilers.context import Context, is_owned_by
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

M = TypeVar("M", bound=CustomResource)


def read_group(context: Context, key: Key) -> ReferencedGroup:
    body = context.store.get(CONSUMER_GROUP, key)
    if body is None or "deletionTimestamp" in body["metadata"]:
        return ReferencedGroup(gone=True)
    try:
        group = context.defaulted(ConsumerGroup.model_validate(body))
        state = context.states.read(body, GroupState)
    except ValidationError as error:
        return ReferencedGroup(unreadable=spec_problem(error))
    except UnreadableStateError as error:
        return ReferencedGroup(unreadable=error.problem)
    cluster = read_cluster(context, cluster_of(body))
    seen = read_observation(context, cluster, cluster_of(body))
    fleet = context.store.get(STATEFUL_SET, (key[0], MAIN.child(key[1])))
    own = fleet if fleet is not None and is_owned_by(fleet, body) else None
    image = choose_image(group, state.upgrade, own, default=context.settings.consumer_image).name
    older = find_rivals(context, body).older
    return ReferencedGroup(
        group=group,
        cluster=cluster,
        seen=seen,
        older=older,
        image=image,
        redriven=state.retries.redriven,
        offsets=state.offsets,
        memory_made_at=context.states.made_at(body),
    )


def read_group_state(context: Context, body: JsonObject) -> GroupState:
    """Read a ConsumerGroup's state. An unreadable state counts as empty; the ConsumerGroup's own reconcile reports the
    error."""
    try:
        return context.states.read(body, GroupState)
    except UnreadableStateError as error:
        log.warning("%s", error)
        return GroupState()


def read_cluster(context: Context, key: Key, *, ending: bool = False) -> KafkaCluster | Problem:
    """Read a KafkaCluster. Returns the problem if the KafkaCluster does not exist, is being deleted or cannot be
    parsed. With `ending`, a KafkaCluster that is being deleted is accepted, because groups that are also being deleted
    need it."""
    body = context.store.get(KAFKA_CLUSTER, key)
    if body is None or (body["metadata"].get("deletionTimestamp") and not ending):
        return cluster_not_found(*key)
    cluster = parse(KafkaCluster, body, ending=ending)
    if cluster is None:
        return cluster_invalid(*key)
    try:
        return identified(context, cluster, body)
    except UnreadableStateError as error:
        return error.problem


def identified(context: Context, cluster: KafkaCluster, body: JsonObject) -> KafkaCluster:
    """Add the identity from a KafkaCluster's state to its model. Raises UnreadableStateError."""
    return cluster.model_copy(update={"identity": context.states.read(body, ClusterIdentity)})


def read_observation(context: Context, cluster: KafkaCluster | Problem, key: Key) -> ClusterObservation | None:
    """The newest observation of a KafkaCluster. A very old observation is marked as unreachable, because its observer
    must be hanging. If the KafkaCluster's connection has been edited since the observation, the observation is marked
    as not `current`."""
    if isinstance(cluster, Problem):
        return None
    interval = float(cluster.spec.observe_interval_seconds)
    seen = as_of(context.observers.latest(key), interval_s=interval, now=context.clock.wall())
    if seen is None or seen.connection == cluster.spec.connection:
        return seen
    return replace(seen, current=False, identified=False)


async def read_source(store: Store, namespace: str, name: str) -> dict[str, str] | None:
    """The files of the ConfigMap with a handler's source, without binary data; None if the ConfigMap does not exist.
    Returns at most SOURCE_FILES_MAX + 1 files, so that the caller can detect too many files. Raises KubeError."""
    found = await store.content(CONFIG_MAP, (namespace, name))
    return None if found is None else dict(islice((found.get("data") or {}).items(), SOURCE_FILES_MAX + 1))


def parse(model: type[M], body: JsonObject | None, *, ending: bool = False) -> M | None:
    """Parse an object. Returns None if the object does not exist, cannot be parsed, or, without `ending`, is being
    deleted."""
    if body is None or (body["metadata"].get("deletionTimestamp") and not ending):
        return None
    try:
        return model.model_validate(body)
    except ValidationError as error:  # the object's own reconcile reports the error in a condition
        fields = {"key": "/".join(key_of(body)), "error": str(error)}
        log.warning("%s cannot be parsed", model.__name__, extra=fields)
        return None
