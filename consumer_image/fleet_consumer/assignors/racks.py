"""Racks of replicas and members, and whether they can make a difference.

Fetching from a replica in the same rack is cheaper and faster (KIP-392); assignors prefer it since KIP-881. It is only
a preference: counts come first, and a member without a rack is near everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fleet_consumer.assignors.interface import ClusterView, Subscription

NOWHERE: Final[frozenset[str]] = frozenset()


def partition_racks(cluster: ClusterView, topic: str) -> list[frozenset[str]]:
    """The racks of each partition of a topic; empty sets if unknown."""
    known = list(cluster.racks.get(topic, ())) if cluster.racks else []
    count = cluster.partitions.get(topic, 0)
    return known[:count] + [NOWHERE] * (count - len(known))


def member_racks(subscriptions: Mapping[str, Subscription]) -> dict[str, str]:
    """The rack of each member that has a non-empty one."""
    return {member: subscription.rack for member, subscription in subscriptions.items() if subscription.rack}


def racks_matter(members: Collection[str], partitions: Sequence[frozenset[str]]) -> bool:
    """True if some choice is nearer than another; `members` and `partitions` hold the racks of each.

    False if no member shares a rack with any replica, or if every partition is in all the racks.
    """
    present = NOWHERE.union(*partitions)
    return not present.isdisjoint(members) and any(racks != present for racks in partitions)
