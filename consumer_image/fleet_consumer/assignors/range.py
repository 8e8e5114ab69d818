"""Range: each topic separately, its partitions cut into one contiguous piece for each subscriber.

Co-partitioned topics meet in the same member, but the first members get the remainder of every topic. Parity with
`org.apache.kafka.clients.consumer.RangeAssignor`. If racks make a difference (KIP-881), partitions are first given to
members near a replica within the same quotas; the pieces are then no longer contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet_consumer.assignors.allocation import gc_paused
from fleet_consumer.assignors.interface import EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.ordering import members_by_topic
from fleet_consumer.assignors.racks import member_racks, partition_racks, racks_matter
from fleet_consumer.assignors.range_racks import TopicShares, share_alike, share_near

Shares = dict[str, dict[str, list[int]]]


class RangeAssignor:
    """Of n partitions and m members, each gets n div m in a row, and the first n mod m members one more."""

    name = "range"
    version = 0
    protocol: RebalanceProtocol = EAGER

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return None

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        with gc_paused():
            topics = {
                topic: members
                for topic, members in members_by_topic(subscriptions).items()
                if cluster.partitions.get(topic, 0) > 0
            }
            shares = _near(cluster, subscriptions, topics) or _plain(cluster, subscriptions, topics)
            return {member: Assignment(share) for member, share in shares.items()}

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Nothing to store: a plan does not depend on earlier ones."""


def _plain(cluster: ClusterView, members: Mapping[str, Subscription], topics: Mapping[str, list[str]]) -> Shares:
    shares: Shares = {member: {} for member in members}
    for topic, takers in topics.items():
        base, remainder = divmod(cluster.partitions[topic], len(takers))
        end = 0
        for member in takers if base else takers[:remainder]:
            start, end = end, end + base + (remainder > 0)
            remainder -= 1
            shares[member][topic] = [start] if end == start + 1 else [*range(start, end)]
    return shares


def _near(
    cluster: ClusterView, subscriptions: Mapping[str, Subscription], topics: Mapping[str, list[str]]
) -> Shares | None:
    """The plan with racks; None if they make no difference for any topic.

    Topics with the same members and as many partitions are assigned together, so that they still meet in the same
    member. A topic none of whose members has a rack is left out: Java knows no partitions of it here.
    """
    racks = member_racks(subscriptions)
    if not racks or not cluster.racks:
        return None
    where = {topic: partition_racks(cluster, topic) for topic in topics}
    matter = {
        topic
        for topic, members in topics.items()
        if racks_matter({racks[member] for member in members if member in racks}, where[topic])
    }
    if not matter:
        return None
    states = {topic: TopicShares(cluster.partitions[topic], members, racks) for topic, members in topics.items()}
    alike: dict[tuple[tuple[str, ...], int], list[str]] = {}
    for topic, members in topics.items():
        if not racks.keys().isdisjoint(members):
            alike.setdefault((tuple(members), cluster.partitions[topic]), []).append(topic)
    for group in alike.values():
        if len(group) > 1:
            share_alike([states[topic] for topic in group], [where[topic] for topic in group])
        elif group[0] in matter:
            share_near(states[group[0]], where[group[0]])
    shares: Shares = {member: {} for member in subscriptions}
    for topic, state in states.items():
        state.share_rest()
        for member, numbers in state.given.items():
            if numbers:
                shares[member][topic] = sorted(numbers)
    return shares
