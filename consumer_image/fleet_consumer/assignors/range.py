"""Range: the partitions of each topic are cut into one contiguous piece per subscriber.

Equal partition numbers of co-partitioned topics go to the same member, but the first members get the remainder of every
topic. Plans are the same as those of `org.apache.kafka.clients.consumer.RangeAssignor`. If racks make a difference
(KIP-881), partitions first go to members near a replica, within the same quotas; the pieces are then not contiguous.

For rack-aware plans, Java visits all members for each partition. Here, each rack has its own queues of members and
partitions in Java's order. Assigned partitions and full members are removed from the queues, so each is visited only
once per queue. The plan is exactly the same as Java's.
"""

from collections.abc import Iterable, Mapping, Sequence

from fleet_consumer.assignors.interface import EAGER, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.plans import gc_paused, members_by_topic, partition_racks, racks_matter

Shares = dict[str, dict[str, list[int]]]


class RangeAssignor:
    """Gives each of a topic's m subscribers n div m of its n partitions, and the first n mod m members one more."""

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
        """Do nothing, because a plan does not depend on earlier plans."""


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
    """Return the plan that prefers near replicas, or None if racks make no difference for any topic.

    Topics with the same members and partition counts are assigned together, so that equal partition numbers go to the
    same member. Topics whose members all lack a rack are not assigned together, because Java's rack-aware step ignores
    these topics.
    """
    racks = {member: joined.rack for member, joined in subscriptions.items() if joined.rack}
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


class TopicShares:
    """The partitions of one topic that each member has received, and the members' remaining quotas.

    A quota is the partition count div the number of members. The first members that reach their quota may get one more
    partition, until the remainder of the division is used up.
    """

    def __init__(self, count: int, members: Sequence[str], racks: Mapping[str, str]) -> None:
        self.members = members
        self.racks = racks
        self.given: dict[str, list[int]] = {member: [] for member in members}
        self._base, self._larger = divmod(count, len(members))
        self._taken = bytearray(count)

    def room(self, member: str) -> int:
        return max(0, self._base + (self._larger > 0) - len(self.given[member]))

    def give(self, member: str, numbers: Sequence[int]) -> None:
        self.given[member] += numbers
        self._larger -= len(self.given[member]) > self._base
        for number in numbers:
            self._taken[number] = 1

    def next_partitions(self, row: Iterable[int], room: int) -> list[int]:
        """Return at most `room` free partitions from the iterator `row`, consuming it."""
        found: list[int] = []
        if room:
            for number in row:
                if not self._taken[number]:
                    found.append(number)
                    if len(found) == room:
                        break
        return found

    def share_rest(self) -> None:
        row = iter(range(len(self._taken)))
        for member in self.members:
            rest = self.next_partitions(row, self.room(member))
            if rest:
                self.give(member, rest)


def share_near(state: TopicShares, where: Sequence[frozenset[str]]) -> None:
    """Give each member in turn the first free partitions with a replica in its rack, or any free partitions if it has
    no rack."""
    rows = {
        rack: iter([number for number, spots in enumerate(where) if rack in spots])
        for rack in {state.racks[member] for member in state.members if member in state.racks}
    }
    anything = iter(range(len(where)))
    for member in state.members:
        row = rows[state.racks[member]] if member in state.racks else anything
        found = state.next_partitions(row, state.room(member))
        if found:
            state.give(member, found)


def share_alike(states: Sequence[TopicShares], where: Sequence[Sequence[frozenset[str]]]) -> None:
    """Assign the partitions of these topics, one partition number at a time. The partitions with the same number go to
    one member: the first member with room whose rack has a replica of every one of these partitions. A member without a
    rack may receive any partitions.

    The topics have the same members and partition counts, so their remaining quotas are also the same.
    """
    first = states[0]
    waiting: dict[str | None, list[int]] = {}
    for place, member in enumerate(first.members):
        waiting.setdefault(first.racks.get(member), []).append(place)
    for row in waiting.values():
        row.reverse()
    for number, spots in enumerate(zip(*where, strict=True)):
        heads = []
        for rack in (None, *frozenset.intersection(*spots)):
            row = waiting.get(rack, [])
            while row and not first.room(first.members[row[-1]]):
                row.pop()
            heads += row[-1:]
        if heads:
            for state in states:
                state.give(state.members[min(heads)], [number])
