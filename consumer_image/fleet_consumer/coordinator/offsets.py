"""Where partitions start: committed offsets from the coordinator, first and last offsets from the leaders.

Flows without an end of their own: whatever may heal is tried again, whatever cannot is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fleet_consumer.coordinator.flows import Ask, AskAll, DoubtCoordinator, Flow, Pause, Where
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.metadata import topics_request
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.net import AuthenticationFailed, NetError, TlsFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe, is_retriable
from fleet_consumer.wire.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fleet_consumer.wire.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

RETRY_S = 0.2
"""Wait before the same question is asked again; answers that help usually come after an election or a load."""
READ_COMMITTED = 1


class Start(NamedTuple):
    """Where to begin reading: offset, the leader epoch it was committed with, and the record's time where that was
    what was asked for (-1: unknown)."""

    offset: int
    leader_epoch: int = -1
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class Starts:
    """What a lookup of starting positions came to; `without` are those for which the policy `none` decides."""

    found: Mapping[TopicPartition, Start]
    without: tuple[TopicPartition, ...] = ()


def fetch_committed(
    group_id: str, partitions: Iterable[TopicPartition] | None
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """The group's committed offsets, with None all of them. Asks for stable ones: an open transaction may still
    change them (KIP-447).

    Raises GroupAuthorizationFailed, TopicAuthorizationFailed, OffsetLookupFailed.
    """
    wanted = {} if partitions is None else _by_topic(partitions)
    topics = tuple(
        OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(numbers)) for topic, numbers in wanted.items()
    )
    request = OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=group_id, topics=None if partitions is None else topics),),
        require_stable=True,
    )
    while True:
        (answer,) = yield AskAll((Ask(Where.COORDINATOR, request),))
        if isinstance(answer, NetError):
            yield DoubtCoordinator()
            yield Pause(_patience(answer))
            continue
        committed, code = _read_committed(answer)
        if code == ErrorCode.NONE:
            return committed
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            yield DoubtCoordinator()
        elif code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            raise errors.GroupAuthorizationFailed(f"group {group_id!r}: allow the principal Read on the group")
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise errors.TopicAuthorizationFailed(f"topics {', '.join(wanted)}: allow the principal Describe on them")
        elif not is_retriable(code) or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise errors.OffsetLookupFailed(f"group {group_id!r}: committed offsets: {describe(code)}")
        yield Pause(RETRY_S)


def _read_committed(response: OffsetFetchResponse) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], int]:
    """The offsets, and the first error of group or partition."""
    committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
    code = int(ErrorCode.NONE)
    for group in response.groups:
        code = code or group.error_code
        for topic in group.topics:
            for part in topic.partitions:
                code = code or part.error_code
                entry = OffsetAndMetadata(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
                key = TopicPartition(topic.name, part.partition_index)
                committed[key] = entry if part.committed_offset >= 0 else None
    return committed, code


def list_offsets(times: Mapping[TopicPartition, int], *, read_committed: bool) -> Flow[dict[TopicPartition, Start]]:
    """The offset at each partition's time (`EARLIEST`, `LATEST` or milliseconds), from its leader.

    For a time in milliseconds it is the first record that is not older, or -1 where there is none.
    Raises TopicAuthorizationFailed, OffsetLookupFailed.
    """
    found: dict[TopicPartition, Start] = {}
    while len(found) < len(times):
        open_parts = [part for part in times if part not in found]
        (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in open_parts)),))
        if isinstance(metadata, NetError):
            yield Pause(_patience(metadata))
            continue
        leaders = _leaders(metadata)
        asks: dict[int, list[TopicPartition]] = {}
        for part in open_parts:
            if leaders.get(part, -1) >= 0:
                asks.setdefault(leaders[part], []).append(part)
        answers = yield AskAll(
            tuple(Ask(node, _list_offsets_request(parts, times, read_committed)) for node, parts in asks.items())
        )
        for answer in answers:
            if not isinstance(answer, NetError):
                found |= _read_offsets(answer)
        if len(found) < len(times):
            yield Pause(RETRY_S)
    return found


def _leaders(metadata: Any) -> dict[TopicPartition, int]:
    leaders = {}
    for topic in metadata.topics:
        if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise errors.TopicAuthorizationFailed(f"topic {topic.name}: allow the principal Describe on it")
        for part in topic.partitions:
            leaders[TopicPartition(topic.name or "", part.partition_index)] = part.leader_id
    return leaders


def _list_offsets_request(
    partitions: Iterable[TopicPartition], times: Mapping[TopicPartition, int], read_committed: bool
) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED if read_committed else 0,
        topics=tuple(
            ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    ListOffsetsPartition(partition_index=number, timestamp=times[TopicPartition(topic, number)])
                    for number in numbers
                ),
            )
            for topic, numbers in _by_topic(partitions).items()
        ),
    )


def _read_offsets(response: Any) -> dict[TopicPartition, Start]:
    found = {}
    for topic in response.topics:
        for part in topic.partitions:
            key = TopicPartition(topic.name, part.partition_index)
            if part.error_code == ErrorCode.NONE:
                found[key] = Start(part.offset, part.leader_epoch, part.timestamp)
            elif not is_retriable(part.error_code):
                raise errors.OffsetLookupFailed(
                    f"partition {topic.name}-{part.partition_index}: "
                    f"ListOffsets was answered {describe(part.error_code)}"
                )
    return found


def find_starts(
    group_id: str,
    partitions: tuple[TopicPartition, ...],
    *,
    appeared: frozenset[TopicPartition],
    policy: ResetPolicy,
    read_committed: bool,
    use_committed: bool = True,
    delay_s: float = 0.0,
    now_ms: int = 0,
) -> Flow[Starts]:
    """Where to begin: at the committed offset, else by the policy; partitions that `appeared` later at the beginning.

    `use_committed` False is for positions that turned out to be out of range. `delay_s` keeps a lookup that failed
    before from being repeated hotly.
    `now_ms` is the time of day, for a policy by duration; a partition that has nothing so young begins at its end.
    """
    if delay_s:
        yield Pause(delay_s)
    committed = (yield from fetch_committed(group_id, partitions)) if use_committed else {}
    found = {part: Start(entry.offset, entry.leader_epoch) for part, entry in committed.items() if entry is not None}
    times: dict[TopicPartition, int] = {}
    without: list[TopicPartition] = []
    for part in partitions:
        if part in found:
            continue
        if part in appeared or policy == ResetPolicy.EARLIEST:
            times[part] = EARLIEST
        elif policy == ResetPolicy.LATEST:
            times[part] = LATEST
        elif policy.duration_ms is not None:
            times[part] = max(0, now_ms - policy.duration_ms)
        else:
            without.append(part)
    if times:
        listed = yield from list_offsets(times, read_committed=read_committed)
        ends = dict.fromkeys((part for part, start in listed.items() if start.offset < 0), LATEST)
        if ends:
            listed |= yield from list_offsets(ends, read_committed=read_committed)
        found |= listed
    return Starts(found, tuple(without))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def _patience(error: NetError) -> float:
    return SLOW_RETRY_S if isinstance(error, (AuthenticationFailed, TlsFailed)) else RETRY_S
