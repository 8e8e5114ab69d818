"""Reads one group, one topic or `__consumer_offsets` live, outside of polls, and commits offsets of a group.

Runs on the observer's thread and blocks. All functions raise NetError and KafkaError.
"""

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
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicOffsets
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.offsets.records import MARKER, Committed
from fleet_operator.planning.offsets.targets import GroupOffsets, Member

T = TypeVar("T")

CALL_SECONDS: Final = 10.0

Led = Mapping[BrokerAddress, list[Partition]]
"""Partitions, keyed by the address of their leader."""


def find_coordinator(client: NetworkClient, group_id: str) -> BrokerAddress:
    found = client.find_coordinators([group_id], timeout_s=CALL_SECONDS)[group_id]
    if not isinstance(found, Coordinator):
        raise found
    return found.address


def describe(client: NetworkClient, coordinator: BrokerAddress, group_id: str) -> DescribedGroup:
    """Describe a group. A group that does not exist has no members."""
    request = DescribeGroupsRequest(groups=(group_id,))
    (group,) = client.call(coordinator, request, timeout_s=CALL_SECONDS).groups
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise KafkaError(group.error_code, f"group {group_id!r}")
    return group


def read_commits(
    client: NetworkClient, coordinator: BrokerAddress, group_id: str, counts: Mapping[str, int] | None = None
) -> dict[Partition, Committed]:
    """Read the group's commits, by default in all topics, or in those of `counts` (partition counts keyed by topic)."""
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
    """Read the group, its commits in these topics, and the log offsets of these topics.

    With `read_committed`, the end offsets are last stable offsets. End offsets are read before offsets for times: a
    partition without a record at or after the time uses its end offset, and a record that arrives between the two
    requests must not be skipped.
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
        markers=frozenset(text for each in commits.values() if (text := each.metadata.rstrip("\0")).startswith(MARKER)),
        cluster_id=metadata.cluster_id or "",
        topic_ids=_ids(metadata),
    )


def read_topic_ids(client: NetworkClient, topics: Iterable[str]) -> dict[str, str]:
    """Read topic ids, keyed by name, of the topics that the broker knows. Brokers before Kafka 2.8 return no ids."""
    return _ids(_topics(client, sorted(topics))[0])


def _ids(metadata: MetadataResponse) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in aggregation.topics(metadata).items() if topic.topic_id}


def read_wanted_commits(
    client: NetworkClient, group_id: str, wanted: Mapping[Partition, int]
) -> dict[Partition, Committed]:
    counts: dict[str, int] = {}
    for topic, number in wanted:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    return read_commits(client, find_coordinator(client, group_id), group_id, counts) if counts else {}


def commit(client: NetworkClient, group_id: str, wanted: Mapping[Partition, int], marker: str) -> dict[Partition, str]:
    """Commit these offsets with the marker as metadata. Returns the partitions whose commit the coordinator refused or
    did not answer, with reasons. After an error, some offsets may have been committed; a repeated commit is safe.

    The commit has no generation, so the coordinator refuses it while the group has members. Its metadata differs from
    the metadata of workers' commits, so workers begin a new replay epoch in each partition.
    """
    coordinator, refusals = find_coordinator(client, group_id), dict[Partition, str]()
    for request in batches.offset_commit_requests(group_id, wanted, marker):
        answer = client.call(coordinator, request, timeout_s=CALL_SECONDS)
        codes = {
            (topic.name, each.partition_index): each.error_code for topic in answer.topics for each in topic.partitions
        }
        asked = {(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions}
        refusals |= {key: aggregation.reason_of(code) for key, code in codes.items() if code}
        refusals |= dict.fromkeys(asked - codes.keys(), "Unanswered")
    return refusals


def read_topic(client: NetworkClient, question: RangeQuestion) -> TopicOffsets:
    """Read the partitions and offsets of a topic.

    Ends are read before offsets for times, as in `read_group`. With `read_committed`, the high watermark is also read,
    before the last stable offset. Records between the two offsets are therefore held back by an open transaction. In
    the opposite order, they might only have arrived between the two requests.
    """
    metadata, known = _topics(client, (question.topic, *question.others))
    unknown = tuple(topic for topic in question.others if topic not in known)
    if question.topic not in known:
        return TopicOffsets(partitions=None, unknown=unknown)
    led = by_leader(client, metadata, (question.topic,))
    highs = read_offsets(client, led, LATEST) if question.read_committed else {}
    ends = read_offsets(client, led, LATEST, read_committed=question.read_committed)
    first, end = (
        {} if time_ms is None else read_times(client, led, time_ms, read_committed=question.read_committed)
        for time_ms in (question.from_ms, question.end_ms)
    )
    named = aggregation.topics(metadata)[question.topic]
    return TopicOffsets(
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
    """Partitions of these topics (default: of all topics) that have a leader, keyed by the leader's address."""
    names = topics if topics is not None else [topic.name for topic in metadata.topics if topic.name is not None]
    led = batches.leaders_of(metadata, names)
    return {client.brokers[node]: partitions for node, partitions in led.items() if node in client.brokers}


def read_offsets(client: NetworkClient, led: Led, timestamp: int, *, read_committed: bool = False) -> Offsets:
    """Read the offsets for a timestamp (EARLIEST or LATEST). Partitions with an error are left out."""
    found = read_times(client, led, timestamp, read_committed=read_committed)
    return {key: offset for key, offset in found.items() if offset is not None}


def read_times(client: NetworkClient, led: Led, time_ms: int, *, read_committed: bool) -> dict[Partition, int | None]:
    """For each partition, read the offset of the first record at or after a time; None if all records are older."""
    found: dict[Partition, int | None] = {}
    for address, partitions in led.items():
        for request in batches.list_offsets_requests(dict.fromkeys(partitions, time_ms), read_committed=read_committed):
            answer = aggregation.found(client.call(address, request, timeout_s=CALL_SECONDS))
            found |= {key: None if record is None else record.offset for key, record in answer.items()}
    return found


def read_offsets_topic(client: NetworkClient) -> ClusterObservation:
    """Observe only the brokers, their settings for `__consumer_offsets`, and this topic.

    Each broker returns its own settings. Raises the error of the first broker that does not answer.
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
    metadata = client.metadata(tuple(names), timeout_s=CALL_SECONDS)
    for topic in metadata.topics:
        if topic.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise KafkaError(topic.error_code, f"topic {topic.name!r}")
    return metadata, {t.name: len(t.partitions) for t in metadata.topics if t.name and not t.error_code}


def _other_type(client: NetworkClient, coordinator: BrokerAddress, group_id: str) -> ListedGroup | None:
    """A group's entry in ListGroups if the group does not use the classic protocol, otherwise None.

    DescribeGroups describes a KIP-848 group as `Dead`, like a missing group; only ListGroups, with the group's type,
    distinguishes them. Sources: KIP-848, `GroupMetadataManager.describeGroups` ("is not a classic group").
    """
    listed = client.call(coordinator, ListGroupsRequest(), timeout_s=CALL_SECONDS)
    if listed.error_code:
        raise KafkaError(listed.error_code, "list of groups")
    found = (each for each in listed.groups if each.group_id == group_id and not aggregation.is_classic(each))
    return next(found, None)
