"""Lookups of topics: their partitions, and the current ends of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fleet_consumer.coordinator.flows import Ask, AskAll, Flow, Pause, Where
from fleet_consumer.coordinator.lookups import RETRY_S, try_offsets
from fleet_consumer.group import errors
from fleet_consumer.group.metadata import all_topics_request, topics_request
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.group.topics import PartitionInfo, partition_infos
from fleet_consumer.net import AuthenticationFailed, NetError, TlsFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe, is_retriable
from fleet_consumer.wire.list_offsets import LATEST

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
    ends = yield from try_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {part: start.offset for part, start in ends.found.items() if start.offset >= 0}
