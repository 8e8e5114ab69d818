"""Reads of one group, of one topic, or of `__consumer_offsets`, live and outside polls; and the setting of offsets.

Runs on the observer's thread; blocks. Everything here raises NetError and KafkaError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from fleet_consumer.net import BrokerAddress, Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import DescribedGroup, DescribeGroupsRequest, ListedGroup, ListGroupsRequest
from fleet_consumer.wire.topics import EARLIEST, LATEST, MetadataResponse
from fleet_operator.api.v1alpha1.conditions import TOPIC_NOT_FOUND
from fleet_operator.observe import aggregation, batches
from fleet_operator.observe.aggregation import Offsets
from fleet_operator.observe.batches import Partition
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicReading
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.offsets.records import MARK, Committed
from fleet_operator.planning.offsets.targets import GroupOffsets, Member

T = TypeVar("T")

CALL_SECONDS: Final = 10.0

Led = Mapping[BrokerAddress, list[Partition]]
"""Partitions by the address of their leader."""


def find_coordinator(client: NetworkClient, group_id: str) -> BrokerAddress:
    found = client.find_coordinators([group_id], timeout_s=CALL_SECONDS)[group_id]
    if not isinstance(found, Coordinator):
        raise found
    return found.address


def describe(client: NetworkClient, coordinator: BrokerAddress, group_id: str) -> DescribedGroup:
    """The group as its coordinator describes it; one that does not exist has no members."""
    request = DescribeGroupsRequest(groups=(group_id,))
    (group,) = client.call(coordinator, request, timeout_s=CALL_SECONDS).groups
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise KafkaError(group.error_code, f"group {group_id!r}")
    return group


def read_commits(
    client: NetworkClient, coordinator: BrokerAddress, group_id: str, counts: Mapping[str, int] | None = None
) -> dict[Partition, Committed]:
    """The group's commits in topics with these numbers of partitions, by default in all."""
    (request,) = batches.offset_fetch_requests({group_id: counts})
    (group,) = client.call(coordinator, request, timeout_s=CALL_SECONDS).groups
    code = aggregation.commits_code(group)
    if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise KafkaError(code, f"commits of group {group_id!r}")
    return {
        (topic.name, partition.partition_index): Committed(partition.committed_offset, partition.metadata or "")
        for topic in group.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def read_group(
    client: NetworkClient, group_id: str, topics: tuple[str, ...], time_ms: int | None, *, read_committed: bool
) -> GroupOffsets:
    """The group, its offsets in these topics, and what the brokers have there.

    With `read_committed` ends are those of readers that leave out open transactions. Ends are asked for before times: a
    record that arrives between the two is behind the end then, where a partition without a record of that time goes on.
    """
    coordinator = find_coordinator(client, group_id)
    described = describe(client, coordinator, group_id)
    other = _other_type(client, coordinator, group_id) if described.group_state in ("", "Dead") else None
    metadata, counts = _topics(client, sorted(topics))
    led = by_leader(client, metadata)
    ends = read_offsets(client, led, LATEST, read_committed=read_committed)
    found = {} if time_ms is None else read_times(client, led, time_ms, read_committed=read_committed)
    commits = read_commits(client, coordinator, group_id, counts) if counts else {}
    return GroupOffsets(
        state=described.group_state if other is None else other.group_state,
        group_type="" if other is None else other.group_type.lower(),
        members=tuple(Member(each.group_instance_id, each.client_id) for each in described.members),
        counts=counts,
        committed={key: each.offset for key, each in commits.items()},
        starts=read_offsets(client, led, EARLIEST),
        ends=ends,
        found=found,
        marks=frozenset(text for each in commits.values() if (text := each.metadata.rstrip("\0")).startswith(MARK)),
        cluster_id=metadata.cluster_id or "",
        topic_ids=_ids(metadata),
    )


def read_topic_ids(client: NetworkClient, topics: Iterable[str]) -> dict[str, str]:
    """The ids of those topics that the asked broker knows; brokers before Kafka 2.8 have none."""
    return _ids(_topics(client, sorted(topics))[0])


def _ids(metadata: MetadataResponse) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in aggregation.topics(metadata).items() if topic.topic_id}


def read_wanted_commits(
    client: NetworkClient, group_id: str, wanted: Mapping[Partition, int]
) -> dict[Partition, Committed]:
    """The commits of the wanted partitions' topics."""
    counts: dict[str, int] = {}
    for topic, number in wanted:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    return read_commits(client, find_coordinator(client, group_id), group_id, counts) if counts else {}


def commit(client: NetworkClient, group_id: str, wanted: Mapping[Partition, int], mark: str) -> dict[Partition, str]:
    """Set these offsets, with the mark as metadata; returns the partitions that the coordinator refused or left out of
    its answer, with the reasons. Where it raises, some are set, perhaps, and it may be repeated.

    As an administrator does, without a generation: the coordinator itself refuses that while the group has members. The
    commits carry no mark of a worker, so workers begin a new reading of each partition.
    """
    coordinator, refusals = find_coordinator(client, group_id), dict[Partition, str]()
    for request in batches.offset_commit_requests(group_id, wanted, mark):
        answer = client.call(coordinator, request, timeout_s=CALL_SECONDS)
        codes = {
            (topic.name, each.partition_index): each.error_code for topic in answer.topics for each in topic.partitions
        }
        asked = {(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions}
        refusals |= {key: aggregation.reason_of(code) for key, code in codes.items() if code}
        refusals |= dict.fromkeys(asked - codes.keys(), "Unanswered")
    return refusals


def read_topic(client: NetworkClient, question: RangeQuestion) -> TopicReading:
    """Partitions and offsets of a topic.

    Ends are asked for before times, as in `read_group`. Readers of committed records ask for both ends, that of the log
    first: only open transactions are between them.
    """
    metadata, known = _topics(client, (question.topic, *question.others))
    unknown = tuple(topic for topic in question.others if topic not in known)
    if question.topic not in known:
        return TopicReading(partitions=None, unknown=unknown)
    led = by_leader(client, metadata, (question.topic,))
    highs = read_offsets(client, led, LATEST) if question.read_committed else {}
    ends = read_offsets(client, led, LATEST, read_committed=question.read_committed)
    first, end = (
        {} if time_ms is None else read_times(client, led, time_ms, read_committed=question.read_committed)
        for time_ms in (question.from_ms, question.end_ms)
    )
    named = aggregation.topics(metadata)[question.topic]
    return TopicReading(
        partitions=known[question.topic],
        cluster_id=metadata.cluster_id,
        topic_id=named.topic_id,
        starts=_by_number(read_offsets(client, led, EARLIEST)),
        ends=_by_number(ends),
        first=_by_number(first),
        end=_by_number(end),
        highs=_by_number(highs),
        unknown=unknown,
    )


def _by_number(offsets: Mapping[Partition, T]) -> dict[int, T]:
    return {number: offset for (_, number), offset in offsets.items()}


def by_leader(client: NetworkClient, metadata: MetadataResponse, topics: Iterable[str] | None = None) -> Led:
    """The partitions of these topics, by default of all; those without a leader are left out."""
    names = topics if topics is not None else [topic.name for topic in metadata.topics if topic.name is not None]
    led = batches.leaders_of(metadata, names)
    return {client.brokers[node]: partitions for node, partitions in led.items() if node in client.brokers}


def read_offsets(client: NetworkClient, led: Led, timestamp: int, *, read_committed: bool = False) -> Offsets:
    """First or last offsets; partitions that cannot be read are left out."""
    found = read_times(client, led, timestamp, read_committed=read_committed)
    return {key: offset for key, offset in found.items() if offset is not None}


def read_times(client: NetworkClient, led: Led, time_ms: int, *, read_committed: bool) -> dict[Partition, int | None]:
    """The first offsets at or after a time, None where all records are older."""
    found: dict[Partition, int | None] = {}
    for address, partitions in led.items():
        for request in batches.list_offsets_requests(dict.fromkeys(partitions, time_ms), read_committed=read_committed):
            answer = aggregation.found(client.call(address, request, timeout_s=CALL_SECONDS))
            found |= {key: None if record is None else record.offset for key, record in answer.items()}
    return found


def read_offsets_topic(client: NetworkClient) -> ClusterObservation:
    """An observation with nothing but the brokers, their settings for `__consumer_offsets`, and this topic.

    Every broker is asked for its own settings: without the answer of one nothing is known.
    """
    metadata = client.metadata((batches.OFFSETS_TOPIC,), timeout_s=CALL_SECONDS)
    error = aggregation.topics(metadata)[batches.OFFSETS_TOPIC].error
    answers = {
        node: client.call(address, batches.broker_config_request(node), timeout_s=CALL_SECONDS)
        for node, address in client.brokers.items()
    }
    configs = None
    if error is None:
        configs = client.call(None, batches.offsets_topic_config_request(), timeout_s=CALL_SECONDS)
    return ClusterObservation(
        observed_at=0.0,
        reachable=True,
        cluster_id=metadata.cluster_id,
        brokers=aggregation.brokers(metadata),
        offsets_topic=aggregation.offsets_topic(metadata, configs),
        offsets_topic_error=None if error == TOPIC_NOT_FOUND else error,
        broker_settings={node: aggregation.broker_settings(answer) for node, answer in answers.items()},
    )


def _topics(client: NetworkClient, names: Iterable[str]) -> tuple[MetadataResponse, dict[str, int]]:
    """The metadata of topics, and the number of partitions of those that exist."""
    metadata = client.metadata(tuple(names), timeout_s=CALL_SECONDS)
    for topic in metadata.topics:
        if topic.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise KafkaError(topic.error_code, f"topic {topic.name!r}")
    return metadata, {t.name: len(t.partitions) for t in metadata.topics if t.name and not t.error_code}


def _other_type(client: NetworkClient, coordinator: BrokerAddress, group_id: str) -> ListedGroup | None:
    """The group, if its members speak another protocol than the classic one, whose description has no such group.

    Sources: KIP-848, `GroupMetadataManager.describeGroups` ("is not a classic group").
    """
    listed = client.call(coordinator, ListGroupsRequest(), timeout_s=CALL_SECONDS)
    if listed.error_code:
        raise KafkaError(listed.error_code, "list of groups")
    found = (each for each in listed.groups if each.group_id == group_id and not aggregation.is_classic(each))
    return next(found, None)
