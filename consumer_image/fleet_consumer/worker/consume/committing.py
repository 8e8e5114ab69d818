"""Commits of finished records, at each interval and before partitions are given back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import Partitions, committable, note_commit
from fleet_consumer.worker.logs import fields, now_text

LOG = logging.getLogger("fleet_consumer.worker")

REFUSED_LONG_S: Final = 30.0
"""A refusal that may pass by itself, such as that of a topic which the coordinator does not know yet, lasts after this
time."""


class CommitsRefused(Exception):
    """The broker refuses commits of some partitions until somebody changes something."""

    reason = "CommitsRefused"


class Committing:
    """The commits of one loop. `mark` is the breaker's, which all of them carry."""

    def __init__(self, parts: LoopParts, partitions: Partitions) -> None:
        self._parts = parts
        self._interval_s = parts.commit_interval_s
        self._partitions = partitions
        self._due_at = parts.clock.monotonic() + self._interval_s
        self._in_flight = False
        self.mark = ""

    def soon(self) -> None:
        self._due_at = self._parts.clock.monotonic()

    def carry(self, mark: str) -> None:
        """Carry this mark from now on; a new one is committed soon."""
        if mark != self.mark:
            self.mark = mark
            self.soon()

    @property
    def due(self) -> bool:
        return not self._in_flight and self._parts.clock.monotonic() >= self._due_at

    def commit(self) -> None:
        """Commit what moved since the last commit; returns at once."""
        self._due_at = self._parts.clock.monotonic() + self._interval_s
        offsets = committable(self._partitions, self.mark)
        if offsets:
            self._in_flight = True
            self._parts.consumer.commit_async(offsets, self._committed)

    def commit_leaving(self, partitions: Partitions, timeout_s: float) -> int:
        """Commit partitions that are about to go, and wait; returns how many had something to commit."""
        offsets = committable(partitions, self.mark)
        if offsets:
            try:
                self._parts.consumer.commit(offsets, timeout_s)
            except ConsumerError as error:
                self.note(offsets, error)
            else:
                self.note(offsets, None)
        return len(offsets)

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        self._in_flight = False
        self.note(offsets, error)

    def note(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        """Count a commit that was answered, and keep what became of it by partition."""
        note_commit(self._partitions, offsets, error, self._parts.clock.wall())
        if error is None:
            self._parts.stats.commits += 1
        else:
            self._parts.stats.commit_failures += 1
            reason = getattr(error, "reason", type(error).__name__)
            LOG.info("commit failed; it is repeated if still ours", extra=fields(reason=reason, error=str(error)))

    @property
    def refused(self) -> CommitsRefused | None:
        """The refusals that last. Any thread."""
        now, found = self._parts.clock.wall(), []
        for topic_partition, partition in sorted(dict(self._partitions).items()):
            refused = partition.refused
            if refused is not None and (refused.refusal.lasting or now >= refused.since + REFUSED_LONG_S):
                found.append((f"partition {topic_partition.name}", refused))
        if not found:
            return None
        name, first = min(found, key=lambda each: each[1].since)
        more = f"; so are those of {len(found) - 1} more partitions" if len(found) > 1 else ""
        return CommitsRefused(f"{name}: commits are refused since {now_text(first.since)}: {first.refusal.words}{more}")
