"""Assignment of one topic's partitions to members near a replica, within the quotas of range.

Java's `RangeAssignor` walks over all members for each partition; here each rack has its own row of members and of
partitions, in the same order, and used entries are passed once. The outcome is the same to the last partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class TopicShares:
    """Each member's partitions of one topic, and its remaining quota.

    The first members may have one more than the base, as many of them as the remainder says.
    """

    def __init__(self, count: int, members: Sequence[str], racks: Mapping[str, str]) -> None:
        self.members = members
        self.racks = racks
        self.given: dict[str, list[int]] = {member: [] for member in members}
        self._base, self._larger = divmod(count, len(members))
        self._taken = bytearray(count)

    def room(self, member: str) -> int:
        """The number of further partitions that the member may have."""
        return max(0, self._base + (self._larger > 0) - len(self.given[member]))

    def give(self, member: str, numbers: Sequence[int]) -> None:
        self.given[member] += numbers
        self._larger -= len(self.given[member]) > self._base
        for number in numbers:
            self._taken[number] = 1

    def take(self, row: Iterable[int], room: int) -> list[int]:
        """The next free partitions in a row, up to `room`; the row must be an iterator, which continues."""
        found: list[int] = []
        if room:
            for number in row:
                if not self._taken[number]:
                    found.append(number)
                    if len(found) == room:
                        break
        return found

    def share_rest(self) -> None:
        """Assign the remaining partitions in order, to members in turn up to their quotas."""
        row = iter(range(len(self._taken)))
        for member in self.members:
            rest = self.take(row, self.room(member))
            if rest:
                self.give(member, rest)


def share_near(state: TopicShares, where: Sequence[frozenset[str]]) -> None:
    """Each member in turn takes the first partitions that have a replica in its rack; without a rack, any."""
    rows = {
        rack: iter([number for number, spots in enumerate(where) if rack in spots])
        for rack in {state.racks[member] for member in state.members if member in state.racks}
    }
    anything = iter(range(len(where)))
    for member in state.members:
        row = rows[state.racks[member]] if member in state.racks else anything
        found = state.take(row, state.room(member))
        if found:
            state.give(member, found)


def share_alike(states: Sequence[TopicShares], where: Sequence[Sequence[frozenset[str]]]) -> None:
    """Assign partition by partition, of all these topics at once, to the first member near every one of them.

    The topics have the same members and as many partitions, so they also have the same room.
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
