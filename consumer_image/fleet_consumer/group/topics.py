"""Topics in the public API: their partitions, and the brokers that lead or hold them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_consumer.wire.topics import MetadataResponse


@dataclass(frozen=True, slots=True)
class Node:
    """A broker; without an address (`host` empty, `port` -1) while it is away."""

    id: int
    host: str = ""
    port: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition; `leader` is None while none is elected."""

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[Node, ...]
    in_sync_replicas: tuple[Node, ...]
    offline_replicas: tuple[Node, ...]


def partition_infos(response: MetadataResponse) -> dict[str, tuple[PartitionInfo, ...]]:
    """The partitions of all topics in a response, sorted by number; topics without partitions are left out."""
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}

    def named(ids: tuple[int, ...]) -> tuple[Node, ...]:
        return tuple(nodes.get(node) or Node(node) for node in ids)

    infos: dict[str, list[PartitionInfo]] = {}
    for topic in response.topics:
        for part in sorted(topic.partitions, key=lambda part: part.partition_index):
            leader = named((part.leader_id,))[0] if part.leader_id >= 0 else None
            replicas = named(part.replica_nodes), named(part.isr_nodes), named(part.offline_replicas)
            info = PartitionInfo(topic.name or "", part.partition_index, leader, *replicas)
            infos.setdefault(info.topic, []).append(info)
    return {topic: tuple(parts) for topic, parts in infos.items()}
