"""Coordinators in the status of a KafkaCluster: lost ones, silent ones, crowded ones; nothing known is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.conditions import find_condition
from fleet_operator.planning.observation import BrokerInfo, ClusterObservation, OffsetsTopicInfo
from fleet_operator.planning.status.kafkacluster import find_crowded, project_kafkacluster_status
from fleet_operator.reconcilers.transitions import find_transitions
from tests.unit.planning import builders
from tests.unit.planning.builders import NOW, kafka_cluster, observation, unreachable
from tests.unit.planning.status.projecting import project as project_group

THREE = tuple(BrokerInfo(number, f"broker-{number}", 9092) for number in (1, 2, 3))


def seen(groups: Mapping[int, int], **changes: Any) -> ClusterObservation:
    base: dict[str, Any] = {"brokers": THREE, "group_count": sum(groups.values()), "groups_per_coordinator": groups}
    return observation(**(base | changes))


def project(found: ClusterObservation | None, previous: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return project_kafkacluster_status(kafka_cluster(), found, previous or {}, NOW)


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str, str]:
    found = find_condition(status["conditions"], kind)
    assert found is not None
    return found["status"], found["reason"], found["message"]


def test_crowded_broker_has_many_groups_and_more_than_twice_its_share() -> None:
    nobody = frozenset[int]()
    assert find_crowded(seen({1: 301, 2: 100, 3: 49}), nobody) == {1}
    assert find_crowded(seen({1: 300, 2: 100, 3: 50}), nobody) == nobody, "twice its share is not more"
    assert find_crowded(seen({1: 100, 2: 0, 3: 0}), nobody) == nobody, "few groups crowd nobody"
    assert find_crowded(seen({1: 5000}, brokers=THREE[:1]), nobody) == nobody, "the only broker has its share"


def test_crowded_broker_stays_so_until_it_is_clearly_below() -> None:
    assert find_crowded(seen({1: 240, 2: 120, 3: 120}), frozenset({1})) == frozenset()
    assert find_crowded(seen({1: 250, 2: 120, 3: 120}), frozenset({1})) == {1}
    partial = seen({1: 1, 2: 120}, group_count=None, silent_brokers=(3,))
    assert find_crowded(partial, frozenset({1})) == {1}, "an unknown number calms nobody"


def test_crowded_broker_is_shown_until_it_is_calm_again() -> None:
    status = project(seen({1: 400, 2: 50, 3: 50}))
    assert condition(status, "CoordinatorsBalanced")[:2] == ("False", "CoordinatorCrowded")
    assert "broker 1 coordinates" in condition(status, "CoordinatorsBalanced")[2]
    assert status["offsetsTopic"]["groupsPerCoordinator"][0] == {"broker": 1, "groups": 400, "crowded": True}
    again = project(seen({1: 300, 2: 100, 3: 100}), status)
    assert condition(again, "CoordinatorsBalanced") == condition(status, "CoordinatorsBalanced")
    calm = project(seen({1: 200, 2: 150, 3: 150}), again)
    assert condition(calm, "CoordinatorsBalanced")[:2] == ("True", "EvenlySpread")
    assert calm["offsetsTopic"]["groupsPerCoordinator"][0] == {"broker": 1, "groups": 200}
    away = project(unreachable(), status)
    assert condition(away, "CoordinatorsBalanced")[0] == "Unknown"
    assert away["offsetsTopic"] == status["offsetsTopic"]


def test_silent_broker_keeps_its_number_and_the_sum_stays_as_it_was() -> None:
    before = project(seen({1: 4, 2: 3, 3: 2}))
    status = project(seen({1: 5, 2: 3, 3: 2}, group_count=None, silent_brokers=(3,)), before)
    assert status["groupCount"] == 9
    assert status["brokerCount"] == 3
    assert status["offsetsTopic"]["groupsPerCoordinator"][2] == {"broker": 3, "groups": 2}
    assert condition(status, "CoordinatorsAvailable")[:2] == ("Unknown", "BrokersSilent")
    assert condition(status, "CoordinatorsBalanced")[:2] == ("Unknown", "BrokersSilent")


def test_lost_broker_is_counted_and_the_groups_without_a_coordinator_are_named() -> None:
    mine = naming.coordinator_partition("orders", 50)
    leaders = tuple(None if number == mine else 1 for number in range(50))
    topic = OffsetsTopicInfo(
        partitions=50,
        replication_factor=1,
        replicas=tuple((2,) if number == mine else (1,) for number in range(50)),
        leaders=leaders,
    )
    before = project(seen({1: 4, 2: 3, 3: 2}))
    one_less = tuple(broker for broker in THREE if broker.id != 2)
    lost = seen({1: 4, 3: 2}, brokers=one_less, offsets_topic=topic)
    status = project(lost, before)
    assert status["brokerCount"] == 2
    found = condition(status, "CoordinatorsAvailable")
    assert found[:2] == ("False", "PartitionsOffline")
    assert "1 of 50 partitions" in found[2]
    assert "orders" in found[2]
    assert found[2].endswith("start the brokers that host these partitions: 2")
    back = replace(lost, brokers=THREE, offsets_topic=replace(topic, leaders=(1,) * 50))
    assert condition(project(back, status), "CoordinatorsAvailable")[:2] == ("True", "AllCoordinated")


def test_another_cluster_is_not_judged() -> None:
    before = project(seen({1: 400, 2: 50, 3: 50}))
    cluster = kafka_cluster(status={"clusterId": "cluster-before"})
    status = project_kafkacluster_status(cluster, seen({1: 1}), before | {"clusterId": "cluster-before"}, NOW)
    assert condition(status, "CoordinatorsBalanced")[0] == "Unknown"
    assert status["offsetsTopic"] == before["offsetsTopic"]


def test_group_whose_coordinator_is_crowded_is_told_once() -> None:
    """Before its first member joins: the coordinator follows from the group's name."""
    calm, full = (
        kafka_cluster(status=project(seen(groups))) for groups in ({1: 3, 2: 3, 3: 3}, {1: 400, 2: 50, 3: 50})
    )
    before = project_group(builders.facts(cluster=calm))
    assert "crowded" not in before["coordinator"]
    after = project_group(builders.facts(cluster=full), before)
    assert after["coordinator"] == before["coordinator"] | {"crowded": True}
    told = [(transition.type, transition.reason) for transition in find_transitions(before, after)]
    assert told == [("Warning", "CoordinatorCrowded")]
    assert find_transitions(after, project_group(builders.facts(cluster=full), after)) == []
