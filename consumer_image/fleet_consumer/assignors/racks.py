"""Which racks hold a replica of which partition, and whether that can matter to a plan.

Reading from a replica in one's own rack is cheaper and faster (KIP-392); KIP-881 taught assignors to prefer it. A
preference only: counts come first, and a member without a rack is near everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fleet_consumer.assignors.interface import ClusterView, Subscription

NOWHERE: Final[frozenset[str]] = frozenset()


def partition_racks(cluster: ClusterView, topic: str) -> list[frozenset[str]]:
    """The racks of each partition of a topic; where nothing is known, none."""
    known = list(cluster.racks.get(topic, ())) if cluster.racks else []
    count = cluster.partitions.get(topic, 0)
    return known[:count] + [NOWHERE] * (count - len(known))


def member_racks(subscriptions: Mapping[str, Subscription]) -> dict[str, str]:
    """The rack of each member that has one; an empty name is none."""
    return {member: subscription.rack for member, subscription in subscriptions.items() if subscription.rack}


def racks_matter(members: Collection[str], partitions: Sequence[frozenset[str]]) -> bool:
    """Whether some choice is nearer than another: `members` are the racks of members, `partitions` of each partition.

    Not when no member shares a rack with any replica, nor when every partition is in all the racks that there are.
    """
    present = NOWHERE.union(*partitions)
    return not present.isdisjoint(members) and any(racks != present for racks in partitions)
