"""Changes managed topics, groups and static members in a Kafka cluster. Runs on the observer's thread and blocks.

Every change is safe to repeat. The first request of every action checks the cluster id. The live state is read before
any deletion, because records may have been written after the observation on which the plan is based.

Decision: docs/decisions/0032-shared-contract.md.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import AnotherCluster, BrokerAddress, Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire import admin
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
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicOffsets
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
    """A broker's refusal: the topic or group, a CamelCase reason, and the broker's message."""

    subject: str
    reason: str
    message: str


@dataclass(slots=True)
class TopicChanges:
    """The outcome of a TopicsPlan: the names of changed topics, and the brokers' refusals."""

    made: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def by_sort(self) -> dict[str, list[str]]:
        return {"made": self.made, "grown": self.grown, "corrected": self.corrected, "deleted": self.deleted}

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(name for names in self.by_sort.values() for name in names)

    def with_others(self, others: "TopicChanges") -> "TopicChanges":
        return TopicChanges(
            **{each.name: getattr(self, each.name) + getattr(others, each.name) for each in fields(self)}
        )

    def add_result(self, done: list[str], topic: str, code: int, text: str | None) -> None:
        if code:
            self.refusals.append(_refusal(topic, code, text))
        else:
            done.append(topic)


@dataclass(slots=True)
class FlowRemoval:
    """The outcome of deleting a group's retry flow.

    `waiting` has the topics that were kept, with their numbers of uncommitted records (None if unknown); `failed` is
    the number of records in the failed topic (None if not counted).
    """

    refusals: list[Refusal] = field(default_factory=list)
    waiting: dict[str, int | None] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetsSet:
    """The outcome of setting offsets: the refused partitions with reasons, and the commits before and after the change.
    `outdated`: no offset was set, because the commits or topics have changed since the decision."""

    refusals: Mapping[Partition, str]
    before: Offsets
    after: Offsets
    outdated: bool = False


class KafkaAdmin:
    """Changes the Kafka cluster to which the client is bound; see `change_cluster`. One instance serves one action.
    Every method raises NetError if brokers do not answer in time."""

    def __init__(self, client: NetworkClient) -> None:
        self._client = client

    def change_topics(self, plan: TopicsPlan, *, retry_group: str) -> TopicChanges:
        """Carry out a plan as far as the brokers allow it. A topic is deleted only if the commits of the Kafka group
        `retry_group` show that it is drained."""
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
        """Create topics of one or many groups. An existing topic counts as created; the next poll checks its
        settings."""
        changes = TopicChanges()
        wanted = tuple(
            admin.CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=(),
                configs=tuple(
                    admin.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
                ),
            )
            for topic in topics
        )
        request = admin.CreateTopicsRequest(topics=wanted, timeout_ms=_TIMEOUT_MS)
        for result in self._client.call(None, request, timeout_s=CALL_SECONDS).topics:
            code = 0 if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS else result.error_code
            changes.add_result(changes.made, result.name, code, result.error_message)
        return changes

    def delete_flow(self, group: ConsumerGroup, *, had_retries: bool, partly: bool) -> FlowRemoval:
        """Delete the topics and groups that `spec.deletion` selects, except topics with waiting records.

        While any record waits, nothing is deleted without `partly`, because a retry may publish the record to another
        topic of the flow. With `partly`, the topics without waiting records are deleted. Groups are deleted after their
        topics, because their commits show which topics are drained.
        """
        removal = FlowRemoval()
        known = self._client.metadata(None, timeout_s=CALL_SECONDS).topics
        topics = doomed_topics(group, [topic.name for topic in known if topic.name is not None])
        if group.spec.deletion.retry_topics == "Drain":
            waiting = self.read_waiting(naming.retry_group(group.group_id), topics)
            # `read_waiting` omits topics that its broker does not know yet; these must not count as drained.
            removal.waiting = {topic: waiting.get(topic) for topic in topics if waiting.get(topic) != 0}
            if removal.waiting and not partly:
                return removal
            removal.failed = self.count_records(naming.failed_topic(group.group_id))
        doomed = [topic for topic in topics if topic not in removal.waiting]
        if doomed:
            removal.refusals += self.delete_topics(doomed)
        # While waiting records are kept, commits are kept too, because they show which records were handled.
        groups = doomed_groups(group, had_retries=had_retries) if not removal.waiting else ()
        if groups:
            removal.refusals += self.delete_groups(groups)
        removal.deleted = (*doomed, *groups)
        return removal

    def provision_offsets_topic(self, wanted: OffsetsTopic) -> TopicChanges:
        """Read `__consumer_offsets` live; create the topic or correct its settings if `wanted` requires it."""
        decision = decide_offsets_topic(live_reads.read_offsets_topic(self._client), wanted)
        changes = self.create_topics((decision.create,)) if decision.create is not None else TopicChanges()
        if decision.alter:
            self._alter({batches.OFFSETS_TOPIC: decision.alter}, changes)
        return changes

    def begin_visit(self, visit: GroupVisit) -> VisitOutcome | None:
        """Begin a visit to an empty group. Later steps of the visit need not check the cluster id again. Raises
        KafkaError."""
        return visit.begin(self._client)

    def remove_members(self, group_id: str, instance_ids: Collection[str]) -> Sequence[str]:
        """Remove static members from a group by instance id; return the instance ids of the removed members.

        Instance ids without a current member are ignored. Raises KafkaError if the coordinator cannot be found or
        refuses the request.
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
        """Delete topics with all their records. Topics that do not exist count as deleted."""
        states = tuple(admin.DeleteTopicState(name=name) for name in sorted(names))
        request = admin.DeleteTopicsRequest(topics=states, timeout_ms=_TIMEOUT_MS)
        return [
            _refusal(result.name or "", result.error_code, result.error_message)
            for result in self._client.call(None, request, timeout_s=CALL_SECONDS).responses
            if result.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        ]

    def delete_groups(self, group_ids: Collection[str]) -> list[Refusal]:
        """Delete groups with their commits. Groups that do not exist count as deleted. Coordinators refuse to delete a
        group with members (NonEmptyGroup)."""
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
        """Read a group, its commits in these topics, and the log offsets of these topics. Raises KafkaError."""
        return live_reads.read_group(self._client, group_id, topics, time_ms, read_committed=read_committed)

    def read_topic(self, question: RangeQuestion) -> TopicOffsets:
        """Read a topic's partitions and offsets, for a Backfill. Raises KafkaError."""
        return live_reads.read_topic(self._client, question)

    def read_positions(self, group_id: str) -> tuple[Committed, ...]:
        """Read all commits, with metadata, of a Redrive's own Kafka group; empty before the first commit. Raises
        KafkaError if the coordinator cannot be found."""
        return tuple(live_reads.read_commits(self._client, find_coordinator(self._client, group_id), group_id).values())

    def set_offsets(
        self,
        group_id: str,
        wanted: Mapping[Partition, int],
        previous: Mapping[Partition, int] | None = None,
        *,
        marker: str,
        topic_ids: Mapping[str, str] | None = None,
    ) -> OffsetsSet:
        """Commit offsets for an empty group, and read the commits back. Raises KafkaError.

        If `previous` is given, no offset is set if another program has committed since these offsets were read. If
        `topic_ids` is also given, no offset is set if one of these topics was recreated. `marker`: the metadata of the
        commits, by which a repeated call recognizes the offsets that it has already set.
        """
        client = self._client
        found = live_reads.read_wanted_commits(client, group_id, wanted)
        before = _offsets_of(found)
        present = live_reads.read_topic_ids(client, topic_ids) if topic_ids else {}
        remade = any(present.get(topic, known) != known for topic, known in (topic_ids or {}).items())
        if previous is not None and (remade or is_outdated(found, wanted=wanted, previous=previous, marker=marker)):
            return OffsetsSet({}, before, before, outdated=True)
        refusals = live_reads.commit(client, group_id, wanted, marker)
        return OffsetsSet(refusals, before, _offsets_of(live_reads.read_wanted_commits(client, group_id, wanted)))

    def read_waiting(self, group_id: str, topics: Collection[str]) -> dict[str, int | None]:
        """Read live, for each topic, the number of records after the group's commits; None if a partition's offsets
        cannot be read.

        Topics that the broker does not know are left out. Raises KafkaError if the group's commits cannot be read.
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
        """Count the records of a topic; returns 0 if the topic does not exist, None if it cannot be read."""
        client = self._client
        metadata = client.metadata([topic], timeout_s=CALL_SECONDS)
        code = metadata.topics[0].error_code
        if code:
            return 0 if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
        starts, ends = _log_ends(client, metadata)
        return _records(metadata.topics[0], starts, ends)

    def _grow(self, topics: Iterable[WantedTopic], changes: TopicChanges) -> None:
        metadata = self._client.metadata([topic.name for topic in topics], timeout_s=CALL_SECONDS)
        counts = {topic.name: len(topic.partitions) for topic in metadata.topics if not topic.error_code}
        smaller = tuple(
            admin.CreatePartitionsTopic(name=topic.name, count=topic.partitions)
            for topic in topics
            if counts.get(topic.name, topic.partitions) < topic.partitions
        )
        if not smaller:
            return
        request = admin.CreatePartitionsRequest(topics=smaller, timeout_ms=_TIMEOUT_MS)
        for result in self._client.call(None, request, timeout_s=CALL_SECONDS).results:
            changes.add_result(changes.grown, result.name, result.error_code, result.error_message)

    def _alter(self, settings: Mapping[str, Mapping[str, str]], changes: TopicChanges) -> None:
        for result in self._client.call(None, admin.set_topics(settings), timeout_s=CALL_SECONDS).responses:
            changes.add_result(changes.corrected, result.resource_name, result.error_code, result.error_message)


def change_cluster(client: NetworkClient, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
    """Run an action on the Kafka cluster with this id. Raises AnotherCluster if a broker reports a different id.

    The check is needed because the addresses of a KafkaCluster may have been edited since the decision, or may belong
    to two clusters. A topic with the same name on another cluster must not be changed.
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
    """The number of offsets from start to end in all partitions of a topic; None if a start or an end is missing."""
    keys = [(topic.name or "", partition.partition_index) for partition in topic.partitions]
    return sum(ends[key] - starts[key] for key in keys) if all(key in starts and key in ends for key in keys) else None


def _refusal(subject: str, code: int, text: str | None) -> Refusal:
    message = text or NO_MESSAGE
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION and "collides" in message:
        return Refusal(subject=subject, reason=TOPIC_NAME_COLLIDES, message=message)
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:
        return Refusal(subject=subject, reason=NOT_ENOUGH_BROKERS, message=message)
    return Refusal(subject=subject, reason=aggregation.reason_of(code), message=message)
