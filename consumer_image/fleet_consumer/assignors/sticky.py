"""The sticky pair: `sticky` revokes everything before each rebalance, `cooperative-sticky` only what moves (KIP-429).

Both make the same plan and work with Java members of the same name: their user data has the same bytes. Where Java's
plan depends on the order of its hash maps, names decide here; counts and invariants are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.allocation import gc_paused
from fleet_consumer.assignors.claims import Claim
from fleet_consumer.assignors.interface import (
    COOPERATIVE,
    EAGER,
    Assignment,
    ClusterView,
    RebalanceProtocol,
    Subscription,
)
from fleet_consumer.assignors.sticky_plan import plan_sticky
from fleet_consumer.assignors.sticky_user_data import (
    UNKNOWN_GENERATION,
    StickyReader,
    decode_generation,
    encode_generation,
    encode_sticky,
)


class StickyAssignor:
    """As even as possible, then as unchanged as possible; members revoke everything before they rejoin.

    A member's previous partitions come in its user data; without user data, its `owned` and `generation` are used.
    """

    name = "sticky"
    version = 1
    protocol: RebalanceProtocol = EAGER

    def __init__(self) -> None:
        self._remembered: tuple[Assignment, int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's last assignment and its generation; None before the first."""
        if self._remembered is None:
            return None
        assignment, generation = self._remembered
        return encode_sticky(assignment.partitions, generation)

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        with gc_paused():
            reader = StickyReader()
            claims = {
                member: reader.read(joined.user_data) if joined.user_data else Claim(joined.owned, joined.generation)
                for member, joined in subscriptions.items()
            }
            return plan_sticky(cluster, subscriptions, claims, hand_over=True)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._remembered = (assignment, generation)


class CooperativeStickyAssignor:
    """The plan of `sticky`, reached in two rounds: a partition that moves has no owner in between."""

    name = "cooperative-sticky"
    version = 0
    protocol: RebalanceProtocol = COOPERATIVE

    def __init__(self) -> None:
        self._generation = UNKNOWN_GENERATION

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """The generation, for leaders that do not read it from the subscription itself."""
        return encode_generation(self._generation)

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        claims = {
            member: Claim(
                joined.owned, joined.generation if joined.generation >= 0 else decode_generation(joined.user_data)
            )
            for member, joined in subscriptions.items()
        }
        with gc_paused():
            return plan_sticky(cluster, subscriptions, claims, hand_over=False)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._generation = generation
