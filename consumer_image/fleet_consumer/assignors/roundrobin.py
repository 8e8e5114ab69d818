"""Round robin: all partitions of all topics, dealt like cards around the table of members.

Evener than range with many small topics; a leaver moves nearly everything. Parity with
`org.apache.kafka.clients.consumer.RoundRobinAssignor`; racks play no part there either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.interface import EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.ordering import java_key, sorted_members


class RoundRobinAssignor:
    """Topics by name, partitions by number, one cursor over all members that skips those not subscribed."""

    name = "roundrobin"
    version = 0
    protocol: RebalanceProtocol = EAGER

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return None

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        members = sorted_members(subscriptions, subscriptions)
        wanted = {member: frozenset(subscriptions[member].topics) for member in members}
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in subscriptions}
        cursor = 0
        for topic in sorted(frozenset[str]().union(*wanted.values()), key=java_key):
            count = cluster.partitions.get(topic, 0)
            if count:
                cursor = _deal(topic, count, members, wanted, cursor, shares)
        return {member: Assignment(share) for member, share in shares.items()}

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Plans of round robin depend on nothing that was before."""


def _deal(
    topic: str,
    count: int,
    members: Sequence[str],
    wanted: Mapping[str, frozenset[str]],
    cursor: int,
    shares: dict[str, dict[str, list[int]]],
) -> int:
    """Deal one topic from `cursor` on, and tell where the next topic begins.

    Within one topic the circle is the same for every partition, so each member's share is an arithmetic sequence and
    no partition needs a step of its own.
    """
    circle = [
        place % len(members)
        for place in range(cursor, cursor + len(members))
        if topic in wanted[members[place % len(members)]]
    ]
    for seat, place in enumerate(circle[:count]):
        shares[members[place]][topic] = list(range(seat, count, len(circle)))
    return (circle[(count - 1) % len(circle)] + 1) % len(members)
