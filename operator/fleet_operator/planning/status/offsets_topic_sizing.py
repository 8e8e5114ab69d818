"""Differences between `__consumer_offsets` and a KafkaCluster's spec, with the remedy.

The number of partitions decides which broker coordinates a group. Brokers read the number once, at their start, so a
topic with another number leaves groups without a coordinator, silently. The operator changes nothing here: each problem
names the command or setting for a person.
"""

from __future__ import annotations

from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.kafkacluster import OffsetsTopic
from fleet_operator.planning.observation import ClusterObservation, OffsetsTopicInfo
from fleet_operator.planning.problem import Problem

COMPACT: Final = "compact"
USUAL_REPLICAS: Final = 3
"""Replicas where a KafkaCluster names no number, and has as many brokers."""


def offsets_topic_problem(observation: ClusterObservation, wanted: OffsetsTopic) -> Problem | None:
    """The gravest difference; None without one, and when the brokers will create the topic as wanted."""
    brokers_setting, topic = observation.broker_offsets_partitions, observation.offsets_topic
    if topic is None:
        return _not_made_yet(brokers_setting, wanted)
    return (
        _partitions(topic, wanted)
        or _brokers_setting(topic, brokers_setting)
        or _replication(topic, wanted, len(observation.brokers))
        or _compaction(topic)
        or _segments(topic, wanted)
    )


def _not_made_yet(brokers_setting: int | None, wanted: OffsetsTopic) -> Problem | None:
    """Last chance to choose the number of partitions."""
    if None in (brokers_setting, wanted.partitions) or brokers_setting == wanted.partitions:
        return None
    return Problem(
        conditions.BROKER_CONFIG_MISMATCH,
        f"__consumer_offsets does not exist yet, and the brokers would create it with {brokers_setting} partitions, "
        f"not {wanted.partitions}: set offsets.topic.num.partitions={wanted.partitions} on every broker and restart "
        "them before the first group is used",
    )


def _partitions(topic: OffsetsTopicInfo, wanted: OffsetsTopic) -> Problem | None:
    if wanted.partitions in (None, topic.partitions):
        return None
    return Problem(
        conditions.PARTITIONS_DIFFER,
        f"__consumer_offsets has {topic.partitions} partitions, spec.offsetsTopic.partitions says {wanted.partitions}. "
        "The number decides each group's coordinator and must never change once the topic is in use: set "
        f"spec.offsetsTopic.partitions to {topic.partitions}",
    )


def _brokers_setting(topic: OffsetsTopicInfo, setting: int | None) -> Problem | None:
    if setting is None or setting == topic.partitions:
        return None
    return Problem(
        conditions.BROKER_CONFIG_MISMATCH,
        f"__consumer_offsets has {topic.partitions} partitions, the brokers' offsets.topic.num.partitions is {setting}"
        ": correct the setting, or groups lose their coordinator if the topic is ever recreated",
    )


def _replication(topic: OffsetsTopicInfo, wanted: OffsetsTopic, brokers: int) -> Problem | None:
    usual = min(USUAL_REPLICAS, brokers)
    if topic.replication_factor >= (wanted.replication_factor or usual):
        return None
    says = f"spec.offsetsTopic.replicationFactor says {wanted.replication_factor}"
    if wanted.replication_factor is None:
        says = f"{usual} are usual with {brokers} brokers"
    return Problem(
        conditions.REPLICATION_TOO_LOW,
        f"__consumer_offsets has {topic.replication_factor} replicas of each partition, {says}: reassign its "
        "partitions with kafka-reassign-partitions.sh and a plan that names more brokers, or set "
        f"spec.offsetsTopic.replicationFactor to {topic.replication_factor}",
    )


def _compaction(topic: OffsetsTopicInfo) -> Problem | None:
    if topic.cleanup_policy is None or COMPACT in topic.cleanup_policy.split(","):
        return None
    return Problem(
        conditions.NOT_COMPACTED,
        f"__consumer_offsets has cleanup.policy={topic.cleanup_policy}, so committed offsets are deleted with time. "
        "Run kafka-configs.sh --alter --entity-type topics --entity-name __consumer_offsets "
        "--add-config cleanup.policy=compact",
    )


def _segments(topic: OffsetsTopicInfo, wanted: OffsetsTopic) -> Problem | None:
    if topic.segment_bytes is None or wanted.segment_bytes is None or topic.segment_bytes <= wanted.segment_bytes:
        return None
    return Problem(
        conditions.SEGMENTS_TOO_LARGE,
        f"__consumer_offsets has segment.bytes={topic.segment_bytes}, spec.offsetsTopic.segmentBytes says "
        f"{wanted.segment_bytes}. Run kafka-configs.sh --alter --entity-type topics --entity-name __consumer_offsets "
        f"--add-config segment.bytes={wanted.segment_bytes}, or raise the field",
    )
