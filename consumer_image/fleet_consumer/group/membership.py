"""Snapshot of a membership: immutable, safe to hand to any thread.

The machine's shell publishes a new one after every event; no other code looks into the machine.
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
class Membership:
    """One member of one group, at one moment.

    `state` is Kafka's word for the member's state: `Unjoined`, `PreparingRebalance`, `CompletingRebalance`,
    `Stable`, `Left`, or `Failed` after a fatal error. `generation` is -1 and `member_id` empty while not joined.
    `coordinator` is (host, port). `assignment` maps topics to partition numbers. `last_heartbeat_at` is the
    monotonic time at which the last successful heartbeat was sent. `error` (with `.reason`) is what keeps the member
    from its work now, else None; it disappears with its cause.
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
    rebalances: int = 0
    last_rebalance_reason: str = ""
    error: Exception | None = None
