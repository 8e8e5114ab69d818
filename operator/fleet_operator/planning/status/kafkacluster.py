"""Status of a KafkaCluster, built from an observation. Equal inputs give an equal status.

A broker is crowded if it coordinates more than `CROWD_LEAST` groups, and also more than `CROWD_FACTOR` times its share
of all groups. A broker's share is the mean number of groups per live broker. Kafka distributes groups evenly by a hash
of their names, so the cause is an uneven distribution of the leaders of `__consumer_offsets`. A crowded broker counts
as crowded until it has at most `CALM_FACTOR` times its share. So the status does not change each time a single group is
added or removed.

Decision: docs/decisions/0044-offsets-topic.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning import times
from fleet_operator.planning.fleet.blocking import find_changed_id
from fleet_operator.planning.observation import ClusterObservation, as_of, last_known
from fleet_operator.planning.offsets_topic import decide_offsets_topic, plan_reassignment
from fleet_operator.planning.problem import Problem, name_some

COORDINATORS_MAX: Final = 100
KEPT: Final = ("brokerCount", "metadataVersion", "groupCount", "offsetsTopic")
"""Fields of the status that keep their last values while the cluster cannot be observed."""


def project_kafkacluster_status(
    cluster: KafkaCluster,
    observation: ClusterObservation | None,
    previous: Mapping[str, Any],
    now: float,
    *,
    refusal: Problem | None = None,
) -> dict[str, Any]:
    """Build the whole status. `observation`: None before the first observation. `cluster`: its `identity` must already
    be updated from the observation. `refusal`: the reason why the last attempt to create or change `__consumer_offsets`
    failed; None if it did not fail."""
    observation = last_known(as_of(observation, interval_s=cluster.spec.observe_interval_seconds, now=now))
    changed = find_changed_id(cluster, observation)
    ours = observation if changed is None and observation is not None and observation.reachable else None
    crowded = recorded_crowded(previous)
    status = {key: previous[key] for key in KEPT if key in previous}
    if ours is not None:
        crowded = find_crowded(ours, crowded)
        status |= _observed(cluster, ours, crowded)
    identity = cluster.identity
    status |= {"clusterId": identity.cluster_id} if identity.cluster_id else {}
    status |= {"answered": list(identity.answered)} if identity.answered is not None else {}
    reachable = _reachable(observation)
    ready = replace(reachable, type=c.READY)
    if changed is not None:
        ready = Condition(c.READY, "False", changed.reason, changed.message)
    found = (
        ready,
        reachable,
        _offsets_topic_sized(cluster, observation, refusal),
        _coordinators_available(ours),
        _coordinators_balanced(ours, crowded),
    )
    return c.with_conditions(status, found, times.to_text(now), cluster.metadata.generation, previous)


def _observed(cluster: KafkaCluster, observation: ClusterObservation, crowded: frozenset[int]) -> dict[str, Any]:
    seen: dict[str, Any] = {"brokerCount": len(observation.brokers)}
    if observation.group_count is not None:
        seen["groupCount"] = observation.group_count
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


def _reachable(observation: ClusterObservation | None) -> Condition:
    if observation is None:
        return Condition(c.CLUSTER_REACHABLE, "Unknown", c.NOT_YET_OBSERVED, "the brokers have not been observed yet")
    if not observation.reachable:
        return Condition(c.CLUSTER_REACHABLE, "False", observation.reason or c.BROKER_UNREACHABLE, observation.message)
    return Condition(c.CLUSTER_REACHABLE, "True", c.REACHED, "the brokers answer")


def _not_observed(kind: str) -> Condition:
    return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the brokers could not be observed: see ClusterReachable")


def _offsets_topic_sized(
    cluster: KafkaCluster, observation: ClusterObservation | None, refusal: Problem | None
) -> Condition:
    kind, wanted = c.OFFSETS_TOPIC_SIZED, cluster.spec.offsets_topic
    if observation is None or not observation.reachable:
        return _not_observed(kind)
    decision = decide_offsets_topic(observation, wanted)
    problem = decision.problem if refusal is None or decision.idle else refusal
    if problem is not None:
        return Condition(kind, "False", problem.reason, problem.message)
    if decision.unknown is not None:
        return Condition(kind, "Unknown", decision.unknown.reason, decision.unknown.message)
    topic = observation.offsets_topic
    if topic is None:
        by = "brokers create it when the first group is used"
        if wanted.manage == "Provision":
            by = "the operator creates it"
        return Condition(kind, "Unknown", c.NOT_CREATED_YET, f"__consumer_offsets does not exist yet; {by}")
    message = f"{topic.partitions} partitions, {topic.replication_factor} replicas of each"
    return Condition(kind, "True", c.AS_WANTED, message)


CROWD_LEAST: Final = 100
CROWD_FACTOR: Final = 2.0
CALM_FACTOR: Final = 1.5


def find_crowded(observation: ClusterObservation, before: frozenset[int]) -> frozenset[int]:
    """Return the ids of the crowded brokers. While it is unknown how many groups each broker coordinates, return the
    live brokers that were crowded `before`."""
    brokers = {broker.id for broker in observation.brokers}
    if observation.group_count is None or not brokers:
        return before & brokers
    share = observation.group_count / len(brokers)
    return frozenset(
        broker
        for broker, groups in observation.groups_per_coordinator.items()
        if groups > CROWD_LEAST and groups > share * (CALM_FACTOR if broker in before else CROWD_FACTOR)
    )


def recorded_crowded(status: Mapping[str, Any]) -> frozenset[int]:
    entries = (status.get("offsetsTopic") or {}).get("groupsPerCoordinator") or ()
    return frozenset(int(entry["broker"]) for entry in entries if entry.get("crowded"))


def _coordinators_available(observation: ClusterObservation | None) -> Condition:
    """False while partitions of `__consumer_offsets` have no leader, because their groups then have no coordinator."""
    kind = c.COORDINATORS_AVAILABLE
    if observation is None:
        return _not_observed(kind)
    topic = observation.offsets_topic
    if topic is None:
        return Condition(kind, "Unknown", c.NOT_CREATED_YET, "__consumer_offsets does not exist: see OffsetsTopicSized")
    offline = [number for number, leader in enumerate(topic.leaders) if leader is None]
    if offline:
        live = {broker.id for broker in observation.brokers}
        missing = sorted({broker for number in offline for broker in topic.replicas[number]} - live)
        places = {name: naming.coordinator_partition(name, topic.partitions) for name in observation.groups}
        of_ours = sorted(group_id for group_id, place in places.items() if place in offline)
        affected = f"; affected groups of ConsumerGroups: {name_some(of_ours)}" if of_ours else ""
        absent = f" {', '.join(map(str, missing))}" if missing else ""
        message = (
            f"{len(offline)} of {topic.partitions} partitions of __consumer_offsets have no leader, so their groups "
            f"have no coordinator: members can neither join nor commit{affected}; start the brokers that host "
            f"these partitions:{absent}"
        )
        return Condition(kind, "False", c.PARTITIONS_OFFLINE, message)
    if observation.silent_brokers:
        named = ", ".join(map(str, observation.silent_brokers))
        message = f"broker {named} did not list its groups, so the status shows the last known number"
        return Condition(kind, "Unknown", c.BROKERS_SILENT, message)
    return Condition(kind, "True", c.ALL_COORDINATED, "every partition of __consumer_offsets has a leader")


def _coordinators_balanced(observation: ClusterObservation | None, crowded: frozenset[int]) -> Condition:
    """False while a broker is crowded (see the module). The message has no numbers that change often."""
    kind = c.COORDINATORS_BALANCED
    if observation is None:
        return _not_observed(kind)
    if crowded:
        named = ", ".join(map(str, sorted(crowded)))
        message = (
            f"broker {named} coordinates more than {CROWD_LEAST} groups and more than twice its share of them (see "
            "status.offsetsTopic.groupsPerCoordinator): run kafka-leader-election.sh --election-type preferred for "
            "__consumer_offsets, or spread its partitions with kafka-reassign-partitions.sh"
        )
        return Condition(kind, "False", c.COORDINATOR_CROWDED, message)
    if observation.group_count is None:
        message = "not every broker listed its groups: see CoordinatorsAvailable"
        return Condition(kind, "Unknown", c.BROKERS_SILENT, message)
    return Condition(kind, "True", c.EVENLY_SPREAD, "no broker coordinates far more groups than its share")
