"""Lookups of topics: their partitions, and the current ends of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fleet_consumer.coordinator.flows import Ask, AskAll, Flow, Pause, Where
from fleet_consumer.group import errors
from fleet_consumer.group.metadata import all_topics_request, topics_request
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.group.topics import PartitionInfo, partition_infos
from fleet_consumer.net import AuthenticationFailed, NetError, TlsFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe, is_retriable
from fleet_consumer.wire.list_offsets import (
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

RETRY_S: Final = 0.2
UNKNOWN_TIMES: Final = 5
"""Responses in a row without a topic until it counts as missing: a broker that lags does not know a new topic."""


def describe_topics(names: Iterable[str] | None) -> Flow[dict[str, tuple[PartitionInfo, ...]]]:
    """Read the partitions of these topics, with None of all that may be described; missing topics are left out.

    Raises TopicAuthorizationFailed for a named topic, MetadataLookupFailed. Has no timeout of its own.
    """
    request = all_topics_request() if names is None else topics_request(names)
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


def end_offsets(partitions: tuple[TopicPartition, ...], *, read_committed: bool) -> Flow[dict[TopicPartition, int]]:
    """Read the ends of partitions once, under `read_committed` the last stable offsets.

    Partitions without a reachable leader, or whose leader refuses, are left out; the caller asks again.
    """
    (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in partitions)),))
    if isinstance(metadata, NetError):
        return {}
    brokers = {broker.node_id for broker in metadata.brokers}
    wanted = set(partitions)
    asks: dict[int, dict[str, list[int]]] = {}
    for topic in metadata.topics:
        for part in topic.partitions:
            if part.leader_id in brokers and TopicPartition(topic.name or "", part.partition_index) in wanted:
                asks.setdefault(part.leader_id, {}).setdefault(topic.name or "", []).append(part.partition_index)
    if not asks:
        return {}
    answers = yield AskAll(tuple(Ask(node, _ends_request(topics, read_committed)) for node, topics in asks.items()))
    return {part: end for answer in answers if not isinstance(answer, NetError) for part, end in _ends(answer)}


def _ends_request(topics: dict[str, list[int]], read_committed: bool) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=tuple(
            ListOffsetsTopic(
                name=name,
                partitions=tuple(ListOffsetsPartition(partition_index=number, timestamp=LATEST) for number in numbers),
            )
            for name, numbers in topics.items()
        ),
    )


def _ends(answer: Any) -> Iterable[tuple[TopicPartition, int]]:
    for topic in answer.topics:
        for part in topic.partitions:
            if part.error_code == ErrorCode.NONE and part.offset >= 0:
                yield TopicPartition(topic.name, part.partition_index), part.offset
