"""Builds requests for many groups or partitions of one broker, split into requests of bounded size. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from fleet_consumer.distribution import DISTRIBUTION, own_version
from fleet_consumer.wire import admin
from fleet_consumer.wire.connection import ApiVersionsRequest
from fleet_consumer.wire.groups import DescribeGroupsRequest
from fleet_consumer.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from fleet_consumer.wire.topics import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, MetadataResponse

T = TypeVar("T")

GROUPS_PER_REQUEST_MAX: Final = 500
"""Largest number of groups in one request. The limit keeps responses below a few MiB, because they contain the
subscription and assignment of every member."""
PARTITIONS_PER_REQUEST_MAX: Final = 20_000
COMMIT_BYTES: Final = 80
"""Upper bound in bytes of one commit's record in `__consumer_offsets`, not counting names and metadata."""
COMMIT_BYTES_MAX: Final = 128 * 1024
"""Largest size, in bytes, of the batch that one commit request appends to `__consumer_offsets`: about 900 partitions
with short names. The topic's limit (`message.max.bytes`) is 1 MiB by default."""
COMMIT_PARTITIONS_MAX: Final = 1_000
"""Largest number of partitions in one commit request. The commit requests of workers have the same limit."""
OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_SETTINGS: Final = (
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "offsets.topic.segment.bytes",
    "offsets.retention.minutes",
)
"""The broker settings for `__consumer_offsets`, in the order that `aggregation.broker_settings` expects."""

Partition = tuple[str, int]


def chunks(items: Iterable[T], size: int) -> list[tuple[T, ...]]:
    ordered = tuple(items)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def describe_requests(groups: Iterable[str]) -> list[DescribeGroupsRequest]:
    """Build DescribeGroups requests for one coordinator. They also request the operations that the operator's login may
    perform on each group."""
    return [
        DescribeGroupsRequest(groups=part, include_authorized_operations=True)
        for part in chunks(groups, GROUPS_PER_REQUEST_MAX)
    ]


def offset_fetch_requests(partitions: Mapping[str, Mapping[str, int] | None]) -> list[OffsetFetchRequest]:
    """Build OffsetFetch requests for the groups of one coordinator.

    `partitions` has for each group the partition counts of the topics to request, keyed by topic; None requests all
    commits of the group. `require_stable` is false: with it, brokers would not return a commit while a transaction is
    pending.
    """
    asked = (OffsetFetchRequestGroup(group_id=name, topics=_topics(counts)) for name, counts in partitions.items())
    return [OffsetFetchRequest(groups=part) for part in chunks(asked, GROUPS_PER_REQUEST_MAX)]


def _topics(counts: Mapping[str, int] | None) -> tuple[OffsetFetchRequestTopics, ...] | None:
    if counts is None:
        return None
    indexes = ((topic, tuple(range(count))) for topic, count in counts.items())
    return tuple(OffsetFetchRequestTopics(name=topic, partition_indexes=numbers) for topic, numbers in indexes)


def offset_commit_requests(group_id: str, offsets: Mapping[Partition, int], metadata: str) -> list[OffsetCommitRequest]:
    """Build OffsetCommit requests without a generation, which brokers refuse while the group has members.

    The coordinator appends each request as one batch to `__consumer_offsets`; COMMIT_BYTES_MAX keeps the batch below
    that topic's limit.
    """
    requests, part, size, count = list[OffsetCommitRequest](), dict[str, list[OffsetCommitRequestPartition]](), 0, 0
    for (topic, number), offset in offsets.items():
        length = COMMIT_BYTES + sum(len(text.encode()) for text in (group_id, topic, metadata))
        if size + length > COMMIT_BYTES_MAX or count == COMMIT_PARTITIONS_MAX:
            requests.append(_offset_commit(group_id, part))
            part, size, count = {}, 0, 0
        size, count = size + length, count + 1
        entry = OffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_metadata=metadata
        )
        part.setdefault(topic, []).append(entry)
    return [*requests, _offset_commit(group_id, part)] if part else requests


def _offset_commit(
    group_id: str, partitions: Mapping[str, Iterable[OffsetCommitRequestPartition]]
) -> OffsetCommitRequest:
    topics = (OffsetCommitRequestTopic(name=topic, partitions=tuple(each)) for topic, each in partitions.items())
    return OffsetCommitRequest(group_id=group_id, member_id="", topics=tuple(topics))


def leaders_of(metadata: MetadataResponse, topics: Iterable[str]) -> dict[int, list[Partition]]:
    """The partitions of these topics, keyed by the leader's node id. Partitions without a leader are left out."""
    wanted = frozenset(topics)
    led: dict[int, list[Partition]] = defaultdict(list)
    for topic in metadata.topics:
        if topic.name in wanted:
            for partition in topic.partitions:
                if partition.leader_id >= 0:
                    led[partition.leader_id].append((topic.name, partition.partition_index))
    return dict(led)


def list_offsets_requests(times: Mapping[Partition, int], *, read_committed: bool = False) -> list[ListOffsetsRequest]:
    """Build ListOffsets requests for partitions of one leader, each with LATEST, EARLIEST, or a time in milliseconds.

    Brokers refuse a request that names a partition twice, so two timestamps for one partition need two requests.
    """
    requests = []
    for part in chunks(sorted(times), PARTITIONS_PER_REQUEST_MAX):
        by_topic: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
        for topic, index in part:
            by_topic[topic].append(_asked_offset(index, times[topic, index]))
        requests.append(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=1 if read_committed else 0,
                topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(each)) for name, each in by_topic.items()),
            )
        )
    return requests


@lru_cache(maxsize=PARTITIONS_PER_REQUEST_MAX)
def _asked_offset(index: int, timestamp: int) -> ListOffsetsPartition:
    """Build the entry of one partition in a ListOffsets request. The entries are cached and shared by all topics,
    because each poll requests the end offsets of all partitions."""
    return ListOffsetsPartition(partition_index=index, timestamp=timestamp)


def offsets_topic_config_request() -> admin.DescribeConfigsRequest:
    return config_request(admin.TOPIC_RESOURCE, (OFFSETS_TOPIC,), ("cleanup.policy", "segment.bytes"))


def broker_config_request(node_id: int) -> admin.DescribeConfigsRequest:
    """Build the DescribeConfigs request for a broker's `OFFSETS_SETTINGS`. Only that broker can answer it."""
    return config_request(admin.BROKER_RESOURCE, (str(node_id),), OFFSETS_SETTINGS)


def features_request() -> ApiVersionsRequest:
    """Build the ApiVersions request for the cluster's finalized features. Brokers require the client name."""
    return ApiVersionsRequest(client_software_name=DISTRIBUTION, client_software_version=own_version())


def config_request(kind: int, names: Iterable[str], settings: tuple[str, ...]) -> admin.DescribeConfigsRequest:
    return admin.DescribeConfigsRequest(
        resources=tuple(
            admin.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=settings)
            for name in names
        )
    )
