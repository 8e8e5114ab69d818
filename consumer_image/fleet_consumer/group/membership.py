"""Settings of a group membership, and immutable snapshots of a membership, which any thread may read.

The coordinator thread publishes a new snapshot after every event; other threads never read the machine's state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class OffsetAndMetadata(NamedTuple):
    """The committed position of a partition: next offset to read, leader epoch (-1: unknown), and metadata (any
    string)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """The result of a lookup by time: a record's offset, timestamp in milliseconds since 1970, leader epoch (-1:
    unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of one membership. If `retry_authentication`, a refused login is retried, because the credentials may be
    renewed. `metadata_max_age_s` is the maximum age of partition counts in seconds before they are read again. `rack`
    is the member's rack (KIP-881), None if unknown."""

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
    """A member's transition into a generation.

    - `before`: the previous generation, -1 if there was none. `generation`: the new generation, -1 until the member has
      joined it.
    - `own`: False if the member rejoined only because another member had started the rebalance.
    """

    before: int
    generation: int
    reason: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A snapshot of one member of one group.

    - `state` is Kafka's name for the member's state: `Unjoined`, `PreparingRebalance`, `CompletingRebalance`, `Stable`,
      `Left`, or `Failed` after a fatal error.
    - `generation` is -1 and `member_id` empty while the member has not joined.
    - `coordinator` is (host, port). `assignment` maps topics to partition numbers.
    - `last_heartbeat_at` is the monotonic time at which the last successful heartbeat was sent.
    - `rejoins` are the member's last rejoins, oldest first, including a rejoin in progress.
    - `revoking`: a rebalance waits until the user's thread has given partitions back.
    - `error` is the error (with a `reason`) that currently blocks the member, or None. The error is cleared when its
      cause disappears.
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
