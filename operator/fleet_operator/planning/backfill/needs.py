"""Obstacles that prevent an attempt of a Backfill now, and errors that prevent every attempt. Pure.

Each function reports only the first problem that applies. The problems are checked in the order in which a user has to
fix them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import SPARK_CONF, Backfill
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning import run
from fleet_operator.planning.backfill.ranges import find_range_refusal
from fleet_operator.planning.fleet.blocking import SECRET_PROBLEMS
from fleet_operator.planning.fleet.restricted import find_template_problem
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import ReferencedGroup
from fleet_operator.planning.topic_pattern import usable_pattern

BROKERS: Final = "__"
ANOTHER: Final = "create another Backfill"


def find_refusal(backfill: Backfill, group: ConsumerGroup | None) -> Problem | None:
    """Return the first error in the spec that makes every attempt impossible; None without one. The API server may have
    accepted the spec with this error. The error is final, because the spec is immutable."""
    pattern = backfill.spec.filter.key_regex if backfill.spec.filter is not None else None
    refused_key = run.refuse_pattern("spec.filter.keyRegex", pattern, ANOTHER)
    problem = refused_key or find_range_refusal(backfill) or _conf_refusal(backfill)
    if problem is not None or group is None:
        return problem
    topic = source_topic(backfill, group)
    return topic if isinstance(topic, Problem) else _sink_refusal(backfill, group, topic)


def find_handler_refusal(backfill: Backfill, worker: Mapping[str, Any]) -> Problem | None:
    """Return the reason why the group's handler cannot run on Spark, or None. `worker` is the group's worker.json."""
    name, python = backfill.spec.group_ref.name, worker["handler"].get("python")
    if python is None:
        if backfill.spec.compare is None:
            return None
        message = (
            f"ConsumerGroup {name!r} has an HTTP handler, and a comparison calls Python handlers only: give the group "
            f"a Python handler (spec.handler.python) and {ANOTHER}"
        )
        return Problem(c.HANDLER_UNSUPPORTED, message)
    if python.get("path") is None and backfill.spec.spark.image is None:
        message = (
            f"handler {python['callable']!r} of ConsumerGroup {name!r} is in the workers' image: build an image FROM "
            f"Consumer Fleet's Spark image that contains the handler, and {ANOTHER} with this image in spec.spark.image"
        )
        return Problem(c.SPARK_IMAGE_REQUIRED, message)
    return None


def source_topic(backfill: Backfill, group: ConsumerGroup) -> str | Problem:
    if backfill.topic is not None:
        return backfill.topic
    if len(group.source_topics) == 1:
        return group.source_topics[0]
    seen = "a topic pattern" if group.spec.topic_pattern is not None else f"{len(group.source_topics)} topics"
    message = f"ConsumerGroup {group.metadata.name!r} has {seen}: {ANOTHER} with one topic in spec.source.topic"
    return Problem(c.SOURCE_TOPIC_REQUIRED, message)


def other_topics(backfill: Backfill, group: ConsumerGroup) -> tuple[str, ...]:
    """Return the topics to which a run writes; they must exist. A dry run writes to no topic."""
    if backfill.spec.dry_run:
        return ()
    sink = backfill.spec.sink.topic
    failed = (naming.failed_topic(group.group_id),) if backfill.spec.on_error == "FailedTopic" else ()
    return (*((sink.name,) if sink is not None else ()), *failed)


def missing_topic(group: ConsumerGroup, unknown: Iterable[str]) -> Problem | None:
    """Return a problem if a topic to which the run would write does not exist. `unknown`: all such topics; the problem
    names the first one. None if `unknown` is empty."""
    for topic in unknown:
        if topic == naming.failed_topic(group.group_id):
            message = (
                f"failed topic {topic!r} does not exist: see the condition TopicsReady of ConsumerGroup "
                f"{group.metadata.name!r}"
            )
            return Problem(c.FAILED_TOPIC_NOT_FOUND, message)
        return Problem(c.SINK_TOPIC_NOT_FOUND, f"topic {topic!r} of spec.sink.topic does not exist: create it")
    return None


def find_obstacle(backfill: Backfill, found: ReferencedGroup) -> Problem | None:
    group, seen = found.group, found.seen
    if group is None:
        return run.no_group(backfill, found)
    cluster = run.find_group_obstacle("Backfill", group, found)
    if isinstance(cluster, Problem):
        return cluster
    memory_gap = run.find_memory_gap(backfill, found, ANOTHER, begun=backfill.attempts > 0)
    return _cluster_obstacle(cluster, seen) or memory_gap or find_template_problem(group.spec.template)


def _cluster_obstacle(cluster: KafkaCluster, seen: ClusterObservation | None) -> Problem | None:
    name = cluster.metadata.name
    obstacle = run.find_connection_obstacle(cluster, seen)
    if obstacle is not None or seen is None:
        return obstacle
    if seen.reason in SECRET_PROBLEMS:
        return Problem(seen.reason, seen.message)
    if not (seen.identified and seen.cluster_id):
        message = f"the cluster id of KafkaCluster {name!r} has not been observed with its present connection: wait"
        return Problem(c.NOT_YET_OBSERVED, message)
    return None


def _conf_refusal(backfill: Backfill) -> Problem | None:
    """Refuse the Spark settings that this version's CRD refuses, because the cluster may have an older CRD."""
    for name in backfill.spec.spark.spark_conf:
        if re.search(SPARK_CONF, name) is None:
            return Problem(c.SPARK_CONF_REFUSED, f"spec.spark.sparkConf must not set {name}: {ANOTHER} without it")
    return None


def _sink_refusal(backfill: Backfill, group: ConsumerGroup, source: str) -> Problem | None:
    sink = backfill.spec.sink.topic
    if sink is None:
        return None
    pattern = usable_pattern(group)
    matches = pattern is not None and naming.pattern_matches(pattern, sink.name)
    if naming.is_managed_topic(sink.name) or sink.name.startswith(BROKERS):
        seen = "is managed by Consumer Fleet or by the brokers"
    elif sink.name == source or sink.name in group.source_topics or matches:
        seen = f"is read by ConsumerGroup {group.metadata.name!r}, which would handle the output as new records"
    elif sink.name in group.spec.handler.outputs:
        seen = (
            f"is in spec.handler.outputs of ConsumerGroup {group.metadata.name!r}, so the readers of this topic would "
            "handle the output as new records"
        )
    else:
        return None
    message = f"spec.sink.topic.name: {sink.name!r} {seen}: {ANOTHER} with a topic that has no other use"
    return Problem(c.SINK_TOPIC_REFUSED, message)
