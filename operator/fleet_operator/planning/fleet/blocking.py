"""Problems that keep a ConsumerGroup's spec from becoming a revision.

The checks run in a chain, root causes first, so the first problem found is the one to fix. The fleet of a blocked group
keeps running, except after a change of the cluster id, or if an older claim owns the Kafka group.
"""

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
"""Maximum number of files in a handler's source. The number is limited because the pod template lists each file."""
SECRET_PROBLEMS: Final = frozenset(
    {
        conditions.SECRET_NOT_LABELLED,
        conditions.SECRET_FORBIDDEN,
        conditions.SECRET_NOT_FOUND,
        conditions.SECRET_INCOMPLETE,
    }
)
"""Reasons for which the operator refuses a KafkaCluster's Secrets. They also block the ConsumerGroups that use the
KafkaCluster. Otherwise workers could use a refused Secret, because Kubernetes lets a pod mount any Secret of its
namespace."""


def find_blocking_problem(
    group: ConsumerGroup,
    cluster: KafkaCluster | Problem,
    *,
    older: Claim | None = None,
    handler_files: Mapping[str, str] | None = None,
    observation: ClusterObservation | None = None,
    retry_problem: Problem | None = None,
) -> Problem | None:
    """The first problem that blocks a group; None without one.

    - `cluster`: the group's KafkaCluster, or the problem that makes it unusable.
    - `older`: the claim of another ConsumerGroup that owns the Kafka group; None without one.
    - `handler_files`: the files of the handler's ConfigMap; None if the ConfigMap is missing or not referenced.
    - `retry_problem`: the reason why the retry policy cannot be published.
    """
    if isinstance(cluster, Problem):
        return cluster
    if older is not None:
        return Problem(
            conditions.GROUP_ID_TAKEN,
            f"Kafka group {older.group_id!r} belongs to ConsumerGroup {older.namespace}/{older.name}: "
            "delete one of the two, or recreate this one with another spec.groupId",
        )
    changed = find_changed_id(cluster, observation)
    if changed is not None:
        return changed
    if observation is not None and observation.current and observation.reason in SECRET_PROBLEMS:
        return Problem(observation.reason, observation.message)
    # An observation of an unreachable cluster lacks the topic __consumer_offsets even if the topic exists. So the topic
    # counts as existing once it has been seen.
    awaited = cluster.spec.offsets_topic.manage == "Provision" and not cluster.identity.had_offsets_topic
    if observation is not None and observation.lacks_offsets_topic and awaited:
        # If the group were not blocked, a joining worker would make a broker create the topic with the broker's
        # settings.
        message = (
            f"__consumer_offsets of KafkaCluster {cluster.metadata.name!r} has not been seen yet; the operator creates "
            "it before the first group is used: see the condition OffsetsTopicSized of the KafkaCluster"
        )
        return Problem(conditions.OFFSETS_TOPIC_ABSENT, message)
    mistake = _pattern_problem(group) or find_template_problem(group.spec.template) or _container_problem(group)
    return mistake or find_source_problem(group, handler_files) or retry_problem


def cluster_not_found(namespace: str, name: str) -> Problem:
    """The problem of a ConsumerGroup whose KafkaCluster does not exist, or is being deleted."""
    message = f"KafkaCluster {name!r} is not in namespace {namespace!r}: create it there"
    return Problem(conditions.CLUSTER_NOT_FOUND, f"{message} (spec.clusterRef cannot be changed)")


def cluster_invalid(namespace: str, name: str) -> Problem:
    """The problem of a KafkaCluster that this operator cannot parse; a CRD of another version may have accepted it."""
    message = (
        f"KafkaCluster {name!r} in namespace {namespace!r} has a spec that this operator cannot read: correct the "
        "field that its condition Ready names, and check that the CRDs have the operator's version"
    )
    return Problem(conditions.CLUSTER_INVALID, message)


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
            "an image of your own, and set spec.image to it",
        )
    return None


def find_unproven_connection(
    cluster: KafkaCluster, observation: ClusterObservation | None, *, moved: bool
) -> Problem | None:
    """The reason why no pod may start with a KafkaCluster's connection yet; None if pods may start.

    Until the operator has observed the cluster with this connection, it is unknown if the Secrets may be used. `moved`:
    the fleet runs with another connection. In this case, the cluster id must first be read with the new connection,
    because the fleet's offsets are invalid in another cluster."""
    name = cluster.metadata.name
    if observation is None or not observation.current:
        return Problem(
            conditions.NOT_YET_OBSERVED, f"KafkaCluster {name!r} has not been observed since its last change: wait"
        )
    if moved and not (observation.identified and observation.cluster_id):
        message = (
            f"KafkaCluster {name!r} now has another connection than the workers use, and its cluster id has not been "
            "seen with the new connection: see the condition ClusterReachable"
        )
        return Problem(conditions.NOT_YET_OBSERVED, message)
    return None


def find_changed_id(cluster: KafkaCluster, observation: ClusterObservation | None) -> Problem | None:
    """The problem that the brokers report another cluster id than the KafkaCluster has recorded; None without it.

    An earlier problem persists while no broker answers. Otherwise workers would start as soon as the other cluster
    became unreachable. The problem also persists after a restart of the operator or a change of the Secret. It ends
    once the recorded cluster id is seen with the present connection."""
    known, message = cluster.identity.cluster_id, cluster.identity.other
    seen = observation.cluster_id if observation else None
    if seen and seen != known:
        message = (
            f"KafkaCluster {cluster.metadata.name!r} had cluster id {known}, and its brokers now "
            f"report {seen}: offsets of one cluster are meaningless on another. Correct spec.bootstrapServers, or "
            "delete and recreate the KafkaCluster to accept the new cluster"
        )
    elif seen and observation is not None and observation.identified:
        return None
    return Problem(conditions.CLUSTER_ID_CHANGED, message) if known and message else None


def identity_after(cluster: KafkaCluster, observation: ClusterObservation | None) -> ClusterIdentity:
    """The KafkaCluster's identity after an observation. A recorded cluster id is never replaced by another id."""
    changed = find_changed_id(cluster, observation)
    known = replace(cluster.identity, other="" if changed is None else changed.message)
    if changed is not None or observation is None or not observation.reachable:
        return known
    return replace(
        known,
        cluster_id=observation.cluster_id or known.cluster_id,
        answered=tuple(address[:ADDRESS_CHARACTERS_MAX] for address in observation.answered[:ANSWERED_MAX]),
        had_offsets_topic=known.had_offsets_topic or observation.offsets_topic is not None,
    )
