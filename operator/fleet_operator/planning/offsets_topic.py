"""`__consumer_offsets` compared with a KafkaCluster's spec: differences, remedies, and what the operator may do. Pure.

The number of partitions decides which broker coordinates a group. Brokers read the number once: the topic's own, or
their setting while there is no topic. A topic of another number leaves groups without a coordinator, silently. So with
`manage: Provision` the topic is created while it is absent and only where every broker's setting is that number; later
its settings are corrected, never its partitions or replicas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.kafkacluster import OffsetsTopic
from fleet_operator.planning.observation import BrokerSettings, ClusterObservation, OffsetsTopicInfo
from fleet_operator.planning.problem import Problem

OFFSETS_TOPIC: Final = "__consumer_offsets"
POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
SEGMENT: Final = "segment.bytes"
PRODUCERS_COMPRESSION: Final = {"compression.type": "producer"}
"""Like the policy and the segment size, a setting that brokers give the topic when they create it themselves (Kafka:
`GroupCoordinatorService.groupMetadataTopicConfigs`)."""
USUAL_REPLICAS: Final = 3
"""Replicas where a KafkaCluster names no number, and has as many brokers."""
REASSIGNMENT_CHARACTERS_MAX: Final = 65_536
"""Limit of the plan in the status; one of 50 partitions has 3,500."""
SETTINGS: Final[Mapping[str, Callable[[BrokerSettings], int | None]]] = {
    "offsets.topic.num.partitions": lambda settings: settings.partitions,
    "offsets.topic.replication.factor": lambda settings: settings.replication_factor,
    "offsets.topic.segment.bytes": lambda settings: settings.segment_bytes,
}
"""The brokers' settings from which they create the topic, with their place in an observation."""
PARTITIONS_SETTING, REPLICATION_SETTING, SEGMENT_SETTING = SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopicDecision:
    """The gravest difference, None without one; the topic to create; and the settings to set.

    `unknown` is what hides from a person if there is a difference, or keeps the operator from creating the topic.
    """

    problem: Problem | None = None
    unknown: Problem | None = None
    create: WantedTopic | None = None
    alter: Mapping[str, str] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return self.create is None and not self.alter


def decide_offsets_topic(observation: ClusterObservation, wanted: OffsetsTopic) -> OffsetsTopicDecision:
    topic = observation.offsets_topic
    if observation.offsets_topic_error is not None:
        reason = observation.offsets_topic_error
        message = (
            f"{OFFSETS_TOPIC} cannot be described, the brokers answer {reason}: let the operator's principal Describe "
            "and DescribeConfigs this topic"
        )
        return OffsetsTopicDecision(unknown=Problem(reason, message))
    if topic is None:
        return _decide_absent(observation, wanted)
    settled = _partitions(topic, wanted) or _brokers_setting(topic, observation)
    compaction, segments = _compaction(topic), _segments(topic, wanted)
    problem = settled or _replication(topic, wanted, observation) or compaction or segments
    alter: dict[str, str] = {}
    if wanted.manage == "Provision" and settled is None:
        alter |= {POLICY: COMPACT} if compaction is not None else {}
        alter |= {SEGMENT: str(wanted.segment_bytes)} if segments is not None else {}
    return OffsetsTopicDecision(problem=problem, alter=alter)


def plan_reassignment(observation: ClusterObservation, wanted: OffsetsTopic) -> str | None:
    """A plan for kafka-reassign-partitions.sh that gives every partition its wanted replicas; None if none is missing.

    Present replicas stay in their order, so no leader moves. New ones are live brokers, dealt in a circle. Also None
    where too few brokers live, and for a topic so large that the plan fits no status.
    """
    topic, live = observation.offsets_topic, [broker.id for broker in observation.brokers]
    count = _wanted_replicas(wanted, len(live)) if topic is not None else 0
    if topic is None or not topic.replicas or topic.replication_factor >= count or len(live) < count:
        return None
    moves = [
        {"topic": OFFSETS_TOPIC, "partition": number, "replicas": _extended(present, live, number, count)}
        for number, present in enumerate(topic.replicas)
        if len(present) < count
    ]
    text = json.dumps({"version": 1, "partitions": moves}, separators=(",", ":"))
    return text if len(text) <= REASSIGNMENT_CHARACTERS_MAX else None


def _extended(present: Sequence[int], live: Sequence[int], number: int, count: int) -> list[int]:
    start = number % len(live)
    others = [broker for broker in (*live[start:], *live[:start]) if broker not in present]
    return [*present, *others[: count - len(present)]]


def _decide_absent(observation: ClusterObservation, wanted: OffsetsTopic) -> OffsetsTopicDecision:
    """Last chance to choose the number of partitions."""
    found = {broker.id: observation.broker_settings.get(broker.id, BrokerSettings()) for broker in observation.brokers}
    mismatch = _mismatch(found, wanted)
    if mismatch is not None or wanted.manage != "Provision":
        return OffsetsTopicDecision(problem=mismatch)
    for name, read in SETTINGS.items():
        untold = [str(broker) for broker, settings in found.items() if read(settings) is None]
        if untold or not found:
            message = (
                f"{OFFSETS_TOPIC} does not exist yet, and is not created before every broker has told its {name}: "
                f"broker {', '.join(untold)} did not; let the operator's principal DescribeConfigs the cluster, and "
                "check that these brokers answer"
            )
            return OffsetsTopicDecision(unknown=Problem(conditions.BROKER_CONFIG_UNKNOWN, message))
    some = next(iter(found.values()))
    # What the spec leaves open follows the brokers, all of them: where they differ, it has to be named.
    for name, read, named in (
        (REPLICATION_SETTING, SETTINGS[REPLICATION_SETTING], wanted.replication_factor),
        (SEGMENT_SETTING, SETTINGS[SEGMENT_SETTING], wanted.segment_bytes),
    ):
        if named is None and len({read(settings) for settings in found.values()}) > 1:
            field_name = "replicationFactor" if name == REPLICATION_SETTING else "segmentBytes"
            message = (
                f"{OFFSETS_TOPIC} does not exist yet, and the brokers differ in {name} ({_listed(found, read)}): set "
                f"spec.offsetsTopic.{field_name}, or the same value on every broker"
            )
            return OffsetsTopicDecision(problem=Problem(conditions.BROKER_CONFIG_MISMATCH, message))
    replicas = wanted.replication_factor or some.replication_factor
    assert replicas is not None, "every broker has told its settings"
    assert some.partitions is not None, "every broker has told its settings"
    if replicas > len(found):
        message = (
            f"{OFFSETS_TOPIC} does not exist yet and is to have {replicas} replicas of each partition, but only "
            f"{len(found)} brokers live: start the others, or set spec.offsetsTopic.replicationFactor to fewer"
        )
        return OffsetsTopicDecision(problem=Problem(conditions.NOT_ENOUGH_BROKERS, message))
    segment = str(wanted.segment_bytes or some.segment_bytes)
    configs = {POLICY: COMPACT, SEGMENT: segment, **PRODUCERS_COMPRESSION}
    topic = WantedTopic(name=OFFSETS_TOPIC, partitions=some.partitions, replication_factor=replicas, configs=configs)
    return OffsetsTopicDecision(create=topic)


def _mismatch(found: Mapping[int, BrokerSettings], wanted: OffsetsTopic) -> Problem | None:
    """Brokers that would create the topic with another number than is wanted, or than the others."""
    counts = {settings.partitions for settings in found.values()} - {None}
    if not counts or counts == {wanted.partitions or next(iter(counts))}:
        return None
    seen = _listed(found, SETTINGS[PARTITIONS_SETTING])
    number = wanted.partitions if wanted.partitions is not None else "<number>"
    says = f"spec.offsetsTopic.partitions says {number}" if wanted.partitions is not None else "they differ"
    return Problem(
        conditions.BROKER_CONFIG_MISMATCH,
        f"{OFFSETS_TOPIC} does not exist yet, the brokers' {PARTITIONS_SETTING} is {seen}, and {says}: groups of a "
        f"topic of another number would wait for a coordinator without end. Set {PARTITIONS_SETTING}={number} on every "
        "broker and restart them before the first group is used",
    )


def _listed(found: Mapping[int, BrokerSettings], read: Callable[[BrokerSettings], int | None]) -> str:
    """`50`, or by broker where they differ: `50 (brokers 1, 2), 10 (broker 3)`."""
    by_value: dict[int | None, list[int]] = {}
    for broker, settings in sorted(found.items()):
        by_value.setdefault(read(settings), []).append(broker)
    if len(by_value) == 1:
        return str(next(iter(by_value)))
    texts = []
    for value, brokers in by_value.items():
        named = f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}"
        texts.append(f"{value if value is not None else 'unknown'} ({named})")
    return ", ".join(texts)


def _partitions(topic: OffsetsTopicInfo, wanted: OffsetsTopic) -> Problem | None:
    if wanted.partitions in (None, topic.partitions):
        return None
    return Problem(
        conditions.PARTITIONS_DIFFER,
        f"{OFFSETS_TOPIC} has {topic.partitions} partitions, spec.offsetsTopic.partitions says {wanted.partitions}. "
        "The number decides each group's coordinator and must never change once the topic is in use: set "
        f"spec.offsetsTopic.partitions to {topic.partitions}",
    )


def _brokers_setting(topic: OffsetsTopicInfo, observation: ClusterObservation) -> Problem | None:
    found = {
        broker.id: settings
        for broker in observation.brokers
        if (settings := observation.broker_settings.get(broker.id)) is not None and settings.partitions is not None
    }
    if all(settings.partitions == topic.partitions for settings in found.values()):
        return None
    seen = _listed(found, SETTINGS[PARTITIONS_SETTING])
    return Problem(
        conditions.BROKER_CONFIG_MISMATCH,
        f"{OFFSETS_TOPIC} has {topic.partitions} partitions, the brokers' {PARTITIONS_SETTING} is {seen}: correct the "
        "setting, or groups lose their coordinator if the topic is ever recreated",
    )


def _wanted_replicas(wanted: OffsetsTopic, brokers: int) -> int:
    return wanted.replication_factor or min(USUAL_REPLICAS, brokers)


def _replication(topic: OffsetsTopicInfo, wanted: OffsetsTopic, observation: ClusterObservation) -> Problem | None:
    brokers = len(observation.brokers)
    count = _wanted_replicas(wanted, brokers)
    if topic.replication_factor >= count:
        return None
    says = f"spec.offsetsTopic.replicationFactor says {wanted.replication_factor}"
    if wanted.replication_factor is None:
        says = f"{count} are usual with {brokers} brokers"
    remedy = "reassign its partitions with kafka-reassign-partitions.sh and a plan that names more brokers"
    if count > brokers:
        remedy = f"only {brokers} brokers live: start more, and reassign its partitions then"
    elif plan_reassignment(observation, wanted) is not None:
        remedy = (
            "save status.offsetsTopic.reassignment of this KafkaCluster as plan.json and run "
            "kafka-reassign-partitions.sh --reassignment-json-file plan.json --execute"
        )
    return Problem(
        conditions.REPLICATION_TOO_LOW,
        f"{OFFSETS_TOPIC} has {topic.replication_factor} replicas of each partition, {says}: {remedy}; or set "
        f"spec.offsetsTopic.replicationFactor to {topic.replication_factor}",
    )


def _compaction(topic: OffsetsTopicInfo) -> Problem | None:
    if topic.cleanup_policy is None or COMPACT in topic.cleanup_policy.split(","):
        return None
    return Problem(
        conditions.NOT_COMPACTED,
        f"{OFFSETS_TOPIC} has cleanup.policy={topic.cleanup_policy}, so committed offsets are deleted with time. "
        f"Run kafka-configs.sh --alter --entity-type topics --entity-name {OFFSETS_TOPIC} "
        "--add-config cleanup.policy=compact",
    )


def _segments(topic: OffsetsTopicInfo, wanted: OffsetsTopic) -> Problem | None:
    if topic.segment_bytes is None or wanted.segment_bytes is None or topic.segment_bytes <= wanted.segment_bytes:
        return None
    return Problem(
        conditions.SEGMENTS_TOO_LARGE,
        f"{OFFSETS_TOPIC} has segment.bytes={topic.segment_bytes}, spec.offsetsTopic.segmentBytes says "
        f"{wanted.segment_bytes}. Run kafka-configs.sh --alter --entity-type topics --entity-name {OFFSETS_TOPIC} "
        f"--add-config segment.bytes={wanted.segment_bytes}, or raise the field",
    )
