"""Why a ConsumerGroup's spec cannot be turned into a revision, and how many workers should run.

An ordered chain: the first entry that applies is the root cause that people should mend first. A blocked group keeps
the fleet that it has; only a changed cluster id and an older object for the same Kafka group stop it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.sidecar import HANDLER_CONTAINER, handler_container
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.topic_pattern import PatternRefused, group_pattern


def find_blocking_problem(
    group: ConsumerGroup,
    cluster: KafkaCluster | None,
    *,
    older: Claim | None = None,
    handler_files: Mapping[str, str] | None = None,
    observation: ClusterObservation | None = None,
    retry_problem: Problem | None = None,
) -> Problem | None:
    """The first reason why no revision can be planned, or None.

    `older` is the claim of `duplicates.older_owner`; `handler_files` the content of the handler's ConfigMap, None
    when it does not exist (or is not asked for); `retry_problem` is why workers cannot be told of a retry policy.
    """
    if cluster is None:
        name = group.spec.cluster_ref.name
        return Problem(
            conditions.CLUSTER_NOT_FOUND,
            f"KafkaCluster {name!r} is not in namespace {group.metadata.namespace!r}: create it there "
            "(spec.clusterRef cannot be changed)",
        )
    if older is not None:
        return Problem(
            conditions.GROUP_ID_TAKEN,
            f"Kafka group {older.group_id!r} belongs to the older ConsumerGroup {older.namespace}/{older.name}: "
            "delete one of the two, or make this one anew with another spec.groupId",
        )
    if cluster_id_changed(cluster, observation):
        return Problem(conditions.CLUSTER_ID_CHANGED, changed_id_message(cluster, observation))
    mistake = _pattern_problem(group) or _container_problem(group) or _handler_problem(group, handler_files)
    return mistake or retry_problem


def _pattern_problem(group: ConsumerGroup) -> Problem | None:
    try:
        group_pattern(group)
    except PatternRefused as refused:
        return Problem(conditions.TOPIC_PATTERN_REFUSED, f"spec.topicPattern: {refused}")
    return None


def _container_problem(group: ConsumerGroup) -> Problem | None:
    if group.spec.handler.http is None or handler_container(group.spec.template) is not None:
        return None
    return Problem(
        conditions.HANDLER_CONTAINER_NOT_FOUND,
        f"spec.handler.http needs the container that serves it: name one {HANDLER_CONTAINER!r} in "
        "spec.template.containers",
    )


def _handler_problem(group: ConsumerGroup, handler_files: Mapping[str, str] | None) -> Problem | None:
    python = group.spec.handler.python
    reference = python.config_map_ref if python else None
    if python is None or reference is None:
        return None
    if handler_files is None:
        return Problem(
            conditions.HANDLER_SOURCE_NOT_FOUND,
            f"ConfigMap {reference.name!r} with the handler's source is not in namespace "
            f"{group.metadata.namespace!r}: create it, for example with "
            f"`kubectl create configmap {reference.name} --from-file=<module>.py`",
        )
    if not handler_files:
        return Problem(
            conditions.HANDLER_SOURCE_NOT_FOUND,
            f"ConfigMap {reference.name!r} has no text under `data`: put the module of {python.callable!r} there",
        )
    return None


def cluster_id_changed(cluster: KafkaCluster, observation: ClusterObservation | None) -> bool:
    """Whether another Kafka cluster answers than the one that the KafkaCluster's status was made from.

    One that answered last and is silent now still counts: its workers must not start because nobody can be asked.
    """
    known = cluster.status.get("clusterId")
    seen = observation.cluster_id if observation else None
    return bool(known and seen and known != seen)


def changed_id_message(cluster: KafkaCluster, observation: ClusterObservation | None) -> str:
    """What a person should do about a changed cluster id."""
    seen = observation.cluster_id if observation else None
    return (
        f"KafkaCluster {cluster.metadata.name!r} stood for cluster {cluster.status.get('clusterId')}, "
        f"and cluster {seen} answers now: offsets of the one mean nothing on the other. "
        "Correct spec.bootstrapServers, or delete the KafkaCluster and create it anew to accept the new cluster"
    )
