"""The words every assignor speaks. Users write against them, so they may only grow.

Partitions are grouped by topic, as on the wire: a million of them need no million objects. Nothing here may decide
anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class RebalanceProtocol(Enum):
    """Whether members give up everything before a rebalance, or only what moves (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


EAGER = RebalanceProtocol.EAGER
COOPERATIVE = RebalanceProtocol.COOPERATIVE


@dataclass(frozen=True, slots=True)
class ClusterView:
    """How many partitions each topic has: numbers 0 to count-1. A topic that is absent does not exist.

    `racks`, where known, lists for each partition of a topic the racks that hold a replica of it.
    """

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member told the group when it joined (`ConsumerPartitionAssignor.Subscription`).

    `owned` is what it held before, `generation` when it held it (-1: unknown); both are empty for eager members.
    `user_data` is what the assignor of that member wrote with `subscription_user_data`.
    `instance_id` is None for dynamic members.
    """

    topics: Sequence[str]
    user_data: bytes | None = None
    owned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one member gets: partition numbers by topic, and bytes that only the assignor understands."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes | None = None


class Assignor(Protocol):
    """What the group needs of an assignor (Java: `ConsumerPartitionAssignor`).

    One object serves one consumer for its whole life; `on_assignment` may remember, `assign` must not depend on when
    it is called. Calls come from one thread at a time, `assign` from another thread than the rest.

    A user's own class needs `name` and `assign`; `loading.complete` supplies the rest with Java's defaults. A
    COOPERATIVE one must not give a partition to a member while another still has it in `owned`: it leaves it out, and
    the plan of the rebalance that follows gives it away (KIP-429).
    """

    @property
    def name(self) -> str:
        """The name under which members agree on it."""
        ...

    @property
    def version(self) -> int:
        """The version of what `subscription_user_data` writes."""
        ...

    @property
    def protocol(self) -> RebalanceProtocol:
        """Which rebalance protocol it needs."""
        ...

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Bytes to carry in this member's subscription."""
        ...

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        """Give every member (keys are member ids) its assignment; members without partitions are present, empty."""
        ...

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """This member has been given `assignment` in `generation`."""
        ...
