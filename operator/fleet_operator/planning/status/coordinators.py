"""Group coordinators of a Kafka cluster: those that are missing, those that do not answer, and crowded ones.

A broker is crowded when it coordinates more than `CROWD_LEAST` groups and more than `CROWD_FACTOR` times its share: the
number of groups divided by that of live brokers. The hash of group names spreads groups so evenly that chance alone
does not come near this: leaders of `__consumer_offsets` are then unevenly spread. A broker stays crowded until it is
below `CALM_FACTOR`, so that a group that comes and goes turns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import name_some

CROWD_LEAST: Final = 100
CROWD_FACTOR: Final = 2.0
CALM_FACTOR: Final = 1.5


def find_crowded(observation: ClusterObservation, before: frozenset[int]) -> frozenset[int]:
    """The crowded brokers; `before` are those that were. They stay the same while a broker's number is unknown."""
    brokers, carried = {broker.id for broker in observation.brokers}, observation.groups_per_coordinator
    if observation.group_count is None or not brokers:
        return before & brokers
    share = observation.group_count / len(brokers)
    return frozenset(
        broker
        for broker, groups in carried.items()
        if groups > CROWD_LEAST and groups > share * (CALM_FACTOR if broker in before else CROWD_FACTOR)
    )


def recorded_crowded(status: Mapping[str, Any]) -> frozenset[int]:
    """The brokers that a KafkaCluster's status shows as crowded."""
    entries = (status.get("offsetsTopic") or {}).get("groupsPerCoordinator") or ()
    return frozenset(int(entry["broker"]) for entry in entries if entry.get("crowded"))


def coordinators_available(observation: ClusterObservation | None) -> Condition:
    """False while partitions of `__consumer_offsets` have no leader: their groups have no coordinator."""
    kind = c.COORDINATORS_AVAILABLE
    if observation is None or not observation.reachable:
        return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the brokers could not be observed: see ClusterReachable")
    topic = observation.offsets_topic
    if topic is None:
        return Condition(kind, "Unknown", c.NOT_CREATED_YET, "__consumer_offsets is not there: see OffsetsTopicSized")
    offline = [number for number, leader in enumerate(topic.leaders) if leader is None]
    if offline:
        missing = sorted({broker for number in offline for broker in topic.replicas[number]} - _live(observation))
        of_ours = sorted(
            group_id
            for group_id in observation.groups
            if naming.coordinator_partition(group_id, topic.partitions) in offline
        )
        affected = f"; of the groups of ConsumerGroups: {name_some(of_ours)}" if of_ours else ""
        absent = f" {', '.join(map(str, missing))}" if missing else ""
        message = (
            f"{len(offline)} of {topic.partitions} partitions of __consumer_offsets have no leader, so their groups "
            f"have no coordinator and neither members nor commits{affected}; start the brokers that hold them:{absent}"
        )
        return Condition(kind, "False", c.PARTITIONS_OFFLINE, message)
    if observation.silent_brokers:
        named = ", ".join(map(str, observation.silent_brokers))
        message = f"broker {named} did not list its groups: their number is the last known one"
        return Condition(kind, "Unknown", c.BROKERS_SILENT, message)
    return Condition(kind, "True", c.ALL_COORDINATED, "every partition of __consumer_offsets has a leader")


def coordinators_balanced(observation: ClusterObservation | None, crowded: frozenset[int]) -> Condition:
    """False while a broker coordinates far more groups than its share. Messages hold no numbers that change often."""
    kind = c.COORDINATORS_BALANCED
    if observation is None or not observation.reachable:
        return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the brokers could not be observed: see ClusterReachable")
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


def _live(observation: ClusterObservation) -> set[int]:
    return {broker.id for broker in observation.brokers}
