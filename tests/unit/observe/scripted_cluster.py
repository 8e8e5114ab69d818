"""A Kafka cluster in memory that answers what a poll asks, through the codec, and counts the requests.

It stands where the network client stands. Supported: ApiVersions, ListGroups, DescribeGroups, OffsetFetch, ListOffsets
and DescribeConfigs of topics, each for existing objects only; nothing ever fails or moves, except what a test moves.
Answers are decoded by the request itself, as the client does it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from fleet_consumer.net import BrokerAddress, Call, Coordinator, Disconnected, RequestTimedOut
from fleet_consumer.wire.admin import (
    BROKER_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from fleet_consumer.wire.connection import ApiVersionsFinalizedFeature, ApiVersionsRequest, ApiVersionsResponse
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartitions,
    encode_assignment,
)
from fleet_consumer.wire.errors import ErrorCode, KafkaError
from fleet_consumer.wire.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from fleet_consumer.wire.topics import (
    EARLIEST,
    LATEST,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

UNKNOWN_TOPIC = 3
Partition = tuple[str, int]


@dataclass
class ScriptedCluster:
    """`logs` has the append times of each partition's records from offset 0 on, `commits` each group's positions.

    `starts` has the first offset of logs that retention has cut, `stable` the last stable offset of those with an open
    transaction, `groups` the state and the members of those that are
    not Empty, `coordinators` the brokers of groups that a test has moved. `silent` are brokers that answer nothing,
    `hanging` are brokers that let every call time out, `leaderless` the partitions that nobody leads.
    """

    nodes: int
    logs: dict[Partition, list[int]]
    commits: dict[str, dict[Partition, int]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    starts: dict[Partition, int] = field(default_factory=dict)
    stable: dict[Partition, int] = field(default_factory=dict)
    groups: dict[str, tuple[str, tuple[DescribedGroupMember, ...]]] = field(default_factory=dict)
    coordinators: dict[str, int] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    unanswered: set[type[Request[Any]]] = field(default_factory=set)
    """The kinds of requests that no broker answers."""
    refused: set[tuple[type[Request[Any]], str]] = field(default_factory=set)
    """The kinds of requests about a group that the login has no right to."""
    hanging: set[int] = field(default_factory=set)
    patience: dict[int, float] = field(default_factory=dict)
    """The time-out of the last call to each broker."""
    leaderless: set[Partition] = field(default_factory=set)
    looked_up: Counter[str] = field(default_factory=Counter)
    """Lookups of each group's coordinator."""
    group_types: dict[str, str] = field(default_factory=dict)
    """Types of groups in ListGroups, where they are others than the classic one."""
    other_listed: dict[int, int] = field(default_factory=dict)
    """Number of further groups, without a ConsumerGroup, that each broker lists."""
    broker_configs: dict[int, dict[str, str]] = field(default_factory=dict)
    """Settings of brokers, next to `configs`."""
    asked: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of requests of each kind to each broker."""
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

    def one_cluster(self, cluster_id: str | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        counts = Counter(name for name, _ in self.logs)
        self.listed += topics is None
        answer = MetadataResponse(
            brokers=tuple(MetadataResponseBroker(node_id=n, host="broker", port=n) for n in self.brokers),
            topics=tuple(
                MetadataResponseTopic(
                    error_code=0 if counts[name] else UNKNOWN_TOPIC,
                    name=name,
                    partitions=tuple(self._partition(name, index) for index in range(counts[name])),
                )
                for name in (sorted(counts) if topics is None else topics)
            ),
        )
        return MetadataResponse.decode(12, answer.encode(12))

    def _partition(self, topic: str, index: int) -> MetadataResponsePartition:
        return MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=-1 if (topic, index) in self.leaderless else index % self.nodes,
            replica_nodes=(index % self.nodes,),
            isr_nodes=(index % self.nodes,),
        )

    def coordinator(self, group_id: str) -> int:
        return self.coordinators.get(group_id, sum(group_id.encode()) % self.nodes)

    def find_coordinators(self, group_ids: Sequence[str], *, timeout_s: float) -> dict[str, Coordinator | KafkaError]:
        self.looked_up.update(group_ids)
        nodes = {group_id: self.coordinator(group_id) for group_id in group_ids}
        found = {group_id: Coordinator(node, self.brokers[node]) for group_id, node in nodes.items()}
        refused = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "coordinator")
        return found | {group: refused for group in group_ids if (FindCoordinatorRequest, group) in self.refused}

    def member(self, member_id: str, **partitions: tuple[int, ...]) -> DescribedGroupMember:
        """A member with an assignment, given by topic."""
        topics = tuple(ConsumerProtocolTopicPartitions(topic=t, partitions=of) for t, of in partitions.items())
        return DescribedGroupMember(
            member_id=member_id,
            client_id="c",
            client_host="/h",
            member_metadata=b"",
            member_assignment=encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics), 3),
        )

    def send(self, address: BrokerAddress, request: Request[Any], *, timeout_s: float) -> Call[Any]:
        call: Call[Any] = Call(address, request, timeout_s=timeout_s, deadline=0.0)
        kind, answers = ANSWERS[request.API_KEY]
        self.asked[address.port, kind.__name__] += 1
        self.patience[address.port] = timeout_s
        if address.port in self.hanging:
            call.fail(RequestTimedOut("no response", address=address))
            return call
        if address.port in self.silent or kind in self.unanswered:
            call.fail(Disconnected("silent", address=address, reason="Disconnected"))
            return call
        version = request.MAX_VERSION
        answer = answers(self, address.port, kind.decode(version, request.encode(version)))
        call.succeed(request.decode_response(version, answer.encode(version)))
        return call

    def poll(self, timeout_s: float) -> None:
        raise AssertionError("every call is done at once")

    def list_groups(self, node: int, request: ListGroupsRequest) -> Response:
        states = dict.fromkeys((*self.commits, *self.group_types), "Empty")
        states |= {name: state for name, (state, _) in self.groups.items()}
        wanted = request.states_filter
        groups = tuple(
            ListedGroup(
                group_id=name,
                protocol_type="consumer",
                group_state=state,
                group_type=self.group_types.get(name, "classic"),
            )
            for name, state in sorted(states.items())
            if self.coordinator(name) == node and (not wanted or state in wanted)
        )
        others = (f"other-{node}-{number}" for number in range(self.other_listed.get(node, 0)))
        other_types = tuple(
            ListedGroup(group_id=name, protocol_type="consumer", group_state="Stable") for name in others
        )
        return ListGroupsResponse(error_code=0, groups=(*groups, *other_types))

    def features(self, _node: int, _request: ApiVersionsRequest) -> Response:
        feature = ApiVersionsFinalizedFeature(name="metadata.version", max_version_level=29, min_version_level=7)
        return ApiVersionsResponse(error_code=0, api_keys=(), finalized_features=(feature,))

    def describe_groups(self, node: int, request: DescribeGroupsRequest) -> Response:
        return DescribeGroupsResponse(groups=tuple(self._describe(node, name) for name in request.groups))

    def _describe(self, node: int, name: str) -> DescribedGroup:
        state, members = self.groups.get(name, ("Empty", ()))
        code = ErrorCode.NONE if self.coordinator(name) == node else ErrorCode.NOT_COORDINATOR
        if not code and self.group_types.get(name, "classic").lower() != "classic":
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if (DescribeGroupsRequest, name) in self.refused:
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return DescribedGroup(
            error_code=code,
            group_id=name,
            group_state=state if not code else "",
            protocol_type="",
            protocol_data="",
            members=members if not code else (),
        )

    def fetch_offsets(self, node: int, request: OffsetFetchRequest) -> Response:
        groups = []
        for group in request.groups:
            refused = (OffsetFetchRequest, group.group_id) in self.refused
            if refused or self.coordinator(group.group_id) != node:
                code = ErrorCode.GROUP_AUTHORIZATION_FAILED if refused else ErrorCode.NOT_COORDINATOR
                groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=code))
                continue
            by_topic: dict[str, list[OffsetFetchResponsePartitions]] = defaultdict(list)
            asked = None if group.topics is None else {topic.name for topic in group.topics}
            for (topic, index), offset in self.commits.get(group.group_id, {}).items():
                if asked is not None and topic not in asked:
                    continue
                position = OffsetFetchResponsePartitions(
                    partition_index=index, committed_offset=offset, metadata="", error_code=0
                )
                by_topic[topic].append(position)
            topics = tuple(OffsetFetchResponseTopics(name=n, partitions=tuple(of)) for n, of in by_topic.items())
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return OffsetFetchResponse(groups=tuple(groups))

    def list_offsets(self, _node: int, request: ListOffsetsRequest) -> Response:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        self._offset(topic.name, p.partition_index, p.timestamp, request.isolation_level)
                        for p in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _offset(self, topic: str, index: int, timestamp: int, isolation: int) -> ListOffsetsPartitionResponse:
        times, start = self.logs[topic, index], self.starts.get((topic, index), 0)
        offset, found = -1, -1
        if timestamp in (LATEST, EARLIEST):
            end = self.stable.get((topic, index), len(times)) if isolation else len(times)
            offset = end if timestamp == LATEST else start
        else:
            offset, found = next(((i, at) for i, at in enumerate(times) if i >= start and at >= timestamp), (-1, -1))
        return ListOffsetsPartitionResponse(partition_index=index, error_code=0, offset=offset, timestamp=found)

    def describe_configs(self, _node: int, request: DescribeConfigsRequest) -> Response:
        results = tuple(
            DescribeConfigsResult(
                error_code=0,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(
                    DescribeConfigsResourceResult(
                        name=name, value=value, read_only=False, is_sensitive=False, synonyms=()
                    )
                    for name, value in self._settings_of(resource).items()
                ),
            )
            for resource in request.resources
        )
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def _settings_of(self, resource: DescribeConfigsResource) -> dict[str, str]:
        if resource.resource_type != BROKER_RESOURCE:
            return self.configs
        return self.configs | self.broker_configs.get(int(resource.resource_name), {})


ANSWERS: dict[int, tuple[type[Request[Any]], Callable[[ScriptedCluster, int, Any], Response]]] = {
    kind.API_KEY: (kind, answers)
    for kind, answers in (
        (ApiVersionsRequest, ScriptedCluster.features),
        (ListGroupsRequest, ScriptedCluster.list_groups),
        (DescribeGroupsRequest, ScriptedCluster.describe_groups),
        (OffsetFetchRequest, ScriptedCluster.fetch_offsets),
        (ListOffsetsRequest, ScriptedCluster.list_offsets),
        (DescribeConfigsRequest, ScriptedCluster.describe_configs),
    )
}
