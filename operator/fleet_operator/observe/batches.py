"""Requests for many groups at once. Pure: what is known of the cluster in, requests by broker out."""

from __future__ import annotations

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
"""DescribeGroups answers carry every member's subscription and assignment; this keeps one answer to a few MiB."""
PARTITIONS_PER_REQUEST_MAX: Final = 20_000
COMMIT_BYTES: Final = 80
"""At most the bytes of one commit's record in __consumer_offsets, without the names and the metadata in it."""
COMMIT_BYTES_MAX: Final = 128 * 1024
"""About as many bytes become one batch of that topic, whose limit (message.max.bytes) is a MiB by default. That is
about 900 partitions of short names."""
COMMIT_PARTITIONS_MAX: Final = 1_000
"""Partitions of one commit, as for members."""
OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_SETTINGS: Final = (
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "offsets.topic.segment.bytes",
    "offsets.retention.minutes",
)
"""A broker's settings about `__consumer_offsets` that matter to us, as `aggregation.broker_settings` takes them."""

Partition = tuple[str, int]


def chunks(items: Iterable[T], size: int) -> list[tuple[T, ...]]:
    """Items in order, in tuples of at most `size`."""
    ordered = tuple(items)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def describe_requests(groups: Iterable[str]) -> list[DescribeGroupsRequest]:
    """DescribeGroups for the groups of one coordinator, with what our login may do with them."""
    return [
        DescribeGroupsRequest(groups=part, include_authorized_operations=True)
        for part in chunks(groups, GROUPS_PER_REQUEST_MAX)
    ]


def offset_fetch_requests(partitions: Mapping[str, Mapping[str, int] | None]) -> list[OffsetFetchRequest]:
    """OffsetFetch for the groups of one coordinator; each group's topics with their partition counts, None for all.

    `require_stable` stays off: a pending transaction must not make the position unknown.
    """
    asked = (OffsetFetchRequestGroup(group_id=name, topics=_topics(counts)) for name, counts in partitions.items())
    return [OffsetFetchRequest(groups=part) for part in chunks(asked, GROUPS_PER_REQUEST_MAX)]


def _topics(counts: Mapping[str, int] | None) -> tuple[OffsetFetchRequestTopics, ...] | None:
    if counts is None:
        return None
    indexes = ((topic, tuple(range(count))) for topic, count in counts.items())
    return tuple(OffsetFetchRequestTopics(name=topic, partition_indexes=of) for topic, of in indexes)


def offset_commit_requests(group_id: str, offsets: Mapping[Partition, int], metadata: str) -> list[OffsetCommitRequest]:
    """OffsetCommit of an administrator, without a generation: brokers refuse it while the group has members.

    The coordinator appends what one request commits as one batch, which its topic may refuse as too large.
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
    topics = (OffsetCommitRequestTopic(name=topic, partitions=tuple(of)) for topic, of in partitions.items())
    return OffsetCommitRequest(group_id=group_id, member_id="", topics=tuple(topics))


def leaders_of(metadata: MetadataResponse, topics: Iterable[str]) -> dict[int, list[Partition]]:
    """The partitions of these topics by the broker that leads them; those without a leader are left out."""
    wanted = frozenset(topics)
    led: dict[int, list[Partition]] = defaultdict(list)
    for topic in metadata.topics:
        if topic.name in wanted:
            for partition in topic.partitions:
                if partition.leader_id >= 0:
                    led[partition.leader_id].append((topic.name, partition.partition_index))
    return dict(led)


def list_offsets_requests(times: Mapping[Partition, int], *, read_committed: bool = False) -> list[ListOffsetsRequest]:
    """ListOffsets for the partitions one broker leads, each with its timestamp (LATEST, EARLIEST, or milliseconds).

    A broker refuses a request that names a partition twice, so two timestamps of one partition take two requests.
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
                topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(of)) for name, of in by_topic.items()),
            )
        )
    return requests


@lru_cache(maxsize=PARTITIONS_PER_REQUEST_MAX)
def _asked_offset(index: int, timestamp: int) -> ListOffsetsPartition:
    """The same for all topics: each poll asks for the ends of all partitions."""
    return ListOffsetsPartition(partition_index=index, timestamp=timestamp)


def offsets_topic_config_request() -> admin.DescribeConfigsRequest:
    """The settings of `__consumer_offsets` that matter to us."""
    return _config_request(admin.TOPIC_RESOURCE, OFFSETS_TOPIC, ("cleanup.policy", "segment.bytes"))


def broker_config_request(node_id: int) -> admin.DescribeConfigsRequest:
    """A broker's own `OFFSETS_SETTINGS`; only that broker can answer."""
    return _config_request(admin.BROKER_RESOURCE, str(node_id), OFFSETS_SETTINGS)


def features_request() -> ApiVersionsRequest:
    """The cluster's finalized features, which any broker knows; a request without a client's name is refused."""
    return ApiVersionsRequest(client_software_name=DISTRIBUTION, client_software_version=own_version())


def _config_request(kind: int, name: str, settings: tuple[str, ...]) -> admin.DescribeConfigsRequest:
    resource = admin.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=settings)
    return admin.DescribeConfigsRequest(resources=(resource,))
