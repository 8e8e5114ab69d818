"""Partitions grouped by topic, and Metadata responses: existing topics, partition counts, racks of replicas.

`PartitionInfo` is part of the public API: a partition with its leader and its replicas.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse

PartitionsByTopic = Mapping[str, tuple[int, ...]]
"""Partition numbers, keyed by topic; a topic without partitions is absent."""

Racks = tuple[frozenset[str], ...]
"""For each partition of a topic, in order of partition number: the racks of its replicas."""


def without(partitions: PartitionsByTopic, removed: Mapping[str, Sequence[int]]) -> PartitionsByTopic:
    rest = {}
    for topic, numbers in partitions.items():
        out = frozenset(removed.get(topic, ()))
        kept = tuple(number for number in numbers if number not in out) if out else numbers
        if kept:
            rest[topic] = kept
    return rest


def by_topic(partitions: Iterable[tuple[str, int]]) -> PartitionsByTopic:
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return {topic: tuple(found) for topic, found in numbers.items()}


def flatten(partitions: Mapping[str, Sequence[int]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for topic in sorted(partitions) for number in sorted(partitions[topic]))


def topics_request(topics: Iterable[str] | None) -> MetadataRequest:
    """Build a request that creates no topics; None requests all topics that the principal may describe."""
    named = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in sorted(set(topics)))
    return MetadataRequest(topics=named, allow_auto_topic_creation=False)


def partition_counts(response: MetadataResponse) -> tuple[dict[str, int], dict[str, int]]:
    """Return the partition counts of existing topics, and the error codes of the other topics. During a leader
    election, a topic may have both partitions and an error; it counts as existing."""
    counts: dict[str, int] = {}
    failures: dict[str, int] = {}
    for topic in response.topics:
        if topic.partitions:
            counts[topic.name or ""] = len(topic.partitions)
        elif topic.error_code != ErrorCode.NONE:
            failures[topic.name or ""] = topic.error_code
    return counts, failures


class BrokerRacks:
    """Racks of brokers, keyed by node id.

    Responses do not list brokers that are down, so the last known rack of each broker is kept. Otherwise a broker's
    restart would look like a move of its replicas to other racks, and cause a rebalance.
    """

    def __init__(self) -> None:
        self._racks: dict[int, str] = {}

    def learn(self, response: MetadataResponse) -> None:
        for broker in response.brokers:
            if broker.rack is not None:
                self._racks[broker.node_id] = broker.rack

    def of_topics(self, response: MetadataResponse, topics: Collection[str]) -> Mapping[str, Racks]:
        return {
            topic.name or "": tuple(
                frozenset(self._racks[node] for node in part.replica_nodes if node in self._racks)
                for part in sorted(topic.partitions, key=lambda part: part.partition_index)
            )
            for topic in response.topics
            if topic.name in topics and topic.partitions
        }


@dataclass(frozen=True, slots=True)
class Node:
    """A broker. While it is down, its address is unknown: `host` is empty and `port` is -1."""

    id: int
    host: str = ""
    port: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition; `leader` is None while no leader is elected."""

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[Node, ...]
    in_sync_replicas: tuple[Node, ...]
    offline_replicas: tuple[Node, ...]


def partition_infos(response: MetadataResponse) -> dict[str, tuple[PartitionInfo, ...]]:
    """Return the partitions of all topics in a response, sorted by number; topics without partitions are omitted."""
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
