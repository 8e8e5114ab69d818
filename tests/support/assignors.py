"""Assignors for tests: range's plans, declared cooperative or delayed until the test releases them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from fleet_consumer.assignors import COOPERATIVE, EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription, load


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


class SlowRange(DirectRange):
    """An eager range assignor that assigns when the test releases it, at the latest after some seconds."""

    name = "slow-range"
    protocol = EAGER

    def __init__(self, go_on: threading.Event, hold_s: float) -> None:
        super().__init__()
        self._go_on = go_on
        self._hold_s = hold_s

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        self._go_on.wait(self._hold_s)
        return super().assign(cluster, subscriptions)
