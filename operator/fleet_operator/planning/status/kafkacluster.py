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
from fleet_operator.planning.status.members import shorten_id
from fleet_operator.planning.status.offsets_topic_sizing import offsets_topic_problem

COORDINATORS_MAX: Final = 100
ANSWERED_MAX: Final = 100


KEPT: Final = ("clusterId", "brokerCount", "metadataVersion", "groupCount", "offsetsTopic", "answered")
"""Fields that keep their last values while they cannot be observed."""


def project_kafkacluster_status(
    cluster: KafkaCluster, observation: ClusterObservation | None, previous: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """The whole status; `observation` is None before the first one."""
    observation = believed(as_of(observation, interval_s=cluster.spec.observe_interval_seconds, now=now))
    status = {key: previous[key] for key in KEPT if key in previous} | _observed(cluster, observation)
    reachable = _reachable(observation)
    found = (
        _ready(cluster, observation, reachable),
        reachable,
        _offsets_topic_sized(cluster, observation),
    )
    return c.with_conditions(status, found, times.to_text(now), cluster.metadata.generation, previous)


def _observed(cluster: KafkaCluster, observation: ClusterObservation | None) -> dict[str, Any]:
    if observation is None or not observation.reachable or cluster_id_changed(cluster, observation):
        return {}
    seen: dict[str, Any] = {"brokerCount": len(observation.brokers), "groupCount": observation.group_count}
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
            "groupsPerCoordinator": [{"broker": broker, "groups": groups} for broker, groups in carried],
        }
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


def _offsets_topic_sized(cluster: KafkaCluster, observation: ClusterObservation | None) -> Condition:
    kind = c.OFFSETS_TOPIC_SIZED
    if observation is None or not observation.reachable:
        return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the brokers could not be observed: see ClusterReachable")
    problem = offsets_topic_problem(observation, cluster.spec.offsets_topic)
    if problem is not None:
        return Condition(kind, "False", problem.reason, problem.message)
    topic = observation.offsets_topic
    if topic is None:
        message = "__consumer_offsets does not exist yet; brokers create it when the first group is used"
        return Condition(kind, "Unknown", c.NOT_CREATED_YET, message)
    message = f"{topic.partitions} partitions, {topic.replication_factor} replicas of each"
    return Condition(kind, "True", c.AS_WANTED, message)
