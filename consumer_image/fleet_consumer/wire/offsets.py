"""Committed offsets of groups.

OffsetCommit (key 8) stores offsets. It identifies topics by name up to version 9, and by id from version 10 on
(KIP-848, Kafka 4.1). If a topic was recreated with the same name, the broker refuses a commit by the old id with
UNKNOWN_TOPIC_ID.

OffsetFetch (9) reads offsets; from version 8 on, the offsets of several groups (KIP-709). If `topics` is None, all
topics with committed offsets are requested.
"""

from typing import Final
from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, ZERO_UUID, Structure, array, boolean, int16, int32, int64, string, uuid

LAST_BY_NAME: Final = 9
"""The last version that identifies topics by name."""


class OffsetCommitResponsePartition(Structure):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Structure):
    """The results for one topic, identified by name or id as in the request."""

    name: str = string(until=LAST_BY_NAME, default="", ignorable=True)
    topic_id: UUID = uuid(since=LAST_BY_NAME + 1, default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetCommitResponsePartition, ...] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, api_key=8, versions=(2, 10), flexible_from=8, bytes_max=32 * 1024 * 1024):
    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


class OffsetCommitRequestPartition(Structure):
    """The offset to read next, with the leader epoch of the last record that was read (-1 if unknown)."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable_since=0)


class OffsetCommitRequestTopic(Structure):
    """The offsets to commit for one topic. If both name and id are set, the request can be sent in every version."""

    name: str = string(until=LAST_BY_NAME, default="", ignorable=True)
    topic_id: UUID = uuid(since=LAST_BY_NAME + 1, default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetCommitRequestPartition, ...] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """A commit by a group member or, with generation -1, an administrative commit, which requires a group without
    members."""

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, default=None, nullable_since=7)
    retention_time_ms: int = int64(until=4, default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = array(OffsetCommitRequestTopic)

    @property
    def version_max(self) -> int:
        """The highest version that can carry this request: `LAST_BY_NAME` if the id of a topic is unknown."""
        by_id = all(topic.topic_id != ZERO_UUID for topic in self.topics)
        return self.MAX_VERSION if by_id else LAST_BY_NAME


class OffsetFetchResponsePartitions(Structure):
    """`committed_offset` is -1 if no offset is committed."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1, ignorable=True)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


class OffsetFetchResponseTopics(Structure):
    name: str = string()
    partitions: tuple[OffsetFetchResponsePartitions, ...] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Structure):
    group_id: str = string()
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics)
    error_code: int = int16(default=0)


class OffsetFetchResponse(Response, api_key=9, versions=(1, 9), flexible_from=6, bytes_max=32 * 1024 * 1024):
    """Versions up to 7 have `topics` and `error_code`; versions from 8 on have `groups`."""

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics, until=7, default=())
    error_code: int = int16(since=2, until=7, default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = array(OffsetFetchResponseGroup, since=8, default=())


class OffsetFetchRequestTopics(Structure):
    name: str = string()
    partition_indexes: tuple[int, ...] = array(INT32)


class OffsetFetchRequestGroup(Structure):
    group_id: str = string()
    member_id: str | None = string(since=9, default=None, nullable_since=9, ignorable=True)
    member_epoch: int = int32(since=9, default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = array(OffsetFetchRequestTopics, nullable_since=0)


class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Versions up to 7 use `group_id` and `topics`; versions from 8 on use `groups`. If `require_stable`, the broker
    answers UNSTABLE_OFFSET_COMMIT for a partition with offsets in an open transaction (KIP-447)."""

    group_id: str = string(until=7, default="")
    topics: tuple[OffsetFetchRequestTopics, ...] | None = array(
        OffsetFetchRequestTopics, until=7, default=(), nullable_since=2
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = array(OffsetFetchRequestGroup, since=8, default=())
    require_stable: bool = boolean(since=7, default=False)
