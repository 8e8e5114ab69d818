"""Settings of a membership, and its snapshot: immutable, safe to hand to any thread.

The machine's shell publishes a new snapshot after every event; no other code looks into the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class OffsetAndMetadata(NamedTuple):
    """The committed position of a partition: next offset to read, its leader epoch (-1 unknown), free text."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """A record found by time: its offset, its time in milliseconds since the epoch, its leader epoch (-1 unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Times and names of one membership.

    `retry_authentication`: a refused login may succeed later, because the credentials are renewed. Partition counts are
    read again after `metadata_max_age_s`. `rack` is the member's own (KIP-881).
    """

    group_id: str
    instance_id: str | None = None
    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    max_poll_interval_s: float = 300.0
    rebalance_timeout_s: float = 300.0
    request_timeout_s: float = 30.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0
    metadata_max_age_s: float = 300.0
    rack: str | None = None
    retry_authentication: bool = False


class Rejoin(NamedTuple):
    """One way of a member into a generation.

    - `before`: the generation that it was in, -1 for none; `generation`: the one that it came to, -1 while it is on its
      way.
    - `reason`: why it joined (again); `own` is False where it only followed the others.
    """

    before: int
    generation: int
    reason: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One member of one group, at one moment.

    `state` is Kafka's word for the member's state: `Unjoined`, `PreparingRebalance`, `CompletingRebalance`,
    `Stable`, `Left`, or `Failed` after a fatal error. `generation` is -1 and `member_id` empty while not joined.
    `coordinator` is (host, port). `assignment` maps topics to partition numbers. `last_heartbeat_at` is the
    monotonic time at which the last successful heartbeat was sent. `rejoins` are the last ones, oldest first, with the
    one under way. `revoking`: a rebalance waits until the user's thread has given partitions back. `error` (with
    `.reason`) is what keeps the member from its work now, else None; it disappears with its cause.
    """

    group_id: str
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    leader: bool = False
    protocol: str | None = None
    state: str = "Unjoined"
    coordinator: tuple[str, int] | None = None
    assignment: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    last_heartbeat_at: float | None = None
    last_rebalance_reason: str = ""
    rejoins: tuple[Rejoin, ...] = ()
    revoking: bool = False
    error: Exception | None = None
