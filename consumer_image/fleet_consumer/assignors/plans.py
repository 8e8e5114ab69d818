"""The base of all plans: the order in which Java's assignors see members and topics, racks, a pause of the collector.

Every leader must make the same plan whatever language it is written in, so the order is part of the contract.

Fetching from a replica in the same rack is cheaper and faster (KIP-392); assignors prefer it since KIP-881. It is only
a preference: counts come first, and a member without a rack is near everything.

A plan of a million small lists has one for each member and topic, and none of them is garbage: more than half of the
time of a large plan went into collections that found nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from fleet_consumer.assignors.interface import ClusterView, Subscription


def java_key(text: str) -> bytes:
    """A sort key with the order of Java's `String.compareTo`: by UTF-16 code units.

    Python orders by code points, which differs where a character beyond the BMP meets one of U+E000 to U+FFFF.
    """
    return text.encode("utf-16-be", "surrogatepass")


def sorted_members(subscriptions: Mapping[str, Subscription], members: Iterable[str]) -> list[str]:
    """Static members by instance id, then dynamic ones by member id (`AbstractPartitionAssignor.MemberInfo`).

    Instance ids survive restarts, member ids do not: a restarted static member gets its partitions back.
    """

    def key(member: str) -> tuple[bool, bytes]:
        instance = subscriptions[member].instance_id
        return (instance is None, java_key(member if instance is None else instance))

    return sorted(members, key=key)


def members_by_topic(subscriptions: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """The subscribers of each topic, in the members' order; topics may share one list."""
    members = sorted_members(subscriptions, subscriptions)
    if len({tuple(subscriptions[member].topics) for member in members}) == 1:
        return dict.fromkeys(subscriptions[members[0]].topics, members)
    wanted: dict[str, list[str]] = {}
    for member in members:
        for topic in dict.fromkeys(subscriptions[member].topics):
            wanted.setdefault(topic, []).append(member)
    return wanted


NOWHERE: Final[frozenset[str]] = frozenset()


def partition_racks(cluster: ClusterView, topic: str) -> list[frozenset[str]]:
    """The racks of each partition of a topic; empty sets if unknown."""
    known = list(cluster.racks.get(topic, ())) if cluster.racks else []
    count = cluster.partitions.get(topic, 0)
    return known[:count] + [NOWHERE] * (count - len(known))


def racks_matter(members: Collection[str], partitions: Sequence[frozenset[str]]) -> bool:
    """True if some choice is nearer than another; `members` and `partitions` hold the racks of each.

    False if no member shares a rack with any replica, or if every partition is in all the racks.
    """
    present = NOWHERE.union(*partitions)
    return not present.isdisjoint(members) and any(racks != present for racks in partitions)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable automatic collection inside, and restore it afterwards if it was enabled."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
