"""Lookups for calls of the user: committed offsets, offsets by time, ends of partitions, topics.

The flows have no timeout of their own: temporary failures are retried, others are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from fleet_consumer.coordinator.flows import Ask, AskAll, Flow, Pause, Where
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, RETRY_S, Attempt, Start, try_committed, try_offsets
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.metadata import topics_request
from fleet_consumer.group.timing import SLOW_RETRY_S, Backoff
from fleet_consumer.group.topics import PartitionInfo, partition_infos
from fleet_consumer.net import AuthenticationFailed, NetError, TlsFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe, is_retriable
from fleet_consumer.wire.topics import LATEST

T = TypeVar("T")

UNKNOWN_TIMES = 5
"""Responses in a row without a topic until it counts as missing: a broker that lags does not know a new topic."""


def fetch_committed(
    group_id: str, partitions: tuple[TopicPartition, ...] | None
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """Read the group's committed offsets, with None all of them; None for partitions without one.

    Raises GroupAuthorizationFailed, TopicAuthorizationFailed, OffsetLookupFailed.
    """
    return (yield from _until_found(partitions, lambda missing: try_committed(group_id, missing)))


def list_offsets(times: Mapping[TopicPartition, int], *, read_committed: bool) -> Flow[dict[TopicPartition, Start]]:
    """Read the offset at each partition's time (`lookups.try_offsets`). Raises TopicAuthorizationFailed,
    OffsetLookupFailed."""

    def attempt(missing: tuple[TopicPartition, ...] | None) -> Flow[Attempt[Start]]:
        return try_offsets({part: times[part] for part in missing or ()}, read_committed=read_committed)

    return (yield from _until_found(tuple(times), attempt))


def _until_found(
    partitions: tuple[TopicPartition, ...] | None,
    attempt: Callable[[tuple[TopicPartition, ...] | None], Flow[Attempt[T]]],
) -> Flow[dict[TopicPartition, T]]:
    """Try until nothing is missing, without asking again for what was found. None stands for all partitions."""
    found: dict[TopicPartition, T] = {}
    backoff = Backoff(RETRY_S, RETRY_MAX_S, lambda: 1.0)
    missing = partitions
    while missing is None or missing:
        outcome = yield from attempt(missing)
        for refused in outcome.refused.values():
            raise refused
        found |= outcome.found
        if not outcome.waiting and not outcome.failure:
            break
        if partitions is not None:
            missing = tuple(part for part in partitions if part not in found)
        yield Pause(max(outcome.patience_s, backoff.next()))
    return found


def end_offsets(partitions: tuple[TopicPartition, ...], *, read_committed: bool) -> Flow[dict[TopicPartition, int]]:
    """Read the ends of partitions once, under `read_committed` the last stable offsets.

    Partitions without a reachable leader, or whose leader refuses, are left out; the caller asks again.
    """
    ends = yield from try_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {part: start.offset for part, start in ends.found.items() if start.offset >= 0}


def describe_topics(names: Iterable[str] | None) -> Flow[dict[str, tuple[PartitionInfo, ...]]]:
    """Read the partitions of these topics, with None of all that may be described; missing topics are left out.

    Raises TopicAuthorizationFailed for a named topic, MetadataLookupFailed.
    """
    request = topics_request(names)
    unknown = 0
    while True:
        (answer,) = yield AskAll((Ask(Where.ANY, request),))
        if isinstance(answer, NetError):
            yield Pause(SLOW_RETRY_S if isinstance(answer, (AuthenticationFailed, TlsFailed)) else RETRY_S)
            continue
        if names is None:
            return partition_infos(answer)
        failures = {topic.name or "": topic.error_code for topic in answer.topics if not topic.partitions}
        failures = {name: code for name, code in failures.items() if code != ErrorCode.NONE}
        _raise_final(failures)
        unknown += 1
        missing = all(code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for code in failures.values())
        if not failures or (missing and unknown >= UNKNOWN_TIMES):
            return partition_infos(answer)
        yield Pause(RETRY_S)


def _raise_final(failures: dict[str, int]) -> None:
    denied = sorted(name for name, code in failures.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if denied:
        seen = f"topic {', '.join(denied)}: not authorized"
        raise errors.TopicAuthorizationFailed(f"{seen}; allow the principal Describe on it")
    for name, code in failures.items():
        if not is_retriable(code):
            seen = f"topic {name!r}: Metadata was answered {describe(code)}"
            raise errors.MetadataLookupFailed(f"{seen}; see the broker's log")
