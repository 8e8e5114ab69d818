"""Status of a KafkaCluster, projected from an observation. As stable as that of a ConsumerGroup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning import times
from fleet_operator.planning.fleet.blocking import changed_id_message, cluster_id_changed
from fleet_operator.planning.observation import ClusterObservation, as_of, believed
from fleet_operator.planning.offsets_topic import decide_offsets_topic, plan_reassignment
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.coordinators import (
    coordinators_available,
    coordinators_balanced,
    find_crowded,
    recorded_crowded,
)
from fleet_operator.planning.status.members import shorten_id

COORDINATORS_MAX: Final = 100
ANSWERED_MAX: Final = 100


KEPT: Final = ("clusterId", "brokerCount", "metadataVersion", "groupCount", "offsetsTopic", "answered")
"""Fields that keep their last values while they cannot be observed."""


def project_kafkacluster_status(
    cluster: KafkaCluster,
    observation: ClusterObservation | None,
    previous: Mapping[str, Any],
    now: float,
    *,
    refusal: Problem | None = None,
) -> dict[str, Any]:
    """The whole status; `observation` is None before the first one.

    `refusal` is that of the last attempt to create or change `__consumer_offsets`.
    """
    observation = believed(as_of(observation, interval_s=cluster.spec.observe_interval_seconds, now=now))
    ours = None if cluster_id_changed(cluster, observation) else observation
    crowded = recorded_crowded(previous)
    if ours is not None and ours.reachable:
        crowded = find_crowded(ours, crowded)
    status = {key: previous[key] for key in KEPT if key in previous} | _observed(cluster, observation, crowded)
    reachable = _reachable(observation)
    found = (
        _ready(cluster, observation, reachable),
        reachable,
        _offsets_topic_sized(cluster, observation, refusal),
        coordinators_available(ours),
        coordinators_balanced(ours, crowded),
    )
    return c.with_conditions(status, found, times.to_text(now), cluster.metadata.generation, previous)


def _observed(cluster: KafkaCluster, observation: ClusterObservation | None, crowded: frozenset[int]) -> dict[str, Any]:
    if observation is None or not observation.reachable or cluster_id_changed(cluster, observation):
        return {}
    seen: dict[str, Any] = {"brokerCount": len(observation.brokers)}
    if observation.group_count is not None:
        seen["groupCount"] = observation.group_count
    # Claims depend on it (see `claims`), so it goes with the cluster id.
    seen["answered"] = [shorten_id(address) for address in observation.answered[:ANSWERED_MAX]]
    if observation.cluster_id:
        seen["clusterId"] = observation.cluster_id
    if observation.metadata_version is not None:
        seen["metadataVersion"] = observation.metadata_version
    if observation.offsets_topic is not None:
        carried = sorted(observation.groups_per_coordinator.items())[:COORDINATORS_MAX]
        seen["offsetsTopic"] = {
            "partitions": observation.offsets_topic.partitions,
            "replicationFactor": observation.offsets_topic.replication_factor,
            "groupsPerCoordinator": [
                {"broker": broker, "groups": groups} | ({"crowded": True} if broker in crowded else {})
                for broker, groups in carried
            ],
        }
        reassignment = plan_reassignment(observation, cluster.spec.offsets_topic)
        if reassignment is not None:
            seen["offsetsTopic"]["reassignment"] = reassignment
    return seen


def _ready(cluster: KafkaCluster, observation: ClusterObservation | None, reachable: Condition) -> Condition:
    """True while the cluster answers and is still the same one."""
    if cluster_id_changed(cluster, observation):
        return Condition(c.READY, "False", c.CLUSTER_ID_CHANGED, changed_id_message(cluster, observation))
    return Condition(c.READY, reachable.status, reachable.reason, reachable.message)


def _reachable(observation: ClusterObservation | None) -> Condition:
    if observation is None:
        return Condition(c.CLUSTER_REACHABLE, "Unknown", c.NOT_YET_OBSERVED, "the brokers have not been observed yet")
    if not observation.reachable:
        return Condition(c.CLUSTER_REACHABLE, "False", observation.reason or c.BROKER_UNREACHABLE, observation.message)
    return Condition(c.CLUSTER_REACHABLE, "True", c.REACHED, "the brokers answer")


def _offsets_topic_sized(
    cluster: KafkaCluster, observation: ClusterObservation | None, refusal: Problem | None
) -> Condition:
    kind, wanted = c.OFFSETS_TOPIC_SIZED, cluster.spec.offsets_topic
    if observation is None or not observation.reachable:
        return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the brokers could not be observed: see ClusterReachable")
    decision = decide_offsets_topic(observation, wanted)
    if refusal is not None and not decision.idle:
        return Condition(kind, "False", refusal.reason, refusal.message)
    if decision.problem is not None:
        return Condition(kind, "False", decision.problem.reason, decision.problem.message)
    if decision.unknown is not None:
        return Condition(kind, "Unknown", decision.unknown.reason, decision.unknown.message)
    topic = observation.offsets_topic
    if topic is None:
        by = (
            "the operator creates it"
            if wanted.manage == "Provision"
            else "brokers create it when the first group is used"
        )
        return Condition(kind, "Unknown", c.NOT_CREATED_YET, f"__consumer_offsets does not exist yet; {by}")
    message = f"{topic.partitions} partitions, {topic.replication_factor} replicas of each"
    return Condition(kind, "True", c.AS_WANTED, message)
