"""Round robin: all partitions of all topics, dealt to members in turn.

More even than range with many small topics; a member that leaves moves nearly everything. Parity with
`org.apache.kafka.clients.consumer.RoundRobinAssignor`, which ignores racks too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.interface import EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.plans import gc_paused, java_key, sorted_members


class RoundRobinAssignor:
    """Topics by name, partitions by number, one cursor over all members that skips those not subscribed."""

    name = "roundrobin"
    version = 0
    protocol: RebalanceProtocol = EAGER

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return None

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        members = sorted_members(subscriptions, subscriptions)
        wanted = [frozenset(subscriptions[member].topics) for member in members]
        shares: list[dict[str, list[int]]] = [{} for _ in members]
        common = frozenset.intersection(*wanted) if wanted else frozenset[str]()
        cursor = 0
        with gc_paused():
            for topic in sorted(frozenset[str]().union(*wanted), key=java_key):
                count = cluster.partitions.get(topic, 0)
                if count:
                    table = [*range(cursor, len(members)), *range(cursor)]
                    circle = table if topic in common else [place for place in table if topic in wanted[place]]
                    _deal(topic, count, circle, shares)
                    cursor = (circle[(count - 1) % len(circle)] + 1) % len(members)
        return {member: Assignment(share) for member, share in zip(members, shares, strict=True)}

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Nothing to store: a plan does not depend on earlier ones."""


def _deal(topic: str, count: int, circle: Sequence[int], shares: Sequence[dict[str, list[int]]]) -> None:
    """Deal one topic to its subscribers, beginning with the first of `circle`.

    Within one topic the circle is the same for every partition, so each member's share is an arithmetic sequence, made
    without a step per partition.
    """
    if count <= len(circle):
        for seat, place in enumerate(circle[:count]):
            shares[place][topic] = [seat]
        return
    for seat, place in enumerate(circle):
        shares[place][topic] = [*range(seat, count, len(circle))]
