"""The order in which Java's assignors see members and topics.

Every leader must make the same plan whatever language it is written in, so the order is part of the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet_consumer.assignors.interface import Subscription


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
