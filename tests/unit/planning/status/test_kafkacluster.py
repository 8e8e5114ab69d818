"""The status of a KafkaCluster, and what is said about `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.api.v1alpha1.conditions import KAFKA_CLUSTER_CONDITIONS, find_condition
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.planning.fleet.blocking import identity_after
from fleet_operator.planning.observation import BrokerInfo, ClusterObservation, OffsetsTopicInfo
from fleet_operator.planning.status.kafkacluster import project_kafkacluster_status
from tests.unit.planning.builders import NOW, kafka_cluster, observation, unreachable


def project(
    seen: ClusterObservation | None, previous: Mapping[str, Any] | None = None, cluster: KafkaCluster | None = None
) -> dict[str, Any]:
    return project_kafkacluster_status(identified(seen, cluster), seen, previous or {}, NOW)


def identified(seen: ClusterObservation | None, cluster: KafkaCluster | None = None) -> KafkaCluster:
    """The KafkaCluster as it is remembered after an observation."""
    found = cluster or kafka_cluster()
    return found.model_copy(update={"identity": identity_after(found, seen)})


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str, str]:
    found = find_condition(status["conditions"], kind)
    assert found is not None
    return found["status"], found["reason"], found["message"]


def test_reachable_cluster() -> None:
    status = project(observation(metadata_version=29))
    shown = {key: value for key, value in status.items() if key != "conditions"}
    assert shown == {
        "observedGeneration": 1,
        "clusterId": "cluster-a",
        "brokerCount": 2,
        "answered": ["broker-1:9092", "broker-2:9092"],
        "metadataVersion": 29,
        "groupCount": 7,
        "offsetsTopic": {
            "partitions": 50,
            "replicationFactor": 3,
            "groupsPerCoordinator": [{"broker": 1, "groups": 4}, {"broker": 2, "groups": 3}],
        },
    }
    assert [condition(status, kind)[:2] for kind in KAFKA_CLUSTER_CONDITIONS] == [
        ("True", "Reached"),
        ("True", "Reached"),
        ("True", "AsWanted"),
        ("True", "AllCoordinated"),
        ("True", "EvenlySpread"),
    ]


def test_first_visit_has_all_conditions() -> None:
    status = project(None)
    assert [c["type"] for c in status["conditions"]] == list(KAFKA_CLUSTER_CONDITIONS)
    assert condition(status, "Ready")[:2] == ("Unknown", "NotYetObserved")
    assert "brokerCount" not in status


def test_unreachable_cluster_keeps_its_status_and_reports_the_reason() -> None:
    before = project(observation())
    seen = unreachable("AuthenticationFailed", "check the password of user x")
    status = project(seen, before, identified(observation()))
    assert (status["clusterId"], status["brokerCount"]) == ("cluster-a", 2)
    assert condition(status, "Ready") == ("False", "AuthenticationFailed", "check the password of user x")
    assert condition(status, "OffsetsTopicSized")[0] == "Unknown"


def test_same_observation_gives_the_same_status() -> None:
    once = project(observation())
    assert project(observation(observed_at=NOW + 60), once) == once


def test_changed_cluster_id_is_reported_and_the_first_one_kept() -> None:
    cluster = kafka_cluster(status={"clusterId": "cluster-before"})
    status = project(observation(), {"clusterId": "cluster-before"}, cluster)
    assert status["clusterId"] == "cluster-before"
    assert condition(status, "Ready")[:2] == ("False", "ClusterIdChanged")
    assert "cluster-a" in condition(status, "Ready")[2]


def test_changed_cluster_id_stays_reported_until_an_id_is_seen() -> None:
    """A restarted operator, or an observer with a renewed Secret, has not seen one yet."""
    cluster = identified(observation(), kafka_cluster(identity=ClusterIdentity(cluster_id="cluster-before")))
    before = project(observation(), {}, cluster)
    for unknown in (None, replace(unreachable("AuthenticationFailed"), cluster_id=None)):
        status = project(unknown, before, cluster)
        assert condition(status, "Ready") == condition(before, "Ready")
    back = project(observation(cluster_id="cluster-before"), before, cluster)
    assert condition(back, "Ready")[0] == "True"


def topic(**changes: Any) -> OffsetsTopicInfo:
    base: dict[str, Any] = {"partitions": 50, "replication_factor": 3, "cleanup_policy": "compact"}
    return OffsetsTopicInfo(**(base | changes))


@pytest.mark.parametrize(
    ("why", "seen", "status", "reason", "remedy"),
    [
        (
            "brokers would make it with another number",
            {"offsets_topic": None, "broker_offsets_partitions": 10},
            "False",
            "BrokerConfigMismatch",
            "offsets.topic.num.partitions=50",
        ),
        (
            "nothing to compare yet",
            {"offsets_topic": None, "broker_offsets_partitions": 50},
            "Unknown",
            "NotCreatedYet",
            "",
        ),
        (
            "another number of partitions",
            {"offsets_topic": topic(partitions=10)},
            "False",
            "PartitionsDiffer",
            "set spec.offsetsTopic.partitions to 10",
        ),
        (
            "brokers restarted with another setting",
            {"offsets_topic": topic(), "broker_offsets_partitions": 10},
            "False",
            "BrokerConfigMismatch",
            "correct the setting",
        ),
        (
            "too few replicas",
            {"offsets_topic": topic(replication_factor=1)},
            "False",
            "ReplicationTooLow",
            "only 2 brokers are live",
        ),
        (
            "not compacted",
            {"offsets_topic": topic(cleanup_policy="delete")},
            "False",
            "NotCompacted",
            "cleanup.policy=compact",
        ),
        (
            "large segments",
            {"offsets_topic": topic(segment_bytes=1_073_741_824)},
            "False",
            "SegmentsTooLarge",
            "--add-config segment.bytes=104857600",
        ),
        ("compacted and deleted", {"offsets_topic": topic(cleanup_policy="compact,delete")}, "True", "AsWanted", ""),
        ("settings not readable", {"offsets_topic": topic(cleanup_policy=None)}, "True", "AsWanted", ""),
    ],
)
def test_offsets_topic(why: str, seen: dict[str, Any], status: str, reason: str, remedy: str) -> None:
    settings = {"partitions": 50, "replicationFactor": 3, "segmentBytes": 104_857_600}
    found = condition(project(observation(**seen), cluster=kafka_cluster(offsetsTopic=settings)), "OffsetsTopicSized")
    assert found[:2] == (status, reason), why
    assert remedy in found[2]


def test_one_broker_needs_no_settings() -> None:
    """A cluster for development has one replica of everything, and any number of partitions."""
    small = topic(partitions=10, replication_factor=1, segment_bytes=1_048_576)
    seen = observation(offsets_topic=small, broker_offsets_partitions=10, brokers=(BrokerInfo(1, "kafka", 9092),))
    assert condition(project(seen), "OffsetsTopicSized")[:2] == ("True", "AsWanted")
    seen = observation(offsets_topic=None, broker_offsets_partitions=10)
    assert condition(project(seen), "OffsetsTopicSized")[:2] == ("Unknown", "NotCreatedYet")
