"""The record of a reset, which is all that the next operator knows of it. Pure.

It is remembered before the step that it allows. So whatever process comes next finds what was decided, and the offsets
that were there before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fleet_operator.api.v1alpha1.offsetreset import OffsetReset
from fleet_operator.planning import times
from fleet_operator.planning.state.runs import RunState, digest_of

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]

PARTITIONS_MAX: Final = 5000
"""Most partitions of one reset: all of them stand in the status, twice."""


class Committed(NamedTuple):
    """A committed offset, with the metadata of its commit."""

    offset: int
    metadata: str = ""


class ResetPhase(StrEnum):
    PENDING = "Pending"  # checked, or waiting; nothing is stopped
    STANDING_DOWN = "StandingDown"  # no main worker is wanted; waiting until the Kafka group is empty
    COMMITTING = "Committing"  # the offsets before and the new ones are on record
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


DOWN: Final = frozenset({ResetPhase.STANDING_DOWN, ResetPhase.COMMITTING})
ENDED: Final = frozenset({ResetPhase.SUCCEEDED, ResetPhase.FAILED, ResetPhase.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRecord:
    """One reset as recorded. `previous` lacks partitions without a commit; times are texts.

    `cluster_id` and `topic_ids` tell whose offsets they are, as Kafka's brokers do; they are remembered, and not shown.
    `note` is what was noticed about the new offsets, and becomes the message of a reset that succeeds: until then
    `message` may tell of hindrances.
    """

    phase: ResetPhase = ResetPhase.PENDING
    reason: str = ""
    message: str = ""
    note: str = ""
    started_at: str = ""
    finished_at: str | None = None
    previous: Offsets = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    cluster_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """The fields of the status."""
        found: dict[str, Any] = {
            "phase": self.phase.value,
            "partitions": len(self.offsets),
            "previous": list_offsets(self.previous),
            "resolved": list_offsets(self.offsets),
            "note": self.note,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
        }
        return {name: value for name, value in found.items() if value}


def new_record(now: float) -> ResetRecord:
    """The record of a reset that was just seen; `now` in epoch seconds."""
    return ResetRecord(started_at=times.to_text(now))


def list_offsets(offsets: Offsets) -> list[dict[str, Any]]:
    """Offsets in the shape of `spec.offsets`."""
    return [
        {"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in sorted(offsets.items())
    ]


MARK: Final = "fleet-reset="


def mark_of(reset: OffsetReset) -> str:
    """The metadata of this reset's commits: the same for an object that is made again.

    Another program may commit the very offset that is wanted, so offsets do not tell whose commit one is. Workers know
    no such metadata: a new reading begins, as at a commit without any.
    """
    identity = f"{reset.metadata.namespace} {reset.metadata.name} {digest_of(reset)}"
    return f"{MARK}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def is_outdated(committed: Mapping[Partition, Committed], *, wanted: Offsets, previous: Offsets, mark: str) -> bool:
    """True if another program has committed since the offsets of before were read, and none of the wanted ones is set.

    One with this reset's mark is set. Then the commit is finished: the offset of before stands nowhere but in the
    record. The mark counts at its offset only, for a tool may move the offset and keep the metadata.
    """
    if any(committed.get(place) == Committed(offset, mark) for place, offset in wanted.items()):
        return False
    nothing = Committed(-1)
    return any(committed.get(place, nothing).offset != previous.get(place, -1) for place in wanted)


def read_record(state: RunState, reset: OffsetReset) -> ResetRecord | None:
    """The record of this reset in its state; None without one, and for that of a namesake that did something else."""
    facts = state.facts
    if state.digest != digest_of(reset):
        return None
    try:
        return ResetRecord(
            phase=ResetPhase(facts["phase"]),
            reason=str(facts.get("reason") or ""),
            message=str(facts.get("message") or ""),
            note=str(facts.get("note") or ""),
            started_at=str(facts.get("startedAt") or ""),
            finished_at=facts.get("finishedAt"),
            previous=_read_offsets(facts.get("previous")),
            offsets=_read_offsets(facts.get("resolved")),
            cluster_id=str(facts.get("clusterId") or ""),
            topic_ids=dict(facts.get("topicIds") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read_offsets(listed: Any) -> dict[Partition, int]:
    return {(str(each["topic"]), int(each["partition"])): int(each["offset"]) for each in listed or ()}
