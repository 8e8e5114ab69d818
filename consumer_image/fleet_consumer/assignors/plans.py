"""Functions shared by assignors: Java's order of members and topics, racks, and a pause of the garbage collector.

Leaders in other languages must compute the same plan, so this order is part of the contract.

Fetching from a replica in the same rack is cheaper and faster (KIP-392), and assignors prefer it since KIP-881.
Balanced counts take precedence over racks. A member without a rack counts as near every replica.

A large plan has a million small lists, one for each member and topic, and none of these lists is garbage. Without the
pause, useless garbage collections took more than half of the planning time.
"""

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from fleet_consumer.assignors.interface import ClusterView, Subscription


def java_key(text: str) -> bytes:
    """Return a sort key for the order of Java's `String.compareTo`, which is by UTF-16 code units. Python's order by
    code points differs if a character beyond the BMP is compared with one from U+E000 to U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_members(subscriptions: Mapping[str, Subscription], members: Iterable[str]) -> list[str]:
    """Sort static members by instance id, then dynamic members by member id (`AbstractPartitionAssignor.MemberInfo`).
    Instance ids survive restarts, so a restarted static member gets its partitions back."""

    def key(member: str) -> tuple[bool, bytes]:
        instance = subscriptions[member].instance_id
        return (instance is None, java_key(member if instance is None else instance))

    return sorted(members, key=key)


def members_by_topic(subscriptions: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """Return the subscribers of each topic, in the order of `sorted_members`. Topics may share one list object."""
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
    """Return the replica racks of each partition of a topic; an empty set if unknown."""
    known = list(cluster.racks.get(topic, ())) if cluster.racks else []
    count = cluster.partitions.get(topic, 0)
    return known[:count] + [NOWHERE] * (count - len(known))


def racks_matter(members: Collection[str], partitions: Sequence[frozenset[str]]) -> bool:
    """True if some members may be nearer to a partition than others, judging by the racks of members and replicas."""
    present = NOWHERE.union(*partitions)
    return not present.isdisjoint(members) and any(racks != present for racks in partitions)


@contextmanager
def gc_paused() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
