"""The sections of a ConsumerGroup's state, and the state of a RetryPolicy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from fleet_operator.planning.state.sizing import Count, SizingState, Time

ImageSource = Literal["Spec", "Operator"]
Image = Annotated[str, StringConstraints(max_length=1024)]
"""Image in a spec or in the operator's settings. The string need not be a valid image reference."""


class Phase(StrEnum):
    ROLLING = "Rolling"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The last upgrade of a group. `image`: the new image; None if the upgrade did not change the image. `connection`:
    the digest of the new connection; None if the upgrade did not change the connection."""

    phase: Phase
    image: str | None = None
    connection: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeState:
    """The upgrade section. `image`: the workers' image; None before the first plan. `source`: `Spec` or `Operator`,
    which set the image. `connection`: digest of the connection with which the wanted revision was planned. `last`: None
    before the first upgrade."""

    image: Image | None = None
    source: ImageSource | None = None
    connection: str | None = None
    last: Upgrade | None = None


class RevisionState(StrEnum):
    CANDIDATE = "Candidate"
    GOOD = "Good"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionVerdict:
    """The verdict on one revision.

    - `since`: epoch seconds at which the revision became Good, or at which its last failed check ended.
    - `reason`, `message`: why the revision was refused, or why its last check failed.
    - `request`: the group's `request_digest` at the refusal. If the digest changes, the revision is tried again.
    - `check`: UID of the check pod whose result is recorded. `checked`: True if the revision has passed its check.
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
    """The fleet section. `wanted`: hash of the last wanted revision. `verdicts`: keyed by the hash of the revision."""

    wanted: str | None = None
    verdicts: Mapping[str, RevisionVerdict] = field(default_factory=dict)

    @property
    def was_good(self) -> bool:
        """True if any revision ever became Good. A revision becomes Good when all its workers are available at the same
        time."""
        return any(verdict.state is RevisionState.GOOD for verdict in self.verdicts.values())


@dataclass(frozen=True, slots=True)
class Redriven:
    """Records that Redrives put back from the failed topic with this id. They are all records below the end offsets
    that the Redrives read, one for each partition. `to`: the sum of these end offsets."""

    topic_id: str
    to: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySizing:
    """Numbers of retry workers. Times are epoch seconds.

    - `count`: the last decided number of workers; `changed_at`: the time of its last change.
    - `shrunk_at`: the time at which workers were last removed while records were due.
    - `short`: a number of workers that proved too small at the time `short_at`; 0 without one.
    - `most`: the last `spec.retry.worker.maxReplicas`, which stays in force while retries end.
    """

    count: Count | None = None
    most: Count | None = None
    changed_at: Time | None = None
    shrunk_at: Time | None = None
    short: Count = 0
    short_at: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesState:
    """The retries section; the policies themselves are in the ConfigMap that the workers mount. Times are epoch
    seconds.

    - `published_at`: the time of the last change of the policies that workers read; None for a group that never had
      retries.
    - `superseded`: the time from which records that fail no longer follow a published revision, keyed by the revision's
      hash.
    - `leaving`: delays whose topics are deleted once no record waits in them.
    - `drained`: draining delays whose topics have no waiting record, the longest drained first.
    - `ending_since`: the time at which the spec stopped requesting retries; None while the spec requests them.
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
    """The offsets section: the expiry of an empty Kafka group's commits, and the start of the operator's memory of the
    group. Times are in epoch seconds.

    - `kept_at`: the time at which the operator last joined the empty group, so that its commits are kept until
      `safe_until`. None for a group with members or without commits.
    - `assignor`: the last observed assignor of the group. The operator must name this assignor when it joins the group.
    - `began`: the time at which this memory began; None while another object owns the Kafka group.
    - `inherited`: True if the group already had commits, of unknown origin, when this memory began. None until the
      group has been observed since then.
    """

    kept_at: Time | None = None
    safe_until: Time | None = None
    assignor: str = ""
    began: Time | None = None
    inherited: bool | None = None

    @property
    def is_unjudged(self) -> bool:
        """True until the group has been observed once since this memory began. Runs wait until then."""
        return self.began is not None and self.inherited is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    upgrade: UpgradeState = field(default_factory=UpgradeState)
    fleet: FleetState = field(default_factory=FleetState)
    sizing: SizingState = field(default_factory=SizingState)
    retries: RetriesState = field(default_factory=RetriesState)
    offsets: OffsetsState = field(default_factory=OffsetsState)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """The state of a RetryPolicy. `revision`: hash of its last usable content. The ConfigMap with this content is
    kept."""

    revision: str | None = None
