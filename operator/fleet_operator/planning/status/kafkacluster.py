"""Status of a KafkaCluster, projected from an observation. As stable as that of a ConsumerGroup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition, merge_conditions
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning import times
from fleet_operator.planning.fleet.blocking import changed_id_message, cluster_id_changed
from fleet_operator.planning.observation import ClusterObservation, as_of, believed
from fleet_operator.planning.status.members import shorten_id
from fleet_operator.planning.status.offsets_topic_sizing import offsets_topic_problem
from fleet_operator.planning.support import kafka_cluster_support

COORDINATORS_MAX: Final = 100
ANSWERED_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaClusterFacts:
    """Input of a KafkaCluster's status; `observation` is None before the first one."""

    cluster: KafkaCluster
    observation: ClusterObservation | None


def project_kafkacluster_status(facts: KafkaClusterFacts, previous: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The whole status; fields that could not be observed keep their last values."""
    interval_s = facts.cluster.spec.observe_interval_seconds
    facts = replace(facts, observation=believed(as_of(facts.observation, interval_s=interval_s, now=now)))
    generation = facts.cluster.metadata.generation
    kept = {
        key: previous[key] for key in ("clusterId", "brokerCount", "metadataVersion", "groupCount") if key in previous
    }
    kept |= {key: previous[key] for key in ("offsetsTopic", "answered") if key in previous}
    return {
        "observedGeneration": generation,
        **kept,
        **_observed(facts),
        "conditions": merge_conditions(
            previous.get("conditions") or (), _conditions(facts), times.to_text(now), observed_generation=generation
        ),
    }


def _observed(facts: KafkaClusterFacts) -> dict[str, Any]:
    observation = facts.observation
    if observation is None or not observation.reachable or cluster_id_changed(facts.cluster, observation):
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


def _conditions(facts: KafkaClusterFacts) -> Sequence[Condition]:
    reachable = _reachable(facts)
    return (_ready(facts, reachable), reachable, _offsets_topic_sized(facts), _spec_honored(facts))


def _ready(facts: KafkaClusterFacts, reachable: Condition) -> Condition:
    """True while the cluster answers and is still the same one."""
    if cluster_id_changed(facts.cluster, facts.observation):
        return Condition(c.READY, "False", c.CLUSTER_ID_CHANGED, changed_id_message(facts.cluster, facts.observation))
    return Condition(c.READY, reachable.status, reachable.reason, reachable.message)


def _reachable(facts: KafkaClusterFacts) -> Condition:
    observation = facts.observation
    if observation is None:
        return Condition(c.CLUSTER_REACHABLE, "Unknown", c.NOT_YET_OBSERVED, "the brokers have not been observed yet")
    if not observation.reachable:
        return Condition(c.CLUSTER_REACHABLE, "False", observation.reason or c.BROKER_UNREACHABLE, observation.message)
    return Condition(c.CLUSTER_REACHABLE, "True", c.REACHED, "the brokers answer")


def _offsets_topic_sized(facts: KafkaClusterFacts) -> Condition:
    """True if `__consumer_offsets` is as wanted."""
    kind, observation = c.OFFSETS_TOPIC_SIZED, facts.observation
    if observation is None or not observation.reachable:
        return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the brokers could not be observed: see ClusterReachable")
    problem = offsets_topic_problem(observation, facts.cluster.spec.offsets_topic)
    if problem is not None:
        return Condition(kind, "False", problem.reason, problem.message)
    topic = observation.offsets_topic
    if topic is None:
        message = "__consumer_offsets does not exist yet; brokers create it when the first group is used"
        return Condition(kind, "Unknown", c.NOT_CREATED_YET, message)
    message = f"{topic.partitions} partitions, {topic.replication_factor} replicas of each"
    return Condition(kind, "True", c.AS_WANTED, message)


def _spec_honored(facts: KafkaClusterFacts) -> Condition:
    support = kafka_cluster_support(facts.cluster.spec)
    if support.complete:
        return Condition(c.SPEC_HONORED, "True", c.ALL_FIELDS_HONORED, "every field of the spec has its effect")
    named = "; ".join(f"spec.{entry}" for entry in support.ignored)
    return Condition(c.SPEC_HONORED, "False", c.NOT_YET_AVAILABLE, f"not supported in this version: {named}")
