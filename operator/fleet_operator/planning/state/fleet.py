"""The fleet part of a group's state: what was found out about its revisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RevisionState(StrEnum):
    CANDIDATE = "Candidate"
    GOOD = "Good"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionMark:
    """The findings about one revision.

    `since` (epoch seconds) is when it became Good, or when its last failed check ended. `reason` and `message` are
    those of the refusal, or of the last failed check. `request` is the digest of what asked for the revision when it
    was refused: another one asks for a new try. `check` is the uid of the check pod whose answer is on record.
    """

    state: RevisionState = RevisionState.CANDIDATE
    since: float | None = None
    reason: str = ""
    message: str = ""
    request: str = ""
    check: str = ""
    checked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """The revisions of a fleet.

    - `wanted`: hash of the revision that was wanted last.
    - `marks`: what was found out about each known revision, by its hash.
    """

    wanted: str | None = None
    marks: Mapping[str, RevisionMark] = field(default_factory=dict)

    @property
    def was_good(self) -> bool:
        """True if the group's workers ran once: a revision becomes good only when all of them were available."""
        return any(mark.state is RevisionState.GOOD for mark in self.marks.values())
