"""Round robin: the partitions of all topics are dealt to the members in rotation.

With many small topics, plans are more balanced than with range, but nearly all partitions move when a member leaves.
Plans are the same as those of `org.apache.kafka.clients.consumer.RoundRobinAssignor`, which also ignores racks.
"""

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.interface import EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.plans import gc_paused, java_key, sorted_members


class RoundRobinAssignor:
    """Deals partitions, in the order of topic names and partition numbers, with one cursor over all members. The cursor
    skips members that are not subscribed to the topic."""

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
        """Do nothing, because a plan does not depend on earlier plans."""


def _deal(topic: str, count: int, circle: Sequence[int], shares: Sequence[dict[str, list[int]]]) -> None:
    """Deal one topic's partitions to its subscribers in the order of `circle`. Each member's share is an arithmetic
    sequence, so no loop over the partitions is needed."""
    if count <= len(circle):
        for seat, place in enumerate(circle[:count]):
            shares[place][topic] = [seat]
        return
    for seat, place in enumerate(circle):
        shares[place][topic] = [*range(seat, count, len(circle))]
