"""Committed offsets, and offsets by time, of all requested partitions or an error.

The flows have no timeout of their own: temporary failures are retried, others are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from fleet_consumer.coordinator.flows import Flow, Pause
from fleet_consumer.coordinator.lookups import RETRY_S, Attempt, Start, try_committed, try_offsets
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.timing import Backoff
from fleet_consumer.record import TopicPartition

T = TypeVar("T")

RETRY_MAX_S = 5.0
"""The longest wait before a retry."""


def fetch_committed(
    group_id: str, partitions: Iterable[TopicPartition] | None
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """Read the group's committed offsets, with None all of them; None for partitions without one.

    Raises GroupAuthorizationFailed, TopicAuthorizationFailed, OffsetLookupFailed.
    """
    wanted = None if partitions is None else tuple(partitions)
    return (yield from _until_found(wanted, lambda missing: try_committed(group_id, missing)))


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
