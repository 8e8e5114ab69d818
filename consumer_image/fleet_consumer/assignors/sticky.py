"""The sticky pair: `sticky` gives everything up before each rebalance, `cooperative-sticky` only what moves (KIP-429).

Both make the same plan and speak to Java members of the same name: their user data has the same bytes. What Java's
plan leaves to the order of its hash maps is decided here by names; counts and invariants are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.allocation import collector_at_rest
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

    Subscriptions tell what a member held in their user data. One without user data is taken at the word of its
    `owned` and `generation`.
    """

    name = "sticky"
    version = 1
    protocol: RebalanceProtocol = EAGER

    def __init__(self) -> None:
        self._remembered: tuple[Assignment, int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """What this member was last given and when; None before its first assignment."""
        if self._remembered is None:
            return None
        assignment, generation = self._remembered
        return encode_sticky(assignment.partitions, generation)

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        with collector_at_rest():
            reader = StickyReader()
            claims = {
                member: reader.read(told.user_data) if told.user_data else Claim(told.owned, told.generation)
                for member, told in subscriptions.items()
            }
            return plan_sticky(cluster, subscriptions, claims, hand_over=True)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Remember, for the next subscription."""
        self._remembered = (assignment, generation)


class CooperativeStickyAssignor:
    """The plan of `sticky`, reached in two rounds: a partition that changes hands is nobody's in between."""

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
            member: Claim(told.owned, told.generation if told.generation >= 0 else decode_generation(told.user_data))
            for member, told in subscriptions.items()
        }
        with collector_at_rest():
            return plan_sticky(cluster, subscriptions, claims, hand_over=False)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Remember, for the next subscription."""
        self._generation = generation
