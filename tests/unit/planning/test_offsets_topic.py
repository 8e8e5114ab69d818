"""Decisions about `__consumer_offsets`: when it is created, what is corrected, and the plan for missing replicas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.planning.observation import BrokerInfo, BrokerSettings, ClusterObservation, OffsetsTopicInfo
from fleet_operator.planning.offsets_topic import decide_offsets_topic, plan_reassignment
from tests.unit.planning.builders import kafka_cluster, observation

THREE = tuple(BrokerInfo(number, f"broker-{number}", 9092) for number in (1, 2, 3))
SETTINGS = BrokerSettings(partitions=50, replication_factor=3, segment_bytes=104_857_600)


def wanted(**spec: Any) -> Any:
    return kafka_cluster(offsetsTopic={"manage": "Provision", **spec}).spec.offsets_topic


def absent(*settings: BrokerSettings, **changes: Any) -> ClusterObservation:
    told = {broker.id: said for broker, said in zip(THREE, settings or (SETTINGS,) * 3, strict=False)}
    return observation(brokers=THREE, broker_settings=told, offsets_topic=None, **changes)


def test_absent_topic_is_created_as_brokers_would_with_the_settings_of_the_spec() -> None:
    decision = decide_offsets_topic(absent(), wanted())
    assert decision.create is not None
    assert (decision.create.partitions, decision.create.replication_factor) == (50, 3)
    assert decision.create.configs == {
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
        "compression.type": "producer",
    }
    decision = decide_offsets_topic(absent(), wanted(partitions=50, replicationFactor=2, segmentBytes=1_048_576))
    assert decision.create is not None
    assert (decision.create.replication_factor, decision.create.configs["segment.bytes"]) == (2, "1048576")
    assert decide_offsets_topic(absent(), wanted(manage="Observe")).idle


OTHER = BrokerSettings(partitions=10, replication_factor=1, segment_bytes=1_048_576)


@pytest.mark.parametrize(
    ("why", "seen", "spec", "reason", "hint"),
    [
        ("another number", absent(), {"partitions": 10}, "BrokerConfigMismatch", "partitions=10 on every broker"),
        ("one broker differs", absent(SETTINGS, SETTINGS, OTHER), {}, "BrokerConfigMismatch", "10 (broker 3)"),
        (
            "one differs from the spec",
            absent(SETTINGS, SETTINGS, OTHER),
            {"partitions": 50},
            "BrokerConfigMismatch",
            "10",
        ),
        ("one says nothing", absent(SETTINGS, SETTINGS), {"partitions": 50}, "BrokerConfigUnknown", "broker 3 did not"),
        ("no rights", absent(*(BrokerSettings(),) * 3), {}, "BrokerConfigUnknown", "DescribeConfigs the cluster"),
        (
            "more replicas than brokers",
            absent(),
            {"replicationFactor": 4},
            "NotEnoughBrokers",
            "only 3 brokers are live",
        ),
        (
            "a cluster that is still starting",
            observation(brokers=THREE[:1], broker_settings={1: SETTINGS}, offsets_topic=None),
            {},
            "NotEnoughBrokers",
            "3 replicas",
        ),
        (
            "replicas left to brokers that differ",
            absent(SETTINGS, SETTINGS, BrokerSettings(partitions=50, replication_factor=1, segment_bytes=104_857_600)),
            {},
            "BrokerConfigMismatch",
            "set spec.offsetsTopic.replicationFactor",
        ),
        (
            "a topic that may not be described",
            absent(offsets_topic_error="AuthorizationFailed"),
            {},
            "AuthorizationFailed",
            "Describe",
        ),
    ],
)
def test_topic_is_not_created_while_anything_is_unsure(
    why: str, seen: ClusterObservation, spec: dict[str, Any], reason: str, hint: str
) -> None:
    decision = decide_offsets_topic(seen, wanted(**spec))
    assert decision.idle, why
    found = decision.problem or decision.unknown
    assert found is not None
    assert found.reason == reason, why
    assert hint in found.message, found.message


def existing(**changes: Any) -> ClusterObservation:
    base: dict[str, Any] = {"partitions": 50, "replication_factor": 3, "cleanup_policy": "compact"}
    told = dict.fromkeys((1, 2, 3), SETTINGS)
    return observation(brokers=THREE, broker_settings=told, offsets_topic=OffsetsTopicInfo(**(base | changes)))


def test_settings_are_corrected_and_nothing_else() -> None:
    bad = existing(cleanup_policy="delete", segment_bytes=1_073_741_824)
    corrected = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
    assert decide_offsets_topic(bad, wanted(segmentBytes=104_857_600)).alter == corrected
    assert decide_offsets_topic(bad, wanted()).alter == {"cleanup.policy": "compact"}
    assert decide_offsets_topic(bad, wanted(manage="Observe", segmentBytes=104_857_600)).idle
    assert decide_offsets_topic(bad, wanted(partitions=10)).idle, "the spec may be about another topic"
    for fine in (existing(), existing(cleanup_policy="compact,delete"), existing(cleanup_policy=None)):
        assert decide_offsets_topic(fine, wanted(segmentBytes=104_857_600)).idle
    few = decide_offsets_topic(existing(replication_factor=1), wanted())
    assert few.idle
    assert few.problem is not None
    assert few.problem.reason == "ReplicationTooLow"


def test_reassignment_keeps_present_replicas_and_deals_new_ones_to_live_brokers() -> None:
    seen = existing(partitions=4, replication_factor=1, replicas=((1,), (2,), (3,), (1, 2, 3)))
    text = plan_reassignment(seen, wanted(replicationFactor=3))
    assert text is not None
    plan = json.loads(text)
    assert {move["topic"] for move in plan["partitions"]} == {"__consumer_offsets"}
    moves = {move["partition"]: move["replicas"] for move in plan["partitions"]}
    assert moves == {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
    assert plan_reassignment(seen, wanted(replicationFactor=1)) is None
    assert plan_reassignment(seen, wanted(replicationFactor=4)) is None, "too few brokers live"
    decision = decide_offsets_topic(seen, wanted(replicationFactor=3, partitions=4))
    assert decision.problem is not None
    huge = existing(partitions=10_000, replication_factor=1, replicas=((1,),) * 10_000)
    assert plan_reassignment(huge, wanted()) is None
