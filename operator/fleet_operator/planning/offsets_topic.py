"""`__consumer_offsets` compared with a KafkaCluster's spec: differences, remedies, and the operator's changes. Pure.

A broker reads the number of partitions only once: from the topic or, if the topic does not exist, from the broker's
setting. If the topic later gets another number, groups have no coordinator, and no error is reported. So with `manage:
Provision`, the operator creates the topic only if the setting of every broker equals the wanted number. Later the
operator corrects the topic's settings, but never its partitions or replicas.

Decision: docs/decisions/0044-offsets-topic.md.
"""

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
"""Topic setting that brokers set when they create the topic, in addition to the cleanup policy and the segment size
(Kafka: `GroupCoordinatorService.groupMetadataTopicConfigs`)."""
USUAL_REPLICAS: Final = 3
"""Replicas of each partition if the KafkaCluster's spec sets no number; fewer if fewer brokers are live."""
REASSIGNMENT_CHARACTERS_MAX: Final = 65_536
"""Maximum number of characters of the reassignment plan in the status. A plan for 50 partitions has 3,500
characters."""
SETTINGS: Final[Mapping[str, Callable[[BrokerSettings], int | None]]] = {
    "offsets.topic.num.partitions": lambda settings: settings.partitions,
    "offsets.topic.replication.factor": lambda settings: settings.replication_factor,
    "offsets.topic.segment.bytes": lambda settings: settings.segment_bytes,
}
"""Broker settings that apply when the topic is created, each with the function that reads the setting from an
observation."""
PARTITIONS_SETTING, REPLICATION_SETTING, SEGMENT_SETTING = SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopicDecision:
    """`problem`: the most serious difference. `unknown`: the reason why a difference cannot be detected, or why the
    operator cannot create the topic yet. `create`: the topic to create; `alter`: the topic settings to change."""

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
            f"{OFFSETS_TOPIC} cannot be described, because the brokers answer {reason}: allow the operator's principal "
            "to Describe and DescribeConfigs this topic"
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
    """Return a plan for kafka-reassign-partitions.sh that gives every partition the wanted number of replicas.

    None if no replica is missing, if too few brokers are live, or if the plan is too large for a status. The present
    replicas keep their order, so no leader moves. New replicas are assigned to live brokers, round robin."""
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
    """Decide while the topic does not exist. The number of partitions can be chosen only before the topic is
    created."""
    found = {broker.id: observation.broker_settings.get(broker.id, BrokerSettings()) for broker in observation.brokers}
    mismatch = _mismatch(found, wanted)
    if mismatch is not None or wanted.manage != "Provision":
        return OffsetsTopicDecision(problem=mismatch)
    for name, read in SETTINGS.items():
        silent = [str(broker) for broker, settings in found.items() if read(settings) is None]
        if silent or not found:
            message = (
                f"{OFFSETS_TOPIC} does not exist yet, and is not created before every broker has reported its {name}: "
                f"broker {', '.join(silent)} did not; allow the operator's principal to DescribeConfigs the cluster, "
                "and check that these brokers answer"
            )
            return OffsetsTopicDecision(unknown=Problem(conditions.BROKER_CONFIG_UNKNOWN, message))
    some = next(iter(found.values()))
    # A field that the spec does not set gets the brokers' setting. If the brokers differ, the spec must set the field.
    for name, field_name, named in (
        (REPLICATION_SETTING, "replicationFactor", wanted.replication_factor),
        (SEGMENT_SETTING, "segmentBytes", wanted.segment_bytes),
    ):
        read = SETTINGS[name]
        if named is None and len({read(settings) for settings in found.values()}) > 1:
            message = (
                f"{OFFSETS_TOPIC} does not exist yet, and the brokers differ in {name} ({_listed(found, read)}): set "
                f"spec.offsetsTopic.{field_name}, or the same value on every broker"
            )
            return OffsetsTopicDecision(problem=Problem(conditions.BROKER_CONFIG_MISMATCH, message))
    replicas = wanted.replication_factor or some.replication_factor
    assert replicas is not None, "every broker has reported its settings"
    assert some.partitions is not None, "every broker has reported its settings"
    if replicas > len(found):
        message = (
            f"{OFFSETS_TOPIC} does not exist yet and needs {replicas} replicas of each partition, but only "
            f"{len(found)} brokers are live: start the others, or lower spec.offsetsTopic.replicationFactor"
        )
        return OffsetsTopicDecision(problem=Problem(conditions.NOT_ENOUGH_BROKERS, message))
    configs = {POLICY: COMPACT, SEGMENT: str(wanted.segment_bytes or some.segment_bytes), **PRODUCERS_COMPRESSION}
    topic = WantedTopic(name=OFFSETS_TOPIC, partitions=some.partitions, replication_factor=replicas, configs=configs)
    return OffsetsTopicDecision(create=topic)


def _mismatch(found: Mapping[int, BrokerSettings], wanted: OffsetsTopic) -> Problem | None:
    """The problem if brokers would create the topic with different or unwanted numbers of partitions."""
    counts = {settings.partitions for settings in found.values()} - {None}
    if not counts or counts == {wanted.partitions or next(iter(counts))}:
        return None
    seen = _listed(found, SETTINGS[PARTITIONS_SETTING])
    number = wanted.partitions if wanted.partitions is not None else "<number>"
    says = f"spec.offsetsTopic.partitions is {number}" if wanted.partitions is not None else "the brokers differ"
    return Problem(
        conditions.BROKER_CONFIG_MISMATCH,
        f"{OFFSETS_TOPIC} does not exist yet; the brokers' {PARTITIONS_SETTING} is {seen}, and {says}: if the topic "
        "gets a number that differs from a broker's setting, groups wait indefinitely for a coordinator. Set "
        f"{PARTITIONS_SETTING}={number} on every broker and restart the brokers before the first group is used",
    )


def _listed(found: Mapping[int, BrokerSettings], read: Callable[[BrokerSettings], int | None]) -> str:
    """Format the brokers' values of a setting. If all are equal, only the value: `50`. Otherwise each value with its
    brokers: `50 (brokers 1, 2), 10 (broker 3)`."""
    by_value: dict[int | None, list[int]] = {}
    for broker, settings in sorted(found.items()):
        by_value.setdefault(read(settings), []).append(broker)
    if len(by_value) == 1:
        return str(next(iter(by_value)))
    shown = []
    for value, brokers in by_value.items():
        named = f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}"
        shown.append(f"{value if value is not None else 'unknown'} ({named})")
    return ", ".join(shown)


def _partitions(topic: OffsetsTopicInfo, wanted: OffsetsTopic) -> Problem | None:
    if wanted.partitions in (None, topic.partitions):
        return None
    return Problem(
        conditions.PARTITIONS_DIFFER,
        f"{OFFSETS_TOPIC} has {topic.partitions} partitions, but spec.offsetsTopic.partitions is {wanted.partitions}. "
        "The number decides each group's coordinator and must never change once the topic is in use: set "
        f"spec.offsetsTopic.partitions to {topic.partitions}",
    )


def _brokers_setting(topic: OffsetsTopicInfo, observation: ClusterObservation) -> Problem | None:
    settings = {broker.id: observation.broker_settings.get(broker.id) for broker in observation.brokers}
    found = {broker: each for broker, each in settings.items() if each is not None and each.partitions is not None}
    if all(each.partitions == topic.partitions for each in found.values()):
        return None
    seen = _listed(found, SETTINGS[PARTITIONS_SETTING])
    return Problem(
        conditions.BROKER_CONFIG_MISMATCH,
        f"{OFFSETS_TOPIC} has {topic.partitions} partitions, but the brokers' {PARTITIONS_SETTING} is {seen}: correct "
        "the setting, otherwise groups lose their coordinator if the topic is ever recreated",
    )


def _wanted_replicas(wanted: OffsetsTopic, brokers: int) -> int:
    return wanted.replication_factor or min(USUAL_REPLICAS, brokers)


def _replication(topic: OffsetsTopicInfo, wanted: OffsetsTopic, observation: ClusterObservation) -> Problem | None:
    brokers = len(observation.brokers)
    count = _wanted_replicas(wanted, brokers)
    if topic.replication_factor >= count:
        return None
    says = f"spec.offsetsTopic.replicationFactor is {wanted.replication_factor}"
    if wanted.replication_factor is None:
        says = f"{count} are usual with {brokers} brokers"
    remedy = "reassign its partitions with kafka-reassign-partitions.sh and a plan that names more brokers"
    if count > brokers:
        remedy = f"only {brokers} brokers are live: start more, then reassign its partitions"
    elif plan_reassignment(observation, wanted) is not None:
        remedy = (
            "save status.offsetsTopic.reassignment of this KafkaCluster as plan.json and run "
            "kafka-reassign-partitions.sh --reassignment-json-file plan.json --execute"
        )
    return Problem(
        conditions.REPLICATION_TOO_LOW,
        f"{OFFSETS_TOPIC} has {topic.replication_factor} replicas of each partition, but {says}: {remedy}; or set "
        f"spec.offsetsTopic.replicationFactor to {topic.replication_factor}",
    )


def _compaction(topic: OffsetsTopicInfo) -> Problem | None:
    if topic.cleanup_policy is None or COMPACT in topic.cleanup_policy.split(","):
        return None
    return Problem(
        conditions.NOT_COMPACTED,
        f"{OFFSETS_TOPIC} has cleanup.policy={topic.cleanup_policy}, so committed offsets are deleted after some time. "
        f"Run kafka-configs.sh --alter --entity-type topics --entity-name {OFFSETS_TOPIC} "
        "--add-config cleanup.policy=compact",
    )


def _segments(topic: OffsetsTopicInfo, wanted: OffsetsTopic) -> Problem | None:
    if topic.segment_bytes is None or wanted.segment_bytes is None or topic.segment_bytes <= wanted.segment_bytes:
        return None
    return Problem(
        conditions.SEGMENTS_TOO_LARGE,
        f"{OFFSETS_TOPIC} has segment.bytes={topic.segment_bytes}, but spec.offsetsTopic.segmentBytes is "
        f"{wanted.segment_bytes}. Run kafka-configs.sh --alter --entity-type topics --entity-name {OFFSETS_TOPIC} "
        f"--add-config segment.bytes={wanted.segment_bytes}, or raise the field",
    )
