"""Converts wire responses to observations. Pure.

If a response is missing, its values are absent from the observation; they never become zero.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.wire.admin import BROKER_RESOURCE, TOPIC_RESOURCE, DescribeConfigsResponse
from fleet_consumer.wire.connection import ApiVersionsResponse
from fleet_consumer.wire.consumer_protocol import decode_assignment, partitions_by_topic
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage
from fleet_consumer.wire.groups import DescribedGroup, DescribedGroupMember, ListedGroup
from fleet_consumer.wire.offsets import OffsetFetchResponse, OffsetFetchResponseGroup
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.wire.topics import ListOffsetsResponse, MetadataResponse
from fleet_operator.observe.batches import OFFSETS_SETTINGS, OFFSETS_TOPIC
from fleet_operator.observe.due import Found
from fleet_operator.observe.subscriptions import CLIENT_ID
from fleet_operator.planning import observation
from fleet_operator.planning.observation import OpenTransaction

HISTORY_SAMPLES_MAX: Final = 16
"""Largest number of end offset samples that are kept of each partition. They allow precise interpolation over minutes,
and rough interpolation over hours."""
STABLE: Final = "Stable"
DEAD: Final = "Dead"
NOT_OBSERVED: Final = "NotObserved"
"""Reason of a group for which a poll got neither an answer nor an error."""
NOT_CLASSIC: Final = "GroupProtocolNotClassic"
"""Reason of a group that does not use the classic group protocol, such as a KIP-848 consumer group or a share group.
DescribeGroups reports such a group as not existing."""
CLASSIC_TYPES: Final = frozenset({"", "classic"})
"""Group types that ListGroups returns and DescribeGroups can describe. Brokers before Kafka 3.8 return no type."""
RETRY_INFIX: Final = naming.retry_topic("", "").removeprefix(naming.RESERVED_PREFIX)
"""Separator between the group id and the delay in the name of a retry topic."""
_KNOWN_CODES: Final = frozenset(ErrorCode)
_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "TopicNotFound",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "AuthorizationFailed",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "AuthorizationFailed",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "AuthorizationFailed",
}

Offsets = dict[tuple[str, int], int]
History = dict[tuple[str, int], tuple[observation.OffsetSample, ...]]
Transactions = Mapping[tuple[str, int], OpenTransaction]


@dataclass(frozen=True, slots=True)
class TopicLog:
    """Log offsets of one or more topics. `history` and `transactions` become `end_history` and `open_transactions` of a
    `GroupObservation`."""

    ends: Offsets = field(default_factory=dict)
    history: History = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)
    transactions: Transactions = field(default_factory=dict)


NOT_READ: Final = TopicLog()
OPERATIONS_UNSAID: Final = -(2**31)
READ: Final = 3
"""The number of the bit for Read in `authorized_operations`, which is the ACL code of the operation Read."""


def reason_of(code: int) -> str:
    """Convert a broker's error code to the reason that conditions use: by default, the error's name in CamelCase."""
    if code in _REASONS:
        return _REASONS[code]
    name = ErrorCode(code).name if code in _KNOWN_CODES else f"ERROR_{code}"
    return "".join(word.capitalize() for word in name.split("_"))


def brokers(metadata: MetadataResponse) -> tuple[observation.BrokerInfo, ...]:
    return tuple(
        sorted((observation.BrokerInfo(b.node_id, b.host, b.port) for b in metadata.brokers), key=lambda b: b.id)
    )


def topics(metadata: MetadataResponse) -> dict[str, observation.TopicObservation]:
    """Build the observations of all requested topics, including topics that do not exist."""
    return {
        topic.name: observation.TopicObservation(
            partitions=len(topic.partitions),
            error=reason_of(topic.error_code) if topic.error_code else None,
            topic_id=str(topic.topic_id) if topic.topic_id != ZERO_UUID else None,
        )
        for topic in metadata.topics
        if topic.name is not None
    }


def delays_by_group(metadata: MetadataResponse) -> dict[str, tuple[str, ...]]:
    """The delays of all existing retry topics, keyed by main group. Only canonical delays count: `retry.1m` is a retry
    topic, `retry.60s` is not."""
    found: dict[str, list[str]] = defaultdict(list)
    for topic in metadata.topics:
        if topic.name is None or topic.error_code or not naming.is_managed_topic(topic.name):
            continue
        group_id, _, delay = topic.name.removeprefix(naming.RESERVED_PREFIX).rpartition(RETRY_INFIX)
        if group_id and naming.is_canonical_delay(delay):
            found[group_id].append(delay)
    return {group_id: tuple(sorted(delays, key=naming.parse_delay)) for group_id, delays in found.items()}


def offsets_topic(
    metadata: MetadataResponse, configs: DescribeConfigsResponse | None
) -> observation.OffsetsTopicInfo | None:
    """The state of `__consumer_offsets`; None while the topic does not exist or cannot be described."""
    found = next((t for t in metadata.topics if t.name == OFFSETS_TOPIC and not t.error_code), None)
    if found is None or not found.partitions:
        return None
    settings = _settings(configs, TOPIC_RESOURCE)
    ordered = sorted(found.partitions, key=lambda partition: partition.partition_index)
    return observation.OffsetsTopicInfo(
        partitions=len(ordered),
        replication_factor=min(len(partition.replica_nodes) for partition in ordered),
        cleanup_policy=settings.get("cleanup.policy"),
        segment_bytes=_number(settings.get("segment.bytes")),
        replicas=tuple(partition.replica_nodes for partition in ordered),
        leaders=tuple(partition.leader_id if partition.leader_id >= 0 else None for partition in ordered),
    )


def broker_settings(configs: DescribeConfigsResponse) -> observation.BrokerSettings:
    """A broker's own settings; all of them are None if the broker refuses the request."""
    found = _settings(configs, BROKER_RESOURCE)
    partitions, replication_factor, segment_bytes, minutes = (_number(found.get(name)) for name in OFFSETS_SETTINGS)
    return observation.BrokerSettings(
        partitions=partitions,
        replication_factor=replication_factor,
        segment_bytes=segment_bytes,
        retention_s=minutes * 60.0 if minutes is not None else None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def metadata_version(response: ApiVersionsResponse) -> int | None:
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    return levels.get("metadata.version")


def _settings(configs: DescribeConfigsResponse | None, resource_type: int) -> dict[str, str | None]:
    return {
        entry.name: entry.value
        for result in (configs.results if configs is not None else ())
        if result.resource_type == resource_type and not result.error_code
        for entry in result.configs
    }


def commits_code(group: OffsetFetchResponseGroup) -> int:
    """The error code of the group or, without one, of the first partition with an error; 0 without any error."""
    partitions = (partition for topic in group.topics for partition in topic.partitions)
    return group.error_code or next((each.error_code for each in partitions if each.error_code), 0)


def positions(response: OffsetFetchResponse) -> dict[str, Offsets | str]:
    """The committed offsets of each group, or the reason of the group's error. If one partition has an error, all
    offsets of the group are unknown: a partition that is left out would count as a partition without a commit."""
    found: dict[str, Offsets | str] = {}
    for group in response.groups:
        if code := commits_code(group):
            found[group.group_id] = reason_of(code)
            continue
        found[group.group_id] = {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in group.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }
    return found


def offsets_by_topic(response: ListOffsetsResponse) -> dict[str, Offsets]:
    """Offsets keyed by topic, without partitions that have an error or no offset."""
    found = {
        topic.name: {
            (topic.name, partition.partition_index): partition.offset
            for partition in topic.partitions
            if not partition.error_code and partition.offset >= 0
        }
        for topic in response.topics
    }
    return {topic: offsets for topic, offsets in found.items() if offsets}


def found(response: ListOffsetsResponse) -> dict[tuple[str, int], Found | None]:
    """For each partition, the first record that was appended at or after the requested time; None if all records are
    older. Partitions with an error are left out."""
    return {
        (topic.name, partition.partition_index): (
            Found(partition.offset, partition.timestamp) if partition.offset >= 0 else None
        )
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    }


def member(described: DescribedGroupMember, *, stable: bool) -> observation.MemberObservation:
    """Convert one member. An assignment in another library's private format counts as empty."""
    assigned: dict[str, tuple[int, ...]] = {}
    if stable and described.member_assignment:
        with suppress(MalformedMessage):
            listed = partitions_by_topic(decode_assignment(described.member_assignment).assigned_partitions)
            assigned = {topic: tuple(sorted(numbers)) for topic, numbers in listed.items()}
    return observation.MemberObservation(
        member_id=described.member_id,
        instance_id=described.group_instance_id,
        client_id=described.client_id,
        host=described.client_host,
        partitions=assigned,
    )


def mirror(described: DescribedGroup) -> tuple[str, tuple[observation.MemberObservation, ...]]:
    """The state of a described group, and its members in a fixed order. A group that does not exist (yet) is Dead. An
    operator's visiting member (`group_visit`) is left out, so a group with no other member is Empty."""
    stable = described.group_state == STABLE
    others = [each for each in described.members if not is_visitor(each)]
    if described.members and not others:
        return "Empty", ()
    members = (member(each, stable=stable) for each in others)
    ordered = tuple(sorted(members, key=lambda each: (each.instance_id or "", each.member_id)))
    return state_of(described), ordered


def state_of(described: DescribedGroup) -> str:
    return DEAD if described.error_code else described.group_state


def may_read(described: DescribedGroup | None) -> bool | None:
    """True if the operator's login has the permission Read, which members of the group need; None if the broker did not
    return permissions."""
    if described is None or described.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return None if described is None else False
    unsaid = described.error_code or described.authorized_operations == OPERATIONS_UNSAID
    return None if unsaid else bool(described.authorized_operations >> READ & 1)


def is_classic(listed: ListedGroup) -> bool:
    return listed.group_type.lower() in CLASSIC_TYPES


def is_visitor(described: DescribedGroupMember) -> bool:
    """True for the member with which an operator, perhaps in another process, visits an empty group."""
    return described.client_id == CLIENT_ID and described.group_instance_id is None


@dataclass(slots=True)
class GroupFacts:
    """The responses of one poll for one group, before aggregation. `error` is the first error.

    `log`, `failed`: log offsets of the group's source topics, and of its failed topic with `failed_partitions`
    partitions.
    """

    group_id: str
    coordinator_id: int | None = None
    described: DescribedGroup | None = None
    committed: Offsets | None = None
    log: TopicLog = NOT_READ
    failed: TopicLog = NOT_READ
    failed_partitions: int = 0
    error: str | None = None

    @property
    def failure(self) -> str | None:
        """The first error, including an error of DescribeGroups. A group that does not exist (yet) has no error."""
        described = self.described
        if described is None or described.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return self.error
        return self.error or reason_of(described.error_code)


def extend_history(history: History, ends: Offsets, now: float) -> History:
    """Add a sample to each partition with a known end offset; other partitions keep their samples unchanged."""
    added = {key: _add_sample(history.get(key, ()), observation.OffsetSample(now, end)) for key, end in ends.items()}
    return {**history, **added}


def _add_sample(
    samples: tuple[observation.OffsetSample, ...], new: observation.OffsetSample
) -> tuple[observation.OffsetSample, ...]:
    """Add a sample. If there are then more than HISTORY_SAMPLES_MAX, drop every second sample of the older half.

    Of consecutive samples with equal offsets, the first and the last are kept. Such a pair shows that no record arrived
    between the two times, so an interpolation does not spread later records over an idle hour. A lower offset than
    before shows that the topic was recreated; the earlier samples are then dropped.
    """
    if samples and new.end_offset < samples[-1].end_offset:
        return (new,)
    if len(samples) > 1 and samples[-1].end_offset == samples[-2].end_offset == new.end_offset:
        return (*samples[:-1], new)
    grown = (*samples, new)
    if len(grown) <= HISTORY_SAMPLES_MAX:
        return grown
    half = len(grown) // 2
    return (*grown[:half:2], *grown[half:])
