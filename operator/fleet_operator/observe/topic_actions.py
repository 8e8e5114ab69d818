"""What the operator does to the topics and groups of retry flows. Runs on the observer's thread.

Making, growing and mending are safe to repeat. Before anything is deleted the live state is read: a plan comes from an
observation, and a record may have been written since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import BrokerAddress, Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire.admin.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from fleet_consumer.wire.admin.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from fleet_consumer.wire.admin.delete_groups import DeleteGroupsRequest
from fleet_consumer.wire.admin.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fleet_consumer.wire.admin.incremental_alter_configs import set_topics
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.list_offsets import EARLIEST, LATEST
from fleet_consumer.wire.metadata import MetadataResponse
from fleet_operator.api.v1alpha1.conditions import NOT_ENOUGH_BROKERS, TOPIC_NAME_COLLIDES
from fleet_operator.observe import batches, due, folding
from fleet_operator.observe.folding import Offsets
from fleet_operator.planning.retry.topics import TopicsPlan

CALL_SECONDS: Final = 10.0
NO_WORDS: Final = "the broker gave no reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a broker did not do what was asked: what it was about, a CamelCase reason and its own words."""

    subject: str
    reason: str
    message: str


@dataclass(slots=True)
class Outcome:
    """What became of a plan: the names of topics to which something was done, and what was refused."""

    made: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def by_sort(self) -> dict[str, list[str]]:
        """The topics by what was done to them."""
        return {"made": self.made, "grown": self.grown, "mended": self.mended, "deleted": self.deleted}

    @property
    def changed(self) -> tuple[str, ...]:
        """All topics to which something was done."""
        return tuple(name for names in self.by_sort.values() for name in names)


def carry_out(client: NetworkClient, plan: TopicsPlan, *, retry_group: str) -> Outcome:
    """Do what a plan says, as far as the brokers let us. Raises NetError when they do not answer in time.

    `retry_group` is the Kafka group whose commits tell that a topic which is to be deleted is drained.
    """
    outcome = Outcome()
    if plan.create:
        _create(client, plan.create, outcome)
    if plan.grow:
        _grow(client, plan.grow, outcome)
    if plan.alter:
        _alter(client, plan.alter, outcome)
    if plan.delete:
        waiting = read_waiting(client, retry_group, plan.delete)
        drained = [name for name in plan.delete if waiting.get(name) == 0]
        if drained:
            outcome.refusals += delete_topics(client, drained)
            refused = {refusal.subject for refusal in outcome.refusals}
            outcome.deleted += [name for name in drained if name not in refused]
    return outcome


def _create(client: NetworkClient, topics: Sequence[WantedTopic], outcome: Outcome) -> None:
    """Make topics; one that has come into being meanwhile is as good, and its settings are the next look's affair."""
    wanted = tuple(
        CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignments=(),
            configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
        )
        for topic in topics
    )
    request = CreateTopicsRequest(topics=wanted, timeout_ms=int(CALL_SECONDS * 1000))
    for result in client.call(None, request, timeout_s=CALL_SECONDS).topics:
        if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            outcome.made.append(result.name)
        else:
            outcome.refusals.append(_refusal(result.name, result.error_code, result.error_message))


def _grow(client: NetworkClient, topics: Sequence[WantedTopic], outcome: Outcome) -> None:
    """Give topics more partitions, where they still have fewer."""
    metadata = client.metadata([topic.name for topic in topics], timeout_s=CALL_SECONDS)
    counts = {topic.name: len(topic.partitions) for topic in metadata.topics if not topic.error_code}
    smaller = [topic for topic in topics if counts.get(topic.name, topic.partitions) < topic.partitions]
    if not smaller:
        return
    request = CreatePartitionsRequest(
        topics=tuple(CreatePartitionsTopic(name=topic.name, count=topic.partitions) for topic in smaller),
        timeout_ms=int(CALL_SECONDS * 1000),
    )
    for result in client.call(None, request, timeout_s=CALL_SECONDS).results:
        if result.error_code:
            outcome.refusals.append(_refusal(result.name, result.error_code, result.error_message))
        else:
            outcome.grown.append(result.name)


def _alter(client: NetworkClient, settings: Mapping[str, Mapping[str, str]], outcome: Outcome) -> None:
    for result in client.call(None, set_topics(settings), timeout_s=CALL_SECONDS).responses:
        if result.error_code:
            outcome.refusals.append(_refusal(result.resource_name, result.error_code, result.error_message))
        else:
            outcome.mended.append(result.resource_name)


def delete_topics(client: NetworkClient, names: Collection[str]) -> list[Refusal]:
    """Delete topics with all their records; those that do not exist are as good as deleted. Raises NetError."""
    states = tuple(DeleteTopicState(name=name) for name in sorted(names))
    request = DeleteTopicsRequest(topics=states, timeout_ms=int(CALL_SECONDS * 1000))
    return [
        _refusal(result.name or "", result.error_code, result.error_message)
        for result in client.call(None, request, timeout_s=CALL_SECONDS).responses
        if result.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]


def delete_groups(client: NetworkClient, group_ids: Collection[str]) -> list[Refusal]:
    """Delete groups with their commits; those that do not exist are as good as deleted.

    The coordinator itself refuses a group that has members (NonEmptyGroup). Raises NetError.
    """
    refusals = []
    by_coordinator: dict[BrokerAddress, list[str]] = {}
    for group_id, found in client.find_coordinators(sorted(group_ids), timeout_s=CALL_SECONDS).items():
        if isinstance(found, Coordinator):
            by_coordinator.setdefault(found.address, []).append(group_id)
        else:
            refusals.append(_refusal(group_id, found.code, found.message))
    for address, names in by_coordinator.items():
        answer = client.call(address, DeleteGroupsRequest(groups_names=tuple(names)), timeout_s=CALL_SECONDS)
        refusals += [
            _refusal(result.group_id, result.error_code, None)
            for result in answer.results
            if result.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        ]
    return refusals


def read_waiting(client: NetworkClient, group_id: str, topics: Collection[str]) -> dict[str, int | None]:
    """How many records of each topic a group has not committed, asked now.

    Topics that the asked broker does not know are left out; None where a partition could not be asked. Raises NetError,
    or KafkaError when the group's commits are not to be had just now.
    """
    metadata = client.metadata(sorted(topics), timeout_s=CALL_SECONDS)
    committed = _committed(client, group_id)
    starts, ends = (_offsets(client, metadata, timestamp) for timestamp in (EARLIEST, LATEST))
    waiting: dict[str, int | None] = {}
    for topic in metadata.topics:
        assert topic.name is not None, "asked by name"
        if topic.error_code:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                waiting[topic.name] = None
            continue
        keys = [(topic.name, partition.partition_index) for partition in topic.partitions]
        known = all(key in starts and key in ends for key in keys)
        left = (ends[key] - due.position(committed.get(key), starts[key], ends[key]) for key in keys if known)
        waiting[topic.name] = sum(left) if known else None
    return waiting


def count_records(client: NetworkClient, topic: str) -> int | None:
    """How many records a topic holds now; 0 for one that does not exist, None when that cannot be told."""
    metadata = client.metadata([topic], timeout_s=CALL_SECONDS)
    code = metadata.topics[0].error_code
    if code:
        return 0 if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
    starts, ends = (_offsets(client, metadata, timestamp) for timestamp in (EARLIEST, LATEST))
    keys = [(topic, partition.partition_index) for partition in metadata.topics[0].partitions]
    return sum(ends[key] - starts[key] for key in keys) if all(key in starts and key in ends for key in keys) else None


def _committed(client: NetworkClient, group_id: str) -> Offsets:
    found = client.find_coordinators([group_id], timeout_s=CALL_SECONDS)[group_id]
    if not isinstance(found, Coordinator):
        raise found
    (request,) = batches.offset_fetch_requests({group_id: None})
    answer = client.call(found.address, request, timeout_s=CALL_SECONDS)
    for group in answer.groups:
        if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise KafkaError(group.error_code, f"commits of group {group_id!r}")
    positions = folding.positions(answer).get(group_id, {})
    return positions if isinstance(positions, dict) else {}


def _offsets(client: NetworkClient, metadata: MetadataResponse, timestamp: int) -> Offsets:
    names = [topic.name for topic in metadata.topics if topic.name is not None]
    offsets: Offsets = {}
    for node_id, partitions in batches.leaders_of(metadata, names).items():
        for request in batches.list_offsets_requests(partitions, timestamp):
            if node_id in client.brokers:
                answer = client.call(client.brokers[node_id], request, timeout_s=CALL_SECONDS)
                offsets |= folding.offsets(answer)
    return offsets


def _refusal(subject: str, code: int, words: str | None) -> Refusal:
    """The broker's words under one of our reasons where there is one."""
    message = words or NO_WORDS
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION and "collides" in message:
        return Refusal(subject=subject, reason=TOPIC_NAME_COLLIDES, message=message)
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:
        return Refusal(subject=subject, reason=NOT_ENOUGH_BROKERS, message=message)
    return Refusal(subject=subject, reason=folding.reason_of(code), message=message)
