"""From wire answers to observations. Pure.

What could not be asked stays absent: nothing here turns a missing answer into a zero.
"""

from __future__ import annotations

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
from fleet_operator.observe.interests import CLIENT_ID
from fleet_operator.planning import observation
from fleet_operator.planning.transactions import OpenTransaction

HISTORY_SAMPLES_MAX: Final = 16
"""Samples of end offsets kept for each partition: enough to interpolate minutes finely and hours roughly."""
STABLE: Final = "Stable"
DEAD: Final = "Dead"
NOT_OBSERVED: Final = "NotObserved"
"""The reason when nothing was answered and nobody said why."""
NOT_CLASSIC: Final = "GroupProtocolNotClassic"
"""The reason for a group of another protocol (KIP-848, share groups): DescribeGroups answers that it does not exist."""
CLASSIC_TYPES: Final = frozenset({"", "classic"})
"""Types in ListGroups of groups that DescribeGroups describes; brokers before Kafka 3.8 list none."""
RETRY_INFIX: Final = naming.retry_topic("", "").removeprefix(naming.RESERVED_PREFIX)
"""Separator of the group and the delay in the name of a retry topic."""
_KNOWN_CODES: Final = frozenset(ErrorCode)

Offsets = dict[tuple[str, int], int]
History = dict[tuple[str, int], tuple[observation.OffsetSample, ...]]
Transactions = Mapping[tuple[str, int], OpenTransaction]


@dataclass(frozen=True, slots=True)
class TopicLog:
    """Offsets of one or several topics; `history` is as in `GroupObservation.end_history`, `transactions` as in
    `open_transactions`."""

    ends: Offsets = field(default_factory=dict)
    history: History = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)
    transactions: Transactions = field(default_factory=dict)


NOT_READ: Final = TopicLog()
OPERATIONS_UNSAID: Final = -(2**31)
READ: Final = 3
"""The bit of an operation in the field of those that are authorized is its code in an ACL."""


def reason_of(code: int) -> str:
    """A CamelCase word for an error code of a broker: the words of our conditions where there is one."""
    match code:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "TopicNotFound"
        case (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
            | ErrorCode.GROUP_AUTHORIZATION_FAILED
            | ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ):
            return "AuthorizationFailed"
        case _:
            name = ErrorCode(code).name if code in _KNOWN_CODES else f"ERROR_{code}"
            return "".join(word.capitalize() for word in name.split("_"))


def brokers(metadata: MetadataResponse) -> tuple[observation.BrokerInfo, ...]:
    """The live brokers by id."""
    return tuple(
        sorted((observation.BrokerInfo(b.node_id, b.host, b.port) for b in metadata.brokers), key=lambda b: b.id)
    )


def topics(metadata: MetadataResponse) -> dict[str, observation.TopicObservation]:
    """Every topic that was asked for, existing or not."""
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
    """The delays of all retry topics that there are, by the main group whose they are.

    Only delays as we write them: somebody else's `retry.60s` is none of ours, whose minute is `retry.1m`.
    """
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
    """`__consumer_offsets` as it is; None while it does not exist, or cannot be described."""
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
    """A broker's answer about itself; all unknown when it refuses one."""
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
    """The finalized level of the feature metadata.version; None when the broker would not say."""
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
    """The error of a group's commits: its own, or that of the first partition that has one; 0 without any."""
    partitions = (partition for topic in group.topics for partition in topic.partitions)
    return group.error_code or next((each.error_code for each in partitions if each.error_code), 0)


def positions(response: OffsetFetchResponse) -> dict[str, Offsets | str]:
    """Committed offsets of each group, or the reason why there are none to be had.

    A partition that cannot be told makes all of them unknown: left out, it would count as one without a commit.
    """
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
    """Offsets found; partitions with an error are left out, and topics without any."""
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
    """The first record at or after the time that was asked for; None where no record is that young.

    Partitions with an error are left out.
    """
    return {
        (topic.name, partition.partition_index): (
            Found(partition.offset, partition.timestamp) if partition.offset >= 0 else None
        )
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    }


def member(described: DescribedGroupMember, *, stable: bool) -> observation.MemberObservation:
    """One member; an assignment that we cannot read (another library's own form) counts as none."""
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
    """A described group's state and members, in a fixed order; one that does not exist (yet) is Dead.

    The operator's own visit (`group_visit`) does not show: a group that only it has joined is Empty as before.
    """
    stable = described.group_state == STABLE
    others = [each for each in described.members if not is_visitor(each)]
    if described.members and not others:
        return "Empty", ()
    members = (member(each, stable=stable) for each in others)
    ordered = tuple(sorted(members, key=lambda each: (each.instance_id or "", each.member_id)))
    return state_of(described), ordered


def state_of(described: DescribedGroup) -> str:
    """The state of a described group; one that does not exist (yet) is Dead."""
    return DEAD if described.error_code else described.group_state


def may_read(described: DescribedGroup | None) -> bool | None:
    """True if our login may be a member of the group; None where the broker did not say."""
    if described is None or described.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return None if described is None else False
    unsaid = described.error_code or described.authorized_operations == OPERATIONS_UNSAID
    return None if unsaid else bool(described.authorized_operations >> READ & 1)


def is_classic(listed: ListedGroup) -> bool:
    """True if DescribeGroups describes this group."""
    return listed.group_type.lower() in CLASSIC_TYPES


def is_visitor(described: DescribedGroupMember) -> bool:
    """True for the member by which an operator visits an empty group; it may be another process's."""
    return described.client_id == CLIENT_ID and described.group_instance_id is None


@dataclass(slots=True)
class GroupFacts:
    """Answers of one poll about one group, before they are aggregated; `error` is the first error.

    `log` has the offsets of its source topics, `failed` those of its failed topic, which has `failed_partitions`.
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
        """The first error, that of the description too; a group that does not exist (yet) has none."""
        described = self.described
        if described is None or described.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return self.error
        return self.error or reason_of(described.error_code)


def extend_history(history: History, ends: Offsets, now: float) -> History:
    """Each partition's samples with this one added; partitions that did not answer keep theirs."""
    added = {key: _add_sample(history.get(key, ()), observation.OffsetSample(now, end)) for key, end in ends.items()}
    return {**history, **added}


def _add_sample(
    samples: tuple[observation.OffsetSample, ...], new: observation.OffsetSample
) -> tuple[observation.OffsetSample, ...]:
    """Samples with one more, thinned so that they reach back ever further.

    Of a run of equal offsets the first and the last are kept: between them nothing was produced, and the estimate must
    not spread the next records over an idle hour. An offset that went back (the topic was recreated) starts afresh.
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
