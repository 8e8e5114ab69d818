"""Range: each topic by itself, its partitions cut into one contiguous piece for each subscriber.

Co-partitioned topics meet in the same member, at the price that the first members get the remainder of every topic.
Parity with `org.apache.kafka.clients.consumer.RangeAssignor` as it acts without racks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.interface import EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.ordering import members_by_topic


class RangeAssignor:
    """Of n partitions and m members, each gets n div m in a row, and the first n mod m members one more."""

    name = "range"
    version = 0
    protocol: RebalanceProtocol = EAGER

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return None

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in subscriptions}
        for topic, members in members_by_topic(subscriptions).items():
            base, remainder = divmod(cluster.partitions.get(topic, 0), len(members))
            start = 0
            for index, member in enumerate(members):
                end = start + base + (index < remainder)
                if end > start:
                    shares[member].setdefault(topic, []).extend(range(start, end))
                start = end
        return {member: Assignment(share) for member, share in shares.items()}

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Plans of range depend on nothing that was before."""
