"""A Kafka cluster in memory that answers what a look asks, through the codec, and counts the requests.

It stands where the network client stands. Supported: ApiVersions, ListGroups, DescribeGroups, OffsetFetch, ListOffsets
and DescribeConfigs of topics, each for existing objects only; nothing ever fails or moves, except what a test moves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_consumer.net import BrokerAddress, Call, Coordinator, Disconnected
from fleet_consumer.wire.admin.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from fleet_consumer.wire.admin.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from fleet_consumer.wire.api_versions import ApiVersionsFinalizedFeature, ApiVersionsRequest, ApiVersionsResponse
from fleet_consumer.wire.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from fleet_consumer.wire.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from fleet_consumer.wire.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

UNKNOWN_TOPIC = 3
Partition = tuple[str, int]


@dataclass
class ScriptedCluster:
    """`logs` has the append times of each partition's records from offset 0 on, `commits` each group's positions.

    `silent` are brokers that answer nothing.
    """

    nodes: int
    logs: dict[Partition, list[int]]
    commits: dict[str, dict[Partition, int]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    group_types: dict[str, str] = field(default_factory=dict)
    """The groups that ListGroups returns, with their types."""
    asked: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often each broker was asked each kind of request."""
    listed: int = 0
    """How often the names of all topics were asked for."""

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        return {node: BrokerAddress("broker", node) for node in range(self.nodes)}

    def per_broker(self, *, without: Sequence[str] = ()) -> int:
        """The most requests that any broker got since the last call."""
        totals: Counter[int] = Counter()
        for (node, name), count in self.asked.items():
            totals[node] += 0 if name in without else count
        self.asked.clear()
        return max(totals.values())

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        counts = Counter(name for name, _ in self.logs)
        self.listed += topics is None
        answer = MetadataResponse(
            brokers=tuple(MetadataResponseBroker(node_id=n, host="broker", port=n) for n in self.brokers),
            topics=tuple(
                MetadataResponseTopic(
                    error_code=0 if counts[name] else UNKNOWN_TOPIC,
                    name=name,
                    partitions=tuple(self._partition(index) for index in range(counts[name])),
                )
                for name in (sorted(counts) if topics is None else topics)
            ),
        )
        return MetadataResponse.decode(12, answer.encode(12))

    def _partition(self, index: int) -> MetadataResponsePartition:
        return MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=index % self.nodes,
            replica_nodes=(index % self.nodes,),
            isr_nodes=(index % self.nodes,),
        )

    def find_coordinators(self, group_ids: Sequence[str], *, timeout_s: float) -> dict[str, Coordinator]:
        nodes = {group_id: sum(group_id.encode()) % self.nodes for group_id in group_ids}
        return {group_id: Coordinator(node, self.brokers[node]) for group_id, node in nodes.items()}

    def send(self, address: BrokerAddress, request: Request[Any], *, timeout_s: float) -> Call[Any]:
        call: Call[Any] = Call(address, request, timeout_s=timeout_s, deadline=0.0)
        self.asked[address.port, type(request).__name__] += 1
        if address.port in self.silent:
            call.fail(Disconnected("silent", address=address, reason="Disconnected"))
            return call
        version = request.MAX_VERSION
        got = type(request).decode(version, request.encode(version))
        answer = ANSWERS[type(request)](self, got)
        call.succeed(type(answer).decode(version, answer.encode(version)))
        return call

    def poll(self, timeout_s: float) -> None:
        raise AssertionError("every call is done at once")

    def list_groups(self, _request: ListGroupsRequest) -> Response:
        groups = tuple(
            ListedGroup(group_id=name, protocol_type="consumer", group_type=kind)
            for name, kind in self.group_types.items()
        )
        return ListGroupsResponse(error_code=0, groups=groups)

    def features(self, _request: ApiVersionsRequest) -> Response:
        feature = ApiVersionsFinalizedFeature(name="metadata.version", max_version_level=29, min_version_level=7)
        return ApiVersionsResponse(error_code=0, api_keys=(), finalized_features=(feature,))

    def describe_groups(self, request: DescribeGroupsRequest) -> Response:
        return DescribeGroupsResponse(
            groups=tuple(
                DescribedGroup(
                    error_code=0, group_id=name, group_state="Empty", protocol_type="", protocol_data="", members=()
                )
                for name in request.groups
            )
        )

    def fetch_offsets(self, request: OffsetFetchRequest) -> Response:
        groups = []
        for group in request.groups:
            by_topic: dict[str, list[OffsetFetchResponsePartitions]] = defaultdict(list)
            for (topic, index), offset in self.commits.get(group.group_id, {}).items():
                position = OffsetFetchResponsePartitions(
                    partition_index=index, committed_offset=offset, metadata="", error_code=0
                )
                by_topic[topic].append(position)
            topics = tuple(OffsetFetchResponseTopics(name=n, partitions=tuple(of)) for n, of in by_topic.items())
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return OffsetFetchResponse(groups=tuple(groups))

    def list_offsets(self, request: ListOffsetsRequest) -> Response:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        self._offset(topic.name, p.partition_index, p.timestamp) for p in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _offset(self, topic: str, index: int, timestamp: int) -> ListOffsetsPartitionResponse:
        times = self.logs[topic, index]
        offset, found = -1, -1
        if timestamp in (LATEST, EARLIEST):
            offset = len(times) if timestamp == LATEST else 0
        else:
            offset, found = next(((i, at) for i, at in enumerate(times) if at >= timestamp), (-1, -1))
        return ListOffsetsPartitionResponse(partition_index=index, error_code=0, offset=offset, timestamp=found)

    def describe_configs(self, request: DescribeConfigsRequest) -> Response:
        entries = tuple(
            DescribeConfigsResourceResult(name=name, value=value, read_only=False, is_sensitive=False, synonyms=())
            for name, value in self.configs.items()
        )
        results = tuple(
            DescribeConfigsResult(
                error_code=0,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=entries,
            )
            for resource in request.resources
        )
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)


ANSWERS: dict[type[Any], Callable[[ScriptedCluster, Any], Response]] = {
    ApiVersionsRequest: ScriptedCluster.features,
    ListGroupsRequest: ScriptedCluster.list_groups,
    DescribeGroupsRequest: ScriptedCluster.describe_groups,
    OffsetFetchRequest: ScriptedCluster.fetch_offsets,
    ListOffsetsRequest: ScriptedCluster.list_offsets,
    DescribeConfigsRequest: ScriptedCluster.describe_configs,
}
