"""Records of a reset: its entry in the status, which is all that the next operator knows of it. Pure.

The entry is written before the step that it allows. So whatever process comes next finds what was decided, and the
offsets that were there before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fleet_operator.api.v1alpha1.consumergroup import OffsetReset
from fleet_operator.planning import times

PARTITIONS_MAX: Final = 5000
"""Most partitions of one reset: all of them stand in the status, twice."""
USED_IDS_MAX: Final = 100

OffsetsByTopic = Mapping[str, Mapping[int, int]]


class Committed(NamedTuple):
    """A committed offset, with the metadata of its commit."""

    offset: int
    metadata: str = ""


class ResetPhase(StrEnum):
    """Phase of a reset, as in the status."""

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

    `digest` is that of what the spec said under the id, empty where none was recorded. `note` is what was noticed about
    the new offsets, and becomes the message of a reset that succeeds: until then `message` may tell of hindrances.
    """

    id: str
    to: str
    time: str | None = None
    digest: str = ""
    phase: ResetPhase = ResetPhase.PENDING
    reason: str = ""
    message: str = ""
    note: str = ""
    started_at: str = ""
    finished_at: str | None = None
    previous: OffsetsByTopic = field(default_factory=dict)
    offsets: OffsetsByTopic = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """Number of partitions that the reset sets."""
        return sum(len(each) for each in self.offsets.values())

    def document(self) -> dict[str, Any]:
        """The entry for the status."""
        found: dict[str, Any] = {
            "id": self.id,
            "to": self.to,
            "time": self.time,
            "digest": self.digest or None,
            "phase": self.phase.value,
            "reason": self.reason or None,
            "message": self.message or None,
            "note": self.note or None,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
        }
        if self.offsets:
            found |= {
                "partitions": self.partitions,
                "previous": _by_text(self.previous),
                "offsets": _by_text(self.offsets),
            }
        return {key: value for key, value in found.items() if value is not None}


def new_record(wanted: OffsetReset, now: float) -> ResetRecord:
    """The record of a reset that was just seen; `now` in epoch seconds."""
    started_at = times.to_text(now)
    return ResetRecord(id=wanted.id, to=wanted.to, time=wanted.time, digest=digest_of(wanted), started_at=started_at)


def is_of(record: ResetRecord | None, wanted: OffsetReset) -> bool:
    """True if the record is of this reset: of its id, and of what the spec says under it.

    An id that was removed from the spec may come back with other content, which the API server cannot refuse.
    """
    return record is not None and record.id == wanted.id and record.digest in ("", digest_of(wanted))


def digest_of(wanted: OffsetReset) -> str:
    """A digest of everything that decides the new offsets."""
    content = wanted.model_dump(mode="json", include={"to", "time", "topics", "offsets"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


MARK: Final = "fleet-reset="


def mark_of(record: ResetRecord, uid: str) -> str:
    """The metadata of this reset's commits; `uid` tells the resets of one name from each other.

    Another program may commit the very offset that is wanted, so offsets do not tell whose commit one is. Workers know
    no such metadata: a new reading begins, as at a commit without any.
    """
    return f"{MARK}{hashlib.sha256(f'{uid} {record.id} {record.digest}'.encode()).hexdigest()[:16]}"


def is_outdated(
    committed: Mapping[tuple[str, int], Committed], *, wanted: OffsetsByTopic, previous: OffsetsByTopic, mark: str
) -> bool:
    """True if another program has committed since the offsets of before were read, and none of the wanted ones is set.

    One with this reset's mark is set. Then the commit is finished: the offset of before stands nowhere but in the
    record. The mark counts at its offset only, for a tool may move the offset and keep the metadata.
    """
    nothing = Committed(-1)
    present = [
        (committed.get((topic, number), nothing), offset, previous.get(topic, {}).get(number, -1))
        for topic, of in wanted.items()
        for number, offset in of.items()
    ]
    begun = any(now == Committed(new, mark) for now, new, _ in present)
    return not begun and any(now.offset != old for now, _, old in present)


def read_record(document: object) -> ResetRecord | None:
    """A record from the status; None for an absent one, and for one that is not ours."""
    if not isinstance(document, Mapping):
        return None
    try:
        return ResetRecord(
            id=str(document["id"]),
            to=str(document["to"]),
            time=document.get("time"),
            digest=str(document.get("digest") or ""),
            phase=ResetPhase(document["phase"]),
            reason=str(document.get("reason") or ""),
            message=str(document.get("message") or ""),
            note=str(document.get("note") or ""),
            started_at=str(document.get("startedAt") or ""),
            finished_at=document.get("finishedAt"),
            previous=_by_number(document.get("previous")),
            offsets=_by_number(document.get("offsets")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def with_used(used: Iterable[str], id_: str) -> tuple[str, ...]:
    """The used ids with one more, the newest last."""
    return (*(each for each in used if each != id_), id_)[-USED_IDS_MAX:]


def _by_text(offsets: OffsetsByTopic) -> dict[str, dict[str, int]]:
    return {
        topic: {str(number): offset for number, offset in sorted(of.items())} for topic, of in sorted(offsets.items())
    }


def _by_number(offsets: Mapping[str, Mapping[str, int]] | None) -> dict[str, dict[int, int]]:
    return {topic: {int(number): int(offset) for number, offset in of.items()} for topic, of in (offsets or {}).items()}
