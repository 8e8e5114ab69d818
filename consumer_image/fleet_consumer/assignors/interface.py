"""The types of assignors. Users implement these types, so changes may only add to them.

Partitions are grouped by topic, as in the protocol, so that a million partitions do not need a million objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable


class RebalanceProtocol(Enum):
    """EAGER members revoke all partitions before a rebalance; COOPERATIVE members revoke only moving partitions
    (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


EAGER = RebalanceProtocol.EAGER
COOPERATIVE = RebalanceProtocol.COOPERATIVE


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The existing topics. `partitions` has the partition count of each topic. `racks` has, for each topic and
    partition number, the racks of the partition's replicas; None or a missing topic means that the racks are
    unknown."""

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member's subscription (`ConsumerPartitionAssignor.Subscription`).

    `owned` has the member's previous partitions by topic, and is empty for eager members. `generation` is the
    generation that assigned these partitions (-1: unknown). `user_data` is the result of the member's
    `subscription_user_data`. `instance_id` is None for dynamic members, `rack` is None for members without a rack.
    """

    topics: Sequence[str]
    user_data: bytes | None = None
    owned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's partition numbers, keyed by topic, and `user_data`: bytes that only the assignor interprets."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes | None = None


class Assignor(Protocol):
    """The interface of an assignor (Java: `ConsumerPartitionAssignor`).

    One object serves one consumer for the consumer's whole life. `on_assignment` may store state, but the result of
    `assign` must not depend on the time of the call. Calls do not overlap, but `assign` runs on a different thread from
    the other methods.

    A user's class needs `name` and `assign`; `loading.complete` adds the other attributes with Java's defaults. A
    COOPERATIVE assignor must not assign a partition that another member still has in `owned`. Such a partition stays
    unassigned until the next rebalance (KIP-429).
    """

    @property
    def name(self) -> str:
        """The protocol name that all members must have in common."""

    @property
    def version(self) -> int:
        """The version of the user data format."""

    @property
    def protocol(self) -> RebalanceProtocol:
        """The rebalance protocol that the assignor needs."""

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the user data for this member's subscription, or None."""

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        """Return all members' assignments, keyed by member id. Members without partitions get an empty assignment."""

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Receive this member's new `assignment` and the `generation` of the group that it belongs to."""


@runtime_checkable
class TakesRates(Protocol):
    """An assignor that balances load. Rates are measured only if at least one configured assignor has `on_rates`."""

    def on_rates(self, rates: Mapping[str, Mapping[int, float]]) -> None:
        """Receive the rates of owned partitions in records per second, keyed by topic and partition number.

        The polling thread calls this method about every ten seconds, possibly while another method runs. So only store
        the mapping; the caller never modifies it afterwards. A partition is included once it has been observed for half
        a minute.
        """
