"""The state of a ConsumerGroup: one part for each concern of its reconcile. `sizing` has the part of that name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from fleet_operator.planning.state.sizing import Count, SizingState, Time

ImageSource = Literal["Spec", "Operator"]
Image = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*$")]
"""A reference to an image, by the characters that it may have."""


class Phase(StrEnum):
    """Phase of an upgrade."""

    ROLLING = "Rolling"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The last upgrade of a group: the image and the digest of the connection that it brought, None for neither."""

    phase: Phase
    image: str | None = None
    connection: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeState:
    """The upgrade part: what the workers took over from outside of the spec, and how far that is.

    - `image`: the workers' image, and by whom it was chosen; None before the first plan.
    - `connection`: digest of the connection that the wanted revision was planned with.
    - `last`: the last upgrade; None before the first.
    """

    image: Image | None = None
    source: ImageSource | None = None
    connection: str | None = None
    last: Upgrade | None = None


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
    """The fleet part: what was found out about its revisions.

    - `wanted`: hash of the revision that was wanted last.
    - `marks`: what was found out about each known revision, by its hash.
    """

    wanted: str | None = None
    marks: Mapping[str, RevisionMark] = field(default_factory=dict)

    @property
    def was_good(self) -> bool:
        """True if the group's workers ran once: a revision becomes good only when all of them were available."""
        return any(mark.state is RevisionState.GOOD for mark in self.marks.values())


@dataclass(frozen=True, slots=True)
class Redriven:
    """A sum of end offsets of the failed topic with this id: later records are failures that were not put back."""

    topic_id: str
    to: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySizing:
    """The number of retry workers, and the one that was too small lately.

    - `count`: the number of retry workers that was decided last, and `changed_at` when it changed.
    - `shrunk_at`: when workers were last removed while records were due; `short` workers were too few at `short_at`.
    - `most`: the last `spec.retry.worker.maxReplicas`, which holds while retries end, too.
    """

    count: Count | None = None
    most: Count | None = None
    changed_at: Time | None = None
    shrunk_at: Time | None = None
    short: Count = 0
    short_at: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesState:
    """The retries part: past and future of the published policies, and of the number of retry workers. The policies
    themselves stand in the ConfigMap that the workers mount. Times are epoch seconds.

    - `published_at`: last change of the policies that workers read; None for a group that never had retries.
    - `superseded`: when another revision replaced a published one for new failures, by hash.
    - `leaving`: delays whose topics are deleted when nothing waits in them; `drained`: draining delays in which nothing
      waits, longest first.
    - `ending_since`: when the spec stopped wanting retries.
    - `redriven`: what finished Redrives have found.
    """

    published_at: Time | None = None
    superseded: Mapping[str, Time] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    ending_since: Time | None = None
    redriven: Redriven | None = None
    sizing: RetrySizing = field(default_factory=RetrySizing)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsState:
    """The offsets part: until when the commits of the empty group are kept, and from when on it is known what was done
    to them. Times are epoch seconds.

    - `kept_at`: the last visit of the empty group, by which its commits are safe until `safe_until`; None for a group
      that has members, or none to keep.
    - `assignor`: the assignor that the group was last seen with: a visitor has to name it.
    - `began`: when this memory began; None while another object owns the Kafka group. `inherited`: the group had
      commits then, of which nothing is remembered; None until it was observed after that.
    """

    kept_at: Time | None = None
    safe_until: Time | None = None
    assignor: str = ""
    began: Time | None = None
    inherited: bool | None = None

    @property
    def is_unjudged(self) -> bool:
        """True if runs wait for an observation of the group that is as old as this memory."""
        return self.began is not None and self.inherited is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The operator's memory of a ConsumerGroup."""

    upgrade: UpgradeState = field(default_factory=UpgradeState)
    fleet: FleetState = field(default_factory=FleetState)
    sizing: SizingState = field(default_factory=SizingState)
    retries: RetriesState = field(default_factory=RetriesState)
    offsets: OffsetsState = field(default_factory=OffsetsState)
