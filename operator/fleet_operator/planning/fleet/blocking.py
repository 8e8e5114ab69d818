"""Problems that keep a ConsumerGroup's spec from becoming a revision.

An ordered chain: the first problem is the root cause, to be fixed first. A blocked group keeps its fleet; only a
changed cluster id and an older owner of the Kafka group stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fleet_consumer.contract.patterns import PatternRefused
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity, KafkaCluster
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.restricted import find_template_problem
from fleet_operator.planning.fleet.sidecar import HANDLER_CONTAINER, handler_container
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.topic_pattern import group_pattern

ANSWERED_MAX: Final = 100
ADDRESS_CHARACTERS_MAX: Final = 256
SOURCE_FILES_MAX: Final = 250
"""Each is listed in the pod template."""
SECRET_PROBLEMS: Final = frozenset(
    {
        conditions.SECRET_NOT_LABELLED,
        conditions.SECRET_FORBIDDEN,
        conditions.SECRET_NOT_FOUND,
        conditions.SECRET_INCOMPLETE,
    }
)
"""Refusals of a KafkaCluster's Secrets. They hold for workers too: a pod mounts any Secret of its namespace."""


def find_blocking_problem(
    group: ConsumerGroup,
    cluster: KafkaCluster | Problem,
    *,
    older: Claim | None = None,
    handler_files: Mapping[str, str] | None = None,
    observation: ClusterObservation | None = None,
    retry_problem: Problem | None = None,
) -> Problem | None:
    """The first problem, or None.

    `older` is the claim of `claims.older_owner`; `handler_files` the content of the handler's ConfigMap, None for a
    missing one and without a reference; `retry_problem` keeps the retry policy from being published.
    """
    if isinstance(cluster, Problem):
        return cluster
    if older is not None:
        return Problem(
            conditions.GROUP_ID_TAKEN,
            f"Kafka group {older.group_id!r} belongs to ConsumerGroup {older.namespace}/{older.name}: "
            "delete one of the two, or recreate this one with another spec.groupId",
        )
    if cluster_id_changed(cluster, observation):
        return Problem(conditions.CLUSTER_ID_CHANGED, changed_id_message(cluster, observation))
    if observation is not None and observation.current and observation.reason in SECRET_PROBLEMS:
        return Problem(observation.reason, observation.message)
    # An unreachable cluster may have the topic.
    awaited = cluster.spec.offsets_topic.manage == "Provision" and not cluster.identity.had_offsets_topic
    if observation is not None and observation.lacks_offsets_topic and awaited:
        return _offsets_topic_absent(cluster)
    mistake = _pattern_problem(group) or find_template_problem(group.spec.template) or _container_problem(group)
    return mistake or find_source_problem(group, handler_files) or retry_problem


def cluster_not_found(namespace: str, name: str) -> Problem:
    """A ConsumerGroup's KafkaCluster does not exist, or is being deleted."""
    message = f"KafkaCluster {name!r} is not in namespace {namespace!r}: create it there"
    return Problem(conditions.CLUSTER_NOT_FOUND, f"{message} (spec.clusterRef cannot be changed)")


def cluster_invalid(namespace: str, name: str) -> Problem:
    """A ConsumerGroup's KafkaCluster exists and cannot be used: another version of the CRD accepted it."""
    message = (
        f"KafkaCluster {name!r} in namespace {namespace!r} has a spec that this operator cannot read: correct what its "
        "condition Ready names, and check that the CRDs are of the operator's version"
    )
    return Problem(conditions.CLUSTER_INVALID, message)


def _offsets_topic_absent(cluster: KafkaCluster) -> Problem:
    """The operator has yet to create `__consumer_offsets`: a worker that joins would have a broker do it."""
    message = (
        f"__consumer_offsets of KafkaCluster {cluster.metadata.name!r} has not been seen yet, and the operator is "
        "to create it before the first group is used: see the condition OffsetsTopicSized of the KafkaCluster"
    )
    return Problem(conditions.OFFSETS_TOPIC_ABSENT, message)


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
        f"spec.handler.http needs a container that serves it: add a container named {HANDLER_CONTAINER!r} to "
        "spec.template.spec.containers",
    )


def find_source_problem(group: ConsumerGroup, handler_files: Mapping[str, str] | None) -> Problem | None:
    """The problem of the ConfigMap with a handler's source, or None."""
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
            f"ConfigMap {reference.name!r} has no text under `data`: add the module of {python.callable!r}",
        )
    if len(handler_files) > SOURCE_FILES_MAX:
        return Problem(
            conditions.HANDLER_SOURCE_TOO_LARGE,
            f"ConfigMap {reference.name!r} has more than {SOURCE_FILES_MAX} files under `data`: put the modules into "
            "an image of your own, spec.image",
        )
    return None


def find_unproven_connection(
    cluster: KafkaCluster, observation: ClusterObservation | None, *, moved: bool
) -> Problem | None:
    """The reason why nothing may begin with a KafkaCluster's connection yet, or None.

    `moved` says that a fleet runs with another one. Until the operator has looked, nobody knows whether the Secrets may
    be used; and until it has seen the cluster id, whether a running fleet's offsets mean anything there.
    """
    name = cluster.metadata.name
    if observation is None or not observation.current:
        return Problem(conditions.NOT_YET_OBSERVED, f"KafkaCluster {name!r} has not been observed as it is now: wait")
    if moved and not (observation.identified and observation.cluster_id):
        message = (
            f"KafkaCluster {name!r} has another connection than the workers, and its cluster id has not been seen with "
            "it: see the condition ClusterReachable"
        )
        return Problem(conditions.NOT_YET_OBSERVED, message)
    return None


def cluster_id_changed(cluster: KafkaCluster, observation: ClusterObservation | None) -> bool:
    """True if another Kafka cluster answers than the one that the KafkaCluster was made for.

    The last answer counts while no broker answers: workers must not start because the other cluster is silent. While no
    id was seen with the present connection, the last verdict holds: neither a restart of the operator nor a renewed
    Secret takes it back.
    """
    known = cluster.identity.cluster_id
    seen = observation.cluster_id if observation else None
    if not known or (seen and seen != known):
        return bool(known)
    if seen and observation is not None and observation.identified:
        return False
    return bool(cluster.identity.other)


def changed_id_message(cluster: KafkaCluster, observation: ClusterObservation | None) -> str:
    known, other = cluster.identity.cluster_id, cluster.identity.other
    seen = observation.cluster_id if observation else None
    if other and seen in (None, known):
        return other
    return (
        f"KafkaCluster {cluster.metadata.name!r} had cluster id {known}, and its brokers now "
        f"report {seen}: offsets of one cluster are meaningless on another. Correct spec.bootstrapServers, or delete "
        "and recreate the KafkaCluster to accept the new cluster"
    )


def identity_after(cluster: KafkaCluster, observation: ClusterObservation | None) -> ClusterIdentity:
    """The identity of a KafkaCluster after an observation; the id of another cluster never takes its place."""
    known = cluster.identity
    if cluster_id_changed(cluster, observation):
        return replace(known, other=changed_id_message(cluster, observation))
    known = replace(known, other="")
    if observation is None or not observation.reachable:
        return known
    return replace(
        known,
        cluster_id=observation.cluster_id or known.cluster_id,
        answered=tuple(address[:ADDRESS_CHARACTERS_MAX] for address in observation.answered[:ANSWERED_MAX]),
        had_offsets_topic=known.had_offsets_topic or observation.offsets_topic is not None,
    )
