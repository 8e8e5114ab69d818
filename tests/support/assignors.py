"""Assignors for tests of cooperative groups: range's plans, declared cooperative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors import COOPERATIVE, Assignment, ClusterView, RebalanceProtocol, Subscription, load


class DirectRange:
    """A direct range assignor, which breaks the cooperative contract: partitions move at once."""

    name = "direct-range"
    version = 0
    protocol: RebalanceProtocol = COOPERATIVE

    def __init__(self) -> None:
        self._range = load("range")
        self.told: list[tuple[Assignment, int]] = []

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return f"{self.name} for {','.join(topics)}".encode()

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        return self._range.assign(cluster, subscriptions)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self.told.append((assignment, generation))


class CooperativeRange(DirectRange):
    """A range assignor that keeps the contract: a moving partition is left out until its owner has revoked it."""

    name = "cooperative-range"

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        owners = {
            (topic, number): member
            for member, subscription in subscriptions.items()
            for topic, numbers in subscription.owned.items()
            for number in numbers
        }
        plans = self._range.assign(cluster, subscriptions)
        return {
            member: Assignment(
                {
                    topic: [number for number in numbers if owners.get((topic, number), member) == member]
                    for topic, numbers in plan.partitions.items()
                }
            )
            for member, plan in plans.items()
        }
