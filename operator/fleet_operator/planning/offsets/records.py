"""The stored record of an offset reset. If the operator process dies, the next process continues from it. Pure.

The record is stored before the operator carries out the next step in Kafka. So the next process finds the decision and
the previous offsets in the record.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fleet_operator.api.v1alpha1.offsetreset import OffsetReset
from fleet_operator.planning.state.runs import RunState, digest_of

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]

PARTITIONS_MAX: Final = 5000
"""Maximum number of partitions in one reset. The number is limited because the status lists each partition twice."""


class Committed(NamedTuple):
    offset: int
    metadata: str = ""


class ResetPhase(StrEnum):
    PENDING = "Pending"  # the reset is checked, or waits; the workers keep running
    STOPPING_WORKERS = "StoppingWorkers"  # no main worker is wanted; waiting until the Kafka group is empty
    COMMITTING = "Committing"  # the previous and the new offsets are stored; the new offsets are being committed
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRecord:
    """The stored record of one reset.

    - `previous`: the previous offsets, without partitions that had no commit. `offsets`: the new offsets.
    - `cluster_id`, `topic_ids`: the cluster and the topics of the offsets. They are not shown in the status.
    - `note`: a remark on the new offsets, such as that an offset was out of range.
    - `message`: the obstacle of the reset, if any. Once the reset has succeeded, it is the `note`.
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


def list_offsets(offsets: Offsets) -> list[dict[str, Any]]:
    """List offsets in the form of `spec.offsets`."""
    return [
        {"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in sorted(offsets.items())
    ]


MARKER: Final = "fleet-reset="


def marker_of(reset: OffsetReset) -> str:
    """Metadata of this reset's commits.

    It shows that this reset committed an offset, because another program may commit an equal offset. An OffsetReset
    that is created again with the same name and spec has the same metadata. Workers do not recognize this metadata, so
    they begin a new replay epoch, as after a commit without metadata."""
    identity = f"{reset.metadata.namespace} {reset.metadata.name} {digest_of(reset)}"
    return f"{MARKER}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def is_outdated(committed: Mapping[Partition, Committed], *, wanted: Offsets, previous: Offsets, marker: str) -> bool:
    """True if another program committed after `previous` was read, and this reset has not set any offset yet.

    An offset counts as set if the wanted offset is committed with this reset's `marker`. A marker at another offset
    does not count, because a tool may move the offset and keep the metadata. Once an offset is set, the commit must be
    finished, because only the reset's record still has the previous offsets."""
    if any(committed.get(place) == Committed(offset, marker) for place, offset in wanted.items()):
        return False
    nothing = Committed(-1)
    return any(committed.get(place, nothing).offset != previous.get(place, -1) for place in wanted)


def read_record(state: RunState, reset: OffsetReset) -> ResetRecord | None:
    """Read this reset's record; None if the record is unreadable, or belongs to an object of the same name with another
    spec."""
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
