"""Objects for the planners' tests: a small valid default each, changed by what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.planning.fleet.blocking import find_changed_id
from fleet_operator.planning.fleet.image import WorkerImage
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart
from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, PodFacts, RevisionRecord
from fleet_operator.planning.observation import (
    BrokerInfo,
    BrokerSettings,
    ClusterObservation,
    GroupObservation,
    MemberObservation,
    OffsetsTopicInfo,
    TopicObservation,
    as_of,
    last_known,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.planning.scaling.decision import ScaleDecision, decide_fixed, decide_stopped
from fleet_operator.planning.state.group import FleetState, GroupState
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.facts import ConsumerGroupFacts

NOW: Final = 1_800_000_000.0
UID: Final = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
IMAGE: Final = "consumer-fleet-consumer:test"


def consumer_group(
    name: str = "orders", *, annotations: Mapping[str, str] | None = None, generation: int = 1, **spec: Any
) -> ConsumerGroup:
    """A ConsumerGroup on KafkaCluster `main` with topic `orders`, its Kafka group called as it; `spec` in camelCase."""
    base: dict[str, Any] = {
        "clusterRef": {"name": "main"},
        "groupId": name,
        "topics": ["orders"],
        "handler": {"python": {"callable": "shop:handle"}},
        "consumer": {"classic": {"assignors": ["range"]}},
    }
    metadata = {"name": name, "namespace": "shop", "uid": UID, "generation": generation}
    body = {"metadata": metadata | {"annotations": dict(annotations or {})}, "spec": base | spec}
    return ConsumerGroup.model_validate(body)


def with_worker(**additions: Any) -> dict[str, Any]:
    """A template that adds to the worker's own container."""
    return with_containers({"name": "worker", **additions})


def with_containers(*containers: Mapping[str, Any]) -> dict[str, Any]:
    """A template with these containers."""
    return {"spec": {"containers": list(containers)}}


def kafka_cluster(
    *, status: Mapping[str, Any] | None = None, identity: ClusterIdentity | None = None, **spec: Any
) -> KafkaCluster:
    """The KafkaCluster `main`, remembered as the one with the id of its status, or as this one."""
    known = identity or ClusterIdentity(cluster_id=(status or {}).get("clusterId"))
    base: dict[str, Any] = {"bootstrapServers": ["kafka:9092"]}
    metadata = {"name": "main", "namespace": "shop", "uid": "c1", "generation": 1}
    cluster = KafkaCluster.model_validate({"metadata": metadata, "spec": base | spec, "status": dict(status or {})})
    return cluster.model_copy(update={"identity": known})


def remembered(*records: RevisionRecord, wanted: str | None = None) -> GroupState:
    """The state of a group of whose revisions this was found out."""
    return GroupState(fleet=FleetState(wanted=wanted, verdicts={record.hash: record.verdict for record in records}))


def member(ordinal: int, partitions: Mapping[str, tuple[int, ...]] | None = None) -> MemberObservation:
    """A worker of ours as a member of the group."""
    return MemberObservation(
        member_id=f"m{ordinal}",
        instance_id=naming.instance_id("shop", "orders", UID, ordinal),
        client_id="worker",
        host=f"/10.0.0.{ordinal}",
        partitions=dict(partitions or {}),
    )


def observed_group(**changes: Any) -> GroupObservation:
    """Group `orders`, Stable, two members, 4 partitions with 100 records each, all committed."""
    keys = [("orders", number) for number in range(4)]
    group = GroupObservation(
        group_id="orders",
        observed_at=NOW - 1,
        state="Stable",
        assignor="range",
        coordinator_id=1,
        members=(member(0, {"orders": (0, 1)}), member(1, {"orders": (2, 3)})),
        committed=dict.fromkeys(keys, 100),
        end_offsets=dict.fromkeys(keys, 100),
        log_starts=dict.fromkeys(keys, 0),
    )
    return replace(group, **changes)


def observation(group: GroupObservation | None = None, **changes: Any) -> ClusterObservation:
    """A reachable cluster with the topics of the group, and the group.

    `broker_offsets_partitions` and `offsets_retention_s` are settings that all brokers share.
    """
    group = group or observed_group()
    shared = {
        "partitions": changes.pop("broker_offsets_partitions", None),
        "retention_s": changes.pop("offsets_retention_s", None),
    }
    seen = ClusterObservation(
        observed_at=group.observed_at,
        reachable=True,
        cluster_id="cluster-a",
        connection=kafka_cluster().spec.connection,
        brokers=(BrokerInfo(1, "broker-1", 9092), BrokerInfo(2, "broker-2", 9092)),
        answered=("broker-1:9092", "broker-2:9092"),
        offsets_topic=OffsetsTopicInfo(partitions=50, replication_factor=3, cleanup_policy="compact"),
        groups={group.group_id: group},
        topics={"orders": TopicObservation(partitions=4), "_fleet.orders.failed": TopicObservation(partitions=4)},
        group_count=7,
        groups_per_coordinator={1: 4, 2: 3},
        last_good_at=group.observed_at,
        reachable_since=NOW - 3600,
    )
    seen = replace(seen, **changes)
    settings = BrokerSettings(**shared)
    return replace(seen, broker_settings=changes.get("broker_settings") or {each.id: settings for each in seen.brokers})


def unreachable(reason: str = "BrokerUnreachable", message: str = "no broker answers") -> ClusterObservation:
    """The same cluster when it does not answer; what was known is kept, as the observer keeps it."""
    return observation(reachable=False, reason=reason, message=message)


def settled(revision: str = "aaaaaaaaaa") -> RolloutDecision:
    """A rollout with nothing left to do."""
    return RolloutDecision(phase=RolloutPhase.SETTLED, target=revision)


def ready_fleet(replicas: int = 2, *, ready: int | None = None, revision: str = "aaaaaaaaaa") -> FleetFacts:
    """A StatefulSet with its pods there, and all or some of them ready."""
    count = replicas if ready is None else ready
    return FleetFacts(
        revision=revision,
        replicas=replicas,
        observed=True,
        current_replicas=replicas,
        updated_replicas=replicas,
        ready_replicas=count,
        available_replicas=count,
    )


def pods(replicas: int = 2, *, revision: str = "aaaaaaaaaa") -> tuple[PodFacts, ...]:
    """Ready worker pods."""
    return tuple(PodFacts(name=f"orders-fleet-{n}", revision=revision, ordinal=n) for n in range(replicas))


def scale_of(
    group: ConsumerGroup, counts: Mapping[str, int] | None, *, stopped: bool = False, resetting: bool = False
) -> ScaleDecision:
    """The decision for a fleet of a fixed size."""
    fixed = decide_fixed(group, counts, found=None, memory=SizingState(), now=0.0)
    return decide_stopped(group, stopped=stopped, resetting=resetting) or fixed


def facts(*, now: float = NOW, **changes: Any) -> ConsumerGroupFacts:
    """A fleet of two that works; `changes` replace whole facts, or what they are made from."""
    group = changes.setdefault("group", consumer_group(replicas=2))
    cluster = changes.setdefault("cluster", kafka_cluster())
    seen = as_of(changes.pop("observation", observation()), interval_s=5, now=now)
    own = isinstance(cluster, Problem) or not find_changed_id(cluster, seen)
    view = view_group(group, last_known(seen, group.group_id), changes.get("retry"), own_cluster=own)
    wanted = changes.pop("wanted_replicas", 2)
    main = FleetPart(part=MAIN, fleet=changes.pop("fleet", ready_fleet()), workers=changes.pop("pods", pods()))
    retry = FleetPart(part=RETRY, fleet=changes.pop("retry_fleet", None), workers=changes.pop("retry_pods", ()))
    scaled = group.model_copy(update={"spec": group.spec.model_copy(update={"replicas": wanted})})
    base: dict[str, Any] = {
        "view": view,
        "rollout": settled(),
        "scale": replace(scale_of(scaled, view.partition_counts), replicas=wanted),
        "image": WorkerImage(IMAGE, "Operator", default=IMAGE),
        "parts": {MAIN: main, RETRY: retry},
        "revision": "aaaaaaaaaa",
    }
    return ConsumerGroupFacts(**(base | changes))
