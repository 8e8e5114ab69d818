"""Single attempts to look up committed offsets, offsets by time, ends of leader epochs, and recreated topics.

An attempt does not wait for partitions without an answer: it returns reasons for these partitions, and results for all
others. Callers decide about retries.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from fleet_consumer.coordinator.flows import Ask, AskAll, Flow, Pause, SuspectCoordinator, Where
from fleet_consumer.group import errors
from fleet_consumer.group.classification import Api, Verdict, error_for, rule_for
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.metadata import by_topic, topics_request
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.net import AuthenticationFailed, NetError, TlsFailed, UnsupportedByBroker
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.wire.topics import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataResponse,
    MetadataResponsePartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

T = TypeVar("T")

RETRY_S = 0.2
"""Minimum seconds before a retry. Most failed lookups succeed as soon as a leader is elected."""
RETRY_MAX_S = 5.0
READ_COMMITTED = 1
CONSUMER = -1


class Start(NamedTuple):
    """A starting position. `leader_epoch` is -1 if unknown. `timestamp` is that of the record at this offset
    (milliseconds); lookups that are not by time leave it at -1."""

    offset: int
    leader_epoch: int = -1
    timestamp: int = -1


class EpochEnd(NamedTuple):
    """The largest `leader_epoch` in the leader's log that is not above the requested epoch, and the epoch's end
    `offset`. Both are -1 if the leader does not know the requested epoch. `current` is the epoch of the leader that
    answered."""

    leader_epoch: int
    offset: int
    current: int


@dataclass(slots=True)
class Attempt(Generic[T]):
    """The outcome of one attempt. Every partition is in exactly one of `found`, `waiting` and `refused`.

    - `waiting`: the reasons why partitions have no result yet; a retry after `patience_s` seconds may help.
    - `refused`: the errors of partitions for which a person must act, because a retry would not help.
    - `unsupported`: the refused partitions whose broker is too old for the request.
    - `failure`: the reason why the whole attempt failed, or empty.
    """

    found: dict[TopicPartition, T] = field(default_factory=dict)
    waiting: dict[TopicPartition, str] = field(default_factory=dict)
    refused: dict[TopicPartition, errors.ConsumerError] = field(default_factory=dict)
    unsupported: set[TopicPartition] = field(default_factory=set)
    failure: str = ""
    patience_s: float = RETRY_S

    def unanswered(self, partitions: Iterable[TopicPartition], cause: NetError) -> None:
        parts = tuple(partitions)
        if isinstance(cause, UnsupportedByBroker):
            self.refused.update((part, errors.OffsetLookupFailed(f"partition {part.name}: {cause}")) for part in parts)
            self.unsupported.update(parts)
            return
        self.waiting.update(dict.fromkeys(parts, str(cause)))
        if isinstance(cause, (AuthenticationFailed, TlsFailed)):
            self.patience_s = SLOW_RETRY_S

    def judge(self, api: Api, part: TopicPartition, code: int, result: T) -> None:
        rule = rule_for(api, code)
        if rule.verdict is Verdict.OK:
            self.found[part] = result
        elif rule.verdict in (Verdict.REFUSED, Verdict.FATAL):
            kind = rule.error or errors.OffsetLookupFailed
            self.refused[part] = kind(f"partition {part.name}: {api.value} returned {describe(code)}; {rule.advice}")
        else:
            self.waiting[part] = f"{api.value} returned {describe(code)}"

    def record_unanswered(self, partitions: Iterable[TopicPartition]) -> None:
        for part in partitions:
            if not (part in self.found or part in self.waiting or part in self.refused):
                self.waiting[part] = "it is missing from the response"


def try_committed(
    group_id: str, partitions: tuple[TopicPartition, ...] | None
) -> Flow[Attempt[OffsetAndMetadata | None]]:
    """Read the group's committed offsets of `partitions` (None: all). The result is None for a partition without a
    committed offset. Only stable offsets are read, because open transactions may still change other offsets (KIP-447).
    Raises GroupAuthorizationFailed."""
    wanted = partitions or ()
    attempt: Attempt[OffsetAndMetadata | None] = Attempt()
    (answer,) = yield AskAll((Ask(Where.COORDINATOR, _committed_request(group_id, partitions)),))
    if isinstance(answer, NetError):
        attempt.failure = str(answer)
        attempt.unanswered(wanted, answer)
        yield SuspectCoordinator()
        return attempt
    if _read_committed(group_id, answer, attempt):
        yield SuspectCoordinator()
    attempt.failure = attempt.failure or ("" if answer.groups else "the group is missing from the response")
    if attempt.failure:
        attempt.waiting.update(dict.fromkeys(wanted, attempt.failure))
    attempt.record_unanswered(wanted)
    return attempt


def _committed_request(group_id: str, partitions: tuple[TopicPartition, ...] | None) -> OffsetFetchRequest:
    topics = None
    if partitions is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(partitions).items()
        )
    return OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group_id, topics=topics),), require_stable=True)


def _read_committed(group_id: str, response: OffsetFetchResponse, attempt: Attempt[OffsetAndMetadata | None]) -> bool:
    """Store the offsets of a response in `attempt`. Returns True if the broker is not the coordinator."""
    lost = False
    for group in response.groups:
        rule = rule_for(Api.OFFSET_FETCH, group.error_code)
        lost |= rule.verdict is Verdict.COORDINATOR_LOST
        if rule.verdict in (Verdict.FATAL, Verdict.REFUSED):
            raise error_for(Api.OFFSET_FETCH, group.error_code, group_id)
        if rule.verdict is not Verdict.OK:
            attempt.failure = f"OffsetFetch returned {describe(group.error_code)}"
            continue
        for topic in group.topics:
            for each in topic.partitions:
                part = TopicPartition(topic.name, each.partition_index)
                entry = OffsetAndMetadata(each.committed_offset, each.committed_leader_epoch, each.metadata or "")
                attempt.judge(Api.OFFSET_FETCH, part, each.error_code, entry if entry.offset >= 0 else None)
                lost |= rule_for(Api.OFFSET_FETCH, each.error_code).verdict is Verdict.COORDINATOR_LOST
    return lost


def try_offsets(times: Mapping[TopicPartition, int], *, read_committed: bool) -> Flow[Attempt[Start]]:
    """Request the offset at each partition's time (`EARLIEST`, `LATEST` or milliseconds) from the leader. For
    milliseconds, the result is the first record with this or a later timestamp, or -1 without such a record."""

    def request(epochs: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for part, epoch in epochs.items():
            asked = ListOffsetsPartition(
                partition_index=part.partition, current_leader_epoch=epoch, timestamp=times[part]
            )
            topics.setdefault(part.topic, []).append(asked)
        return ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=READ_COMMITTED if read_committed else 0,
            topics=tuple(ListOffsetsTopic(name=topic, partitions=tuple(parts)) for topic, parts in topics.items()),
        )

    def read(response: Any, attempt: Attempt[Start]) -> None:
        for topic in response.topics:
            for each in topic.partitions:
                part = TopicPartition(topic.name, each.partition_index)
                start = Start(each.offset, each.leader_epoch, each.timestamp)
                attempt.judge(Api.LIST_OFFSETS, part, each.error_code, start)

    return (yield from ask_leaders(tuple(times), request, read))


def try_epoch_ends(epochs: Mapping[TopicPartition, int]) -> Flow[Attempt[EpochEnd]]:
    """Request the end of each partition's epoch in `epochs` from the partition's leader (KIP-320)."""
    leaders: dict[TopicPartition, int] = {}

    def request(current: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
        leaders.update(current)
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for part, leader_epoch in current.items():
            asked = OffsetForLeaderPartition(
                partition=part.partition, current_leader_epoch=leader_epoch, leader_epoch=epochs[part]
            )
            topics.setdefault(part.topic, []).append(asked)
        return OffsetForLeaderEpochRequest(
            replica_id=CONSUMER,
            topics=tuple(OffsetForLeaderTopic(topic=topic, partitions=tuple(parts)) for topic, parts in topics.items()),
        )

    def read(response: Any, attempt: Attempt[EpochEnd]) -> None:
        for topic in response.topics:
            for each in topic.partitions:
                part = TopicPartition(topic.topic, each.partition)
                end = EpochEnd(each.leader_epoch, each.end_offset, leaders.get(part, -1))
                attempt.judge(Api.OFFSET_FOR_LEADER_EPOCH, part, each.error_code, end)

    return (yield from ask_leaders(tuple(epochs), request, read))


def ask_leaders(
    partitions: tuple[TopicPartition, ...],
    request: Callable[[Mapping[TopicPartition, int]], Request[Any]],
    read: Callable[[Any, Attempt[T]], None],
) -> Flow[Attempt[T]]:
    """Find the partitions' leaders, and send each leader one request for all its partitions.

    `request` gets the current leader epochs and must include them in the request. Then a former leader, or a leader
    that does not know of its election yet, returns an error.
    """
    attempt: Attempt[T] = Attempt()
    (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in partitions)),))
    if isinstance(metadata, NetError):
        attempt.failure = str(metadata)
        attempt.unanswered(partitions, metadata)
        return attempt
    asks: dict[int, dict[TopicPartition, int]] = {}
    for part, (leader, epoch) in _leaders(metadata, partitions, attempt).items():
        asks.setdefault(leader, {})[part] = epoch
    if asks:
        answers = yield AskAll(tuple(Ask(node, request(epochs)) for node, epochs in asks.items()))
        for epochs, answer in zip(asks.values(), answers, strict=True):
            if isinstance(answer, NetError):
                attempt.unanswered(epochs, answer)
            else:
                read(answer, attempt)
    attempt.record_unanswered(partitions)
    return attempt


def _leaders(
    metadata: MetadataResponse, partitions: Iterable[TopicPartition], attempt: Attempt[T]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return leader and epoch of each partition that has a leader. Stores the other partitions in `attempt`, with
    reasons."""
    brokers = {broker.node_id for broker in metadata.brokers}
    codes = {topic.name: topic.error_code for topic in metadata.topics}
    known = {(topic.name, each.partition_index): each for topic in metadata.topics for each in topic.partitions}
    leaders = {}
    for part in partitions:
        code, found = codes.get(part.topic, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), known.get(part)
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            seen = f"topic {part.topic}: not authorized"
            attempt.refused[part] = errors.TopicAuthorizationFailed(
                f"{seen}; allow the principal Describe on the topic"
            )
        elif found is None:
            attempt.waiting[part] = f"Metadata returned {describe(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}"
        elif found.leader_id < 0:
            attempt.waiting[part] = f"it has no leader: {describe(found.error_code or ErrorCode.LEADER_NOT_AVAILABLE)}"
        elif found.leader_id not in brokers:
            attempt.waiting[part] = f"its leader, broker {found.leader_id}, is not among the cluster's brokers"
        else:
            leaders[part] = (found.leader_id, found.leader_epoch)
    return leaders


@dataclass(frozen=True, slots=True)
class LogsSeen:
    """Topic ids and leader epochs according to Metadata, and the partitions whose topic was recreated (`remade`)."""

    ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    remade: frozenset[TopicPartition] = frozenset()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


def see_ids(partitions: Iterable[TopicPartition]) -> Flow[dict[TopicPartition, UUID]]:
    """Read the topic ids of partitions from one broker; ids unknown to the broker are left out."""
    parts = tuple(partitions)
    (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in parts)),))
    return {} if isinstance(metadata, NetError) else _ids(metadata, parts)


def see_logs(known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Flow[LogsSeen]:
    """Read topic ids and leader epochs after `delay_s` seconds. `known` has, for each partition, the id of the topic
    being read (None: unknown).

    A recreated topic has a new id and starts at offset 0, so offsets of the former topic are invalid. A topic counts as
    recreated only when every broker reports the new id. A lagging broker may still report the former topic or an old
    epoch. Until then, the topic's partitions are left out of `ids` and `epochs`.
    """
    yield Pause(delay_s)
    (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in known)),))
    if isinstance(metadata, NetError):
        return LogsSeen()
    ids = _ids(metadata, known)
    others = frozenset(part for part, id_ in ids.items() if known[part] not in (None, id_))
    remade = others
    if others:
        views = [_ids(view, others) for view in (yield from _ask_everybody(others, Attempt()))]
        remade = frozenset(part for part in others if views and all(view.get(part) == ids[part] for view in views))
    unconfirmed = others - remade
    epochs = {part: each.leader_epoch for part, each in _partitions(metadata).items() if part in known}
    return LogsSeen(
        {part: id_ for part, id_ in ids.items() if part not in unconfirmed},
        remade,
        {part: epoch for part, epoch in epochs.items() if part not in unconfirmed},
    )


def try_remade(epochs: Mapping[TopicPartition, int]) -> Flow[Attempt[None]]:
    """Find partitions whose topic was recreated. `epochs` has, for each partition, an epoch that the leader does not
    know. If every broker reports a lower epoch, the topic was recreated, because a topic's leader epochs never
    decrease."""
    attempt: Attempt[None] = Attempt()
    views = yield from _ask_everybody(tuple(epochs), attempt)
    if views:
        known = [_partitions(view) for view in views]
        for part, epoch in epochs.items():
            seen = [partitions[part].leader_epoch for partitions in known if part in partitions]
            if len(seen) == len(known) and max(seen) < epoch:
                attempt.found[part] = None
            else:
                attempt.waiting[part] = f"its leader does not know epoch {epoch}, from which records were read"
    attempt.record_unanswered(epochs)
    return attempt


def _ask_everybody(partitions: Iterable[TopicPartition], attempt: Attempt[None]) -> Flow[list[MetadataResponse]]:
    """Request Metadata from every broker. Returns an empty list if any broker does not answer."""
    request = topics_request(part.topic for part in partitions)
    (metadata,) = yield AskAll((Ask(Where.ANY, request),))
    views = [metadata]
    if not isinstance(metadata, NetError):
        views = yield AskAll(tuple(Ask(broker.node_id, request) for broker in metadata.brokers))
    for view in views:
        if isinstance(view, NetError):
            attempt.unanswered(partitions, view)
            return []
    return views


def _partitions(view: MetadataResponse) -> dict[TopicPartition, MetadataResponsePartition]:
    return {
        TopicPartition(topic.name or "", part.partition_index): part
        for topic in view.topics
        for part in topic.partitions
    }


def _ids(view: MetadataResponse, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
    topics = {topic.name: topic.topic_id for topic in view.topics if topic.topic_id != ZERO_UUID}
    return {part: topics[part.topic] for part in partitions if part.topic in topics}
