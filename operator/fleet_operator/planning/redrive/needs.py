"""Obstacles to starting a run of a Redrive, and reasons why there can never be one. Pure.

An ordered chain: the first entry that applies is what people should fix first.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import HEADERS_BYTES_MAX, SIZE, SOURCE_BYTES_DEFAULT
from fleet_consumer.contract.patterns import PatternRefused, compile_pattern
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.model import PAUSED_ANNOTATION
from fleet_operator.api.v1alpha1.redrive import Redrive
from fleet_operator.planning import times
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.blocking import changed_id_message, cluster_id_changed
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem


@dataclass(frozen=True, slots=True)
class Target:
    """The redrive topic of a run: its number of partitions, and the largest record that it takes."""

    partitions: int
    max_message_bytes: int


def find_refusal(redrive: Redrive) -> Problem | None:
    """The reason why an immutable spec can never be carried out, where the CRD cannot refuse it."""
    chosen = redrive.spec.filter
    if chosen is None:
        return None
    for field, text in (("errorRegex", chosen.error_regex), ("keyRegex", chosen.key_regex)):
        try:
            if text is not None:
                compile_pattern(text)
        except PatternRefused as refused:
            return Problem(c.FILTER_REFUSED, f"spec.filter.{field}: {refused}; create another Redrive")
    for field, text in (("fromTime", chosen.from_time), ("toTime", chosen.to_time)):
        if text is not None and times.from_text(text) is None:
            message = f"spec.filter.{field}: {text!r} is not a time (RFC 3339); create another Redrive"
            return Problem(c.FILTER_REFUSED, message)
    return None


def find_obstacle(
    redrive: Redrive,
    group: ConsumerGroup | None,
    cluster: KafkaCluster | Problem | None,
    seen: ClusterObservation | None,
    *,
    older: Claim | None = None,
) -> Problem | None:
    """The first reason why no run can be started now, or None.

    `cluster` is None only without a group; `older` is an older claim on the Kafka group.
    """
    name, namespace = redrive.spec.group_ref.name, redrive.metadata.namespace
    if group is None:
        return Problem(c.GROUP_NOT_FOUND, f"ConsumerGroup {name!r} is not in namespace {namespace!r}: create it there")
    if group.spec.retry is None:
        message = (
            f"ConsumerGroup {name!r} has no spec.retry, so no retry workers would handle the records put back: "
            "name a RetryPolicy in spec.retry"
        )
        return Problem(c.RETRY_NOT_CONFIGURED, message)
    if group.spec.suspend and not redrive.spec.dry_run:
        message = (
            f"ConsumerGroup {name!r} has spec.suspend: true, so no retry workers would handle the records put "
            "back: set it to false"
        )
        return Problem(c.GROUP_SUSPENDED, message)
    if group.paused:
        message = (
            f"ConsumerGroup {name!r} has the annotation {PAUSED_ANNOTATION}, so the operator starts nothing for it: "
            "remove the annotation"
        )
        return Problem(c.PAUSED_BY_ANNOTATION, message)
    assert cluster is not None, "a ConsumerGroup names a KafkaCluster"
    if isinstance(cluster, Problem):
        return cluster
    if older is not None:
        message = (
            f"Kafka group {older.group_id!r} belongs to ConsumerGroup {older.namespace}/{older.name}: "
            "create the Redrive there"
        )
        return Problem(c.GROUP_ID_TAKEN, message)
    if cluster_id_changed(cluster, seen):
        return Problem(c.CLUSTER_ID_CHANGED, changed_id_message(cluster, seen))
    if seen is None or not seen.current:
        return Problem(
            c.NOT_YET_OBSERVED, f"KafkaCluster {cluster.metadata.name!r} has not been observed as it is now: wait"
        )
    if not seen.reachable:
        return Problem(seen.reason or c.BROKER_UNREACHABLE, seen.message)
    return _topics_problem(group, seen)


def _topics_problem(group: ConsumerGroup, seen: ClusterObservation) -> Problem | None:
    for topic in (naming.failed_topic(group.group_id), naming.redrive_topic(group.group_id)):
        found = seen.topics.get(topic)
        if found is None or found.error is not None:
            error = found.error if found is not None else c.NOT_YET_OBSERVED
            message = f"topic {topic} cannot be used yet ({error}): see the condition TopicsReady of the ConsumerGroup"
            return Problem(c.TOPICS_NOT_READY, message)
    return None


def target_of(group: ConsumerGroup, seen: ClusterObservation) -> Target:
    """The redrive topic as it is; only for a group without an obstacle."""
    name = naming.redrive_topic(group.group_id)
    observed = seen.groups.get(group.group_id)
    retry = observed.retry if observed is not None else None
    source = retry.source_max_message_bytes if retry is not None else None
    managed = retry.topics.get(name) if retry is not None else None
    limit = ((managed.configs or {}) if managed is not None else {}).get(SIZE, "")
    return Target(
        partitions=seen.topics[name].partitions,
        max_message_bytes=int(limit) if limit.isdigit() else (source or SOURCE_BYTES_DEFAULT) + HEADERS_BYTES_MAX,
    )
