"""Changes on a Kafka cluster: managed topics, groups and static members. Runs on the observer's thread; blocks.

Every change is safe to repeat. Before anything is deleted the live state is read: a plan comes from an observation, and
a record may have been written since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import AnotherCluster, BrokerAddress, Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    set_topics,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
)
from fleet_consumer.wire.topics import EARLIEST, LATEST, MetadataResponse, MetadataResponseTopic
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.api.v1alpha1.conditions import NOT_ENOUGH_BROKERS, TOPIC_NAME_COLLIDES
from fleet_operator.api.v1alpha1.kafkacluster import OffsetsTopic
from fleet_operator.observe import aggregation, batches, due, live_reads
from fleet_operator.observe.aggregation import Offsets
from fleet_operator.observe.batches import Partition
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.observe.live_reads import CALL_SECONDS, find_coordinator
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicReading
from fleet_operator.planning.fleet.deletion import doomed_groups, doomed_topics
from fleet_operator.planning.offsets.records import Committed, is_outdated
from fleet_operator.planning.offsets.targets import GroupOffsets
from fleet_operator.planning.offsets_topic import decide_offsets_topic
from fleet_operator.planning.retry.topics import TopicsPlan

T = TypeVar("T")

_TIMEOUT_MS: Final = int(CALL_SECONDS * 1000)
LEAVE_REASON: Final = "the worker of this static member was removed by scaling down"
NO_MESSAGE: Final = "the broker gave no reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A broker's refusal: the topic or group, a CamelCase reason and the broker's message."""

    subject: str
    reason: str
    message: str


@dataclass(slots=True)
class TopicChanges:
    """The outcome of a plan: the names of changed topics, and the refusals."""

    made: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def by_sort(self) -> dict[str, list[str]]:
        return {"made": self.made, "grown": self.grown, "mended": self.mended, "deleted": self.deleted}

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(name for names in self.by_sort.values() for name in names)

    def with_others(self, others: TopicChanges) -> TopicChanges:
        return TopicChanges(
            **{each.name: getattr(self, each.name) + getattr(others, each.name) for each in fields(self)}
        )

    def note(self, done: list[str], topic: str, code: int, text: str | None) -> None:
        """Add a topic to those `done`, or to the refusals if the broker answered with an error."""
        if code:
            self.refusals.append(_refusal(topic, code, text))
        else:
            done.append(topic)


@dataclass(slots=True)
class FlowRemoval:
    """The outcome of deleting a group's retry flow.

    `waiting` has the topics that were kept and their records without a commit (None: unknown), `failed` the number of
    records in the failed topic (None: not counted).
    """

    refusals: list[Refusal] = field(default_factory=list)
    waiting: dict[str, int | None] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetsSet:
    """The outcome of setting offsets: the refused partitions with reasons, and the committed offsets before and
    after. `outdated`: nothing was set, for they were not those that were expected."""

    refusals: Mapping[Partition, str]
    before: Offsets
    after: Offsets
    outdated: bool = False


class KafkaAdmin:
    """Changes on the Kafka cluster that the client is bound to; see `change_cluster`. An instance serves one action.

    Every method may raise NetError when brokers do not answer in time.
    """

    def __init__(self, client: NetworkClient) -> None:
        self._client = client

    def change_topics(self, plan: TopicsPlan, *, retry_group: str) -> TopicChanges:
        """Carry out a plan, as far as the brokers allow.

        `retry_group` is the Kafka group whose commits show that a topic which is to be deleted is drained.
        """
        changes = self.create_topics(plan.create) if plan.create else TopicChanges()
        if plan.grow:
            self._grow(plan.grow, changes)
        if plan.alter:
            self._alter(plan.alter, changes)
        if plan.delete:
            waiting = self.read_waiting(retry_group, plan.delete)
            drained = [name for name in plan.delete if waiting.get(name) == 0]
            if drained:
                changes.refusals += self.delete_topics(drained)
                refused = {refusal.subject for refusal in changes.refusals}
                changes.deleted += [name for name in drained if name not in refused]
        return changes

    def create_topics(self, topics: Iterable[WantedTopic]) -> TopicChanges:
        """Create topics, of one group or of many; one that exists by now is as good, and the next poll sees to its
        settings."""
        changes = TopicChanges()
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
        request = CreateTopicsRequest(topics=wanted, timeout_ms=_TIMEOUT_MS)
        for result in self._client.call(None, request, timeout_s=CALL_SECONDS).topics:
            code = 0 if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS else result.error_code
            changes.note(changes.made, result.name, code, result.error_message)
        return changes

    def delete_flow(self, group: ConsumerGroup, *, had_retries: bool) -> FlowRemoval:
        """Delete the topics and groups that `spec.deletion` names, except topics in which records wait.

        Topics go first, for the commits of the groups show which of them are drained.
        """
        removal = FlowRemoval()
        known = self._client.metadata(None, timeout_s=CALL_SECONDS).topics
        topics = doomed_topics(group, [topic.name for topic in known if topic.name is not None])
        if group.spec.deletion.retry_topics == "Drain":
            waiting = self.read_waiting(naming.retry_group(group.group_id), topics)
            # A topic that is listed and that another broker does not know yet is not known to be drained.
            removal.waiting = {topic: waiting.get(topic) for topic in topics if waiting.get(topic) != 0}
            removal.failed = self.count_records(naming.failed_topic(group.group_id))
        doomed = [topic for topic in topics if topic not in removal.waiting]
        if doomed:
            removal.refusals += self.delete_topics(doomed)
        # Commits show how far records are done: they stay while any record is kept.
        groups = doomed_groups(group, had_retries=had_retries) if not removal.waiting else ()
        if groups:
            removal.refusals += self.delete_groups(groups)
        removal.deleted = (*doomed, *groups)
        return removal

    def provision_offsets_topic(self, wanted: OffsetsTopic) -> TopicChanges:
        """Create `__consumer_offsets`, or set its settings, as is decided about what the brokers say now."""
        decision = decide_offsets_topic(live_reads.read_offsets_topic(self._client), wanted)
        changes = self.create_topics((decision.create,)) if decision.create is not None else TopicChanges()
        if decision.alter:
            self._alter({batches.OFFSETS_TOPIC: decision.alter}, changes)
        return changes

    def begin_visit(self, visit: GroupVisit) -> VisitOutcome | None:
        """Begin to join and leave an empty group; its further steps need no other proof of the cluster. Raises
        KafkaError."""
        return visit.begin(self._client)

    def remove_members(self, group_id: str, instance_ids: Collection[str]) -> Sequence[str]:
        """Take static members out of a group by instance id, and return those that were taken out.

        Only members that the group has at this moment are named to the broker; nobody else's are ever touched. Raises
        KafkaError when the coordinator cannot be reached; the next reconcile asks again.
        """
        coordinator = find_coordinator(self._client, group_id)
        request = DescribeGroupsRequest(groups=(group_id,))
        described = self._client.call(coordinator, request, timeout_s=CALL_SECONDS)
        present = {member.group_instance_id for group in described.groups for member in group.members}
        leaving = tuple(
            LeaveGroupRequestMember(member_id="", group_instance_id=instance, reason=LEAVE_REASON)
            for instance in sorted(set(instance_ids))
            if instance in present
        )
        if not leaving:
            return ()
        leave = LeaveGroupRequest(group_id=group_id, members=leaving)
        response = self._client.call(coordinator, leave, timeout_s=CALL_SECONDS)
        if response.error_code:
            raise KafkaError(response.error_code, f"group {group_id!r}")
        return [
            member.group_instance_id
            for member in response.members
            if member.group_instance_id is not None and not member.error_code
        ]

    def delete_topics(self, names: Collection[str]) -> list[Refusal]:
        """Delete topics with all their records; those that do not exist are as good as deleted."""
        states = tuple(DeleteTopicState(name=name) for name in sorted(names))
        request = DeleteTopicsRequest(topics=states, timeout_ms=_TIMEOUT_MS)
        return [
            _refusal(result.name or "", result.error_code, result.error_message)
            for result in self._client.call(None, request, timeout_s=CALL_SECONDS).responses
            if result.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        ]

    def delete_groups(self, group_ids: Collection[str]) -> list[Refusal]:
        """Delete groups with their commits; those that do not exist are as good as deleted.

        The coordinator itself refuses a group that has members (NonEmptyGroup).
        """
        refusals = []
        by_coordinator: dict[BrokerAddress, list[str]] = {}
        for group_id, found in self._client.find_coordinators(sorted(group_ids), timeout_s=CALL_SECONDS).items():
            if isinstance(found, Coordinator):
                by_coordinator.setdefault(found.address, []).append(group_id)
            else:
                refusals.append(_refusal(group_id, found.code, found.message))
        for address, names in by_coordinator.items():
            answer = self._client.call(address, DeleteGroupsRequest(groups_names=tuple(names)), timeout_s=CALL_SECONDS)
            refusals += [
                _refusal(result.group_id, result.error_code, None)
                for result in answer.results
                if result.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
            ]
        return refusals

    def read_offsets(
        self, group_id: str, topics: tuple[str, ...], time_ms: int | None, *, read_committed: bool
    ) -> GroupOffsets:
        """A group, its offsets in these topics, and what the brokers have there. Raises KafkaError."""
        return live_reads.read_group(self._client, group_id, topics, time_ms, read_committed=read_committed)

    def read_topic(self, question: RangeQuestion) -> TopicReading:
        """A topic's partitions and offsets, for a Backfill. Raises KafkaError."""
        return live_reads.read_topic(self._client, question)

    def read_positions(self, group_id: str) -> tuple[Committed, ...]:
        """Every committed offset of a Redrive's own Kafka group with its metadata; empty before the first commit.

        Raises KafkaError when the coordinator cannot be reached.
        """
        return tuple(live_reads.read_commits(self._client, find_coordinator(self._client, group_id), group_id).values())

    def set_offsets(
        self,
        group_id: str,
        wanted: Mapping[Partition, int],
        previous: Mapping[Partition, int] | None = None,
        *,
        mark: str,
        topic_ids: Mapping[str, str] | None = None,
    ) -> OffsetsSet:
        """Set a group's offsets while it is empty, with the mark as metadata, and read them again. Raises KafkaError.

        With `previous`, nothing is set if another program has committed since those offsets were read; with
        `topic_ids`, if one of these topics is another one now.
        """
        client = self._client
        found = live_reads.read_wanted_commits(client, group_id, wanted)
        before = _offsets_of(found)
        present = live_reads.read_topic_ids(client, topic_ids) if topic_ids else {}
        remade = any(present.get(topic, known) != known for topic, known in (topic_ids or {}).items())
        if previous is not None and (remade or is_outdated(found, wanted=wanted, previous=previous, mark=mark)):
            return OffsetsSet({}, before, before, outdated=True)
        refusals = live_reads.commit(client, group_id, wanted, mark)
        return OffsetsSet(refusals, before, _offsets_of(live_reads.read_wanted_commits(client, group_id, wanted)))

    def read_waiting(self, group_id: str, topics: Collection[str]) -> dict[str, int | None]:
        """The number of records of each topic that a group has not committed, read live.

        Topics that the asked broker does not know are left out; None where a partition could not be read. Raises
        KafkaError when the group's commits cannot be read.
        """
        client = self._client
        metadata = client.metadata(sorted(topics), timeout_s=CALL_SECONDS)
        committed = _offsets_of(live_reads.read_commits(client, find_coordinator(client, group_id), group_id))
        starts, ends = _log_ends(client, metadata)
        waiting: dict[str, int | None] = {}
        for topic in metadata.topics:
            assert topic.name is not None, "asked by name"
            if topic.error_code:
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    waiting[topic.name] = None
                continue
            begun = {key: due.position(committed.get(key), starts[key], ends[key]) for key in starts.keys() & ends}
            waiting[topic.name] = _records(topic, begun, ends)
        return waiting

    def count_records(self, topic: str) -> int | None:
        """The number of records in a topic; 0 if it does not exist, None if it cannot be read."""
        client = self._client
        metadata = client.metadata([topic], timeout_s=CALL_SECONDS)
        code = metadata.topics[0].error_code
        if code:
            return 0 if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
        starts, ends = _log_ends(client, metadata)
        return _records(metadata.topics[0], starts, ends)

    def _grow(self, topics: Iterable[WantedTopic], changes: TopicChanges) -> None:
        """Add partitions to topics that still have fewer."""
        metadata = self._client.metadata([topic.name for topic in topics], timeout_s=CALL_SECONDS)
        counts = {topic.name: len(topic.partitions) for topic in metadata.topics if not topic.error_code}
        smaller = tuple(
            CreatePartitionsTopic(name=topic.name, count=topic.partitions)
            for topic in topics
            if counts.get(topic.name, topic.partitions) < topic.partitions
        )
        if not smaller:
            return
        request = CreatePartitionsRequest(topics=smaller, timeout_ms=_TIMEOUT_MS)
        for result in self._client.call(None, request, timeout_s=CALL_SECONDS).results:
            changes.note(changes.grown, result.name, result.error_code, result.error_message)

    def _alter(self, settings: Mapping[str, Mapping[str, str]], changes: TopicChanges) -> None:
        for result in self._client.call(None, set_topics(settings), timeout_s=CALL_SECONDS).responses:
            changes.note(changes.mended, result.resource_name, result.error_code, result.error_message)


def change_cluster(client: NetworkClient, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
    """Carry out an action on the Kafka cluster with this id, and at no broker of another one.

    The addresses of a KafkaCluster may have been edited since the action was decided, or name two clusters, and a topic
    of the same name on another cluster is not the one that was meant. Raises AnotherCluster then.
    """
    if cluster_id is None:
        raise AnotherCluster("the Kafka cluster was not known when the action was decided; nothing was done")
    with client.one_cluster(cluster_id):
        client.metadata((), timeout_s=CALL_SECONDS)
        return run(KafkaAdmin(client))


def _offsets_of(commits: Mapping[Partition, Committed]) -> Offsets:
    return {key: each.offset for key, each in commits.items()}


def _log_ends(client: NetworkClient, metadata: MetadataResponse) -> tuple[Offsets, Offsets]:
    led = live_reads.by_leader(client, metadata)
    return live_reads.read_offsets(client, led, EARLIEST), live_reads.read_offsets(client, led, LATEST)


def _records(topic: MetadataResponseTopic, starts: Offsets, ends: Offsets) -> int | None:
    """The number of offsets between starts and ends in all partitions of a topic; None if one is missing."""
    keys = [(topic.name or "", partition.partition_index) for partition in topic.partitions]
    return sum(ends[key] - starts[key] for key in keys) if all(key in starts and key in ends for key in keys) else None


def _refusal(subject: str, code: int, text: str | None) -> Refusal:
    """The broker's message under one of our reasons where there is one."""
    message = text or NO_MESSAGE
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION and "collides" in message:
        return Refusal(subject=subject, reason=TOPIC_NAME_COLLIDES, message=message)
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:
        return Refusal(subject=subject, reason=NOT_ENOUGH_BROKERS, message=message)
    return Refusal(subject=subject, reason=aggregation.reason_of(code), message=message)
