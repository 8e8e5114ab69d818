"""Commits of the offsets of finished records: at every commit interval and before partitions are revoked."""

import logging
from collections.abc import Mapping
from typing import Final

from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import Partitions, committable, record_commit
from fleet_consumer.worker.logs import fields, now_text

LOG = logging.getLogger("fleet_consumer.worker")

REFUSED_LONG_S: Final = 30.0
"""Seconds after which a possibly temporary refusal is reported. For example, the coordinator may not know a new topic
yet. A permanent refusal is reported immediately."""


class CommitsRefused(Exception):
    """The broker refuses commits of some partitions, for a reason that the worker cannot correct."""

    reason = "CommitsRefused"


class Committing:
    """Commits the offsets of one consume loop. The metadata of every commit contains `breaker_state`."""

    def __init__(self, parts: LoopParts, partitions: Partitions) -> None:
        self._parts = parts
        self._interval_s = parts.commit_interval_s
        self._partitions = partitions
        self._due_at = parts.clock.monotonic() + self._interval_s
        self._in_flight = False
        self.breaker_state = ""

    def soon(self) -> None:
        self._due_at = self._parts.clock.monotonic()

    def carry(self, breaker_state: str) -> None:
        """Set the breaker state for all later commits. A changed state makes the next commit due immediately."""
        if breaker_state != self.breaker_state:
            self.breaker_state = breaker_state
            self.soon()

    @property
    def due(self) -> bool:
        return not self._in_flight and self._parts.clock.monotonic() >= self._due_at

    def commit(self) -> None:
        """Commit the offsets that changed since the last commit, without waiting for the result."""
        self._due_at = self._parts.clock.monotonic() + self._interval_s
        offsets = committable(self._partitions, self.breaker_state)
        if offsets:
            self._in_flight = True
            self._parts.consumer.commit_async(offsets, self._committed)

    def commit_leaving(self, partitions: Partitions, timeout_s: float) -> int:
        """Commit the offsets of revoked partitions, and wait at most `timeout_s` seconds for the result. Returns the
        number of partitions in the commit."""
        offsets = committable(partitions, self.breaker_state)
        if offsets:
            try:
                self._parts.consumer.commit(offsets, timeout_s)
            except ConsumerError as error:
                self.record_result(offsets, error)
            else:
                self.record_result(offsets, None)
        return len(offsets)

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        self._in_flight = False
        self.record_result(offsets, error)

    def record_result(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        record_commit(self._partitions, offsets, error, self._parts.clock.wall())
        if error is None:
            self._parts.stats.commits += 1
        else:
            self._parts.stats.commit_failures += 1
            reason = getattr(error, "reason", type(error).__name__)
            LOG.info(
                "commit failed; it will be repeated while the partitions are owned",
                extra=fields(reason=reason, error=str(error)),
            )

    @property
    def refused(self) -> CommitsRefused | None:
        """The error if commits are refused permanently or for at least `REFUSED_LONG_S`; else None. Any thread."""
        now, found = self._parts.clock.wall(), []
        for topic_partition, partition in sorted(dict(self._partitions).items()):
            refused = partition.refused
            if refused is not None and (refused.refusal.lasting or now >= refused.since + REFUSED_LONG_S):
                found.append((f"partition {topic_partition.name}", refused))
        if not found:
            return None
        name, first = min(found, key=lambda each: each[1].since)
        more = f"; commits of {len(found) - 1} more partitions are refused as well" if len(found) > 1 else ""
        return CommitsRefused(f"{name}: commits refused since {now_text(first.since)}: {first.refusal.words}{more}")
