"""The types of assignors. Users implement them, so they may only be extended.

Partitions are grouped by topic, as on the wire: a million of them need no million objects. No decisions here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable


class RebalanceProtocol(Enum):
    """EAGER members revoke everything before a rebalance, COOPERATIVE ones only what moves (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


EAGER = RebalanceProtocol.EAGER
COOPERATIVE = RebalanceProtocol.COOPERATIVE


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The number of partitions of each existing topic, numbered from 0.

    `racks`, if known, lists for each partition of a topic the racks that hold a replica of it.
    """

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member's subscription (`ConsumerPartitionAssignor.Subscription`).

    `owned` and `generation` (-1: unknown) are its previous assignment; both are empty for eager members.
    `user_data` was written by the member's assignor in `subscription_user_data`.
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
    """One member's partition numbers by topic, and bytes that only the assignor understands."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes | None = None


class Assignor(Protocol):
    """The interface of an assignor (Java: `ConsumerPartitionAssignor`).

    One object serves one consumer for its whole life; `on_assignment` may store state, `assign` must not depend on when
    it is called. Calls come from one thread at a time, `assign` from another thread than the rest.

    A user's class needs `name` and `assign`; `loading.complete` adds the rest with Java's defaults. A COOPERATIVE one
    must not assign a partition that another member still has in `owned`: it leaves the partition out, and the next
    rebalance assigns it (KIP-429).
    """

    @property
    def name(self) -> str:
        """The name under which members agree on the assignor."""

    @property
    def version(self) -> int:
        """The version of the user data."""

    @property
    def protocol(self) -> RebalanceProtocol:
        """The rebalance protocol that the assignor needs."""

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Bytes to carry in this member's subscription."""

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        """Plan the assignments by member id; members without partitions are included, empty."""

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Notify the assignor that this member received `assignment` in `generation`."""


@runtime_checkable
class TakesRates(Protocol):
    """An assignor that deals by load has this method, too. A consumer only looks rates up for one that has it."""

    def on_rates(self, rates: Mapping[str, Mapping[int, float]]) -> None:
        """Notify the assignor of the rates of owned partitions, records per second by topic and number.

        Called every ten seconds or so by the thread that polls, at the same time as the other methods: store the
        mapping, which does not change any more. A partition is missing until it was observed for half a minute.
        """
