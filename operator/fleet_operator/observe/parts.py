"""Parts of a cluster's groups, each of which one look asks for.

A look at everything would be as long as its slowest answer, and nothing of it would be known before. So the groups are
divided by how much there is to ask: a part answers in time whatever the size of the whole, and what has answered is
known. A group stays in its part, or no answer would be like the one before. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_operator.observe.interests import GroupInterest
from fleet_operator.observe.look_memory import PartMemory
from fleet_operator.planning.observation import TopicObservation

WEIGHT_MAX: Final = 400
"""Topics and groups of one part: with a dozen partitions in each topic about 4,000 offsets are asked for."""


@dataclass(slots=True, eq=False)
class GroupPart:
    """Some groups, what was seen of their topics, and when to look at them again (monotonic seconds).

    `cpu_s` is the CPU time that the last look took. `asked` is the number of the last look among those at all parts,
    `turn` that of the last good one, `failed` that of the last one if it failed; 0 for none. `unheard` says that nobody
    has been notified of its groups since the cluster was found, perhaps anew.
    """

    patterns: bool
    interests: dict[str, GroupInterest] = field(default_factory=dict)
    memory: PartMemory = field(default_factory=PartMemory)
    topics: Mapping[str, TopicObservation] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    due_at: float = float("-inf")
    cpu_s: float = 0.0
    asked: int = 0
    turn: int = 0
    failed: int = 0
    unheard: bool = True
    weight: int = 0

    def put(self, interest: GroupInterest) -> None:
        self.drop(interest.group_id)
        self.interests[interest.group_id] = interest
        self.weight += _weight(interest)
        self.due_at = float("-inf")

    def drop(self, group_id: str) -> None:
        gone = self.interests.pop(group_id, None)
        if gone is not None:
            self.weight -= _weight(gone)


class GroupParts:
    """All groups of one observer, by part. There is always one part, for the facts of the cluster itself."""

    def __init__(self) -> None:
        self._parts = [GroupPart(patterns=False)]
        self._of: dict[str, GroupPart] = {}
        self._looks = 0
        self._last_good = 0

    def __iter__(self) -> Iterator[GroupPart]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._of)

    def change(self, changes: Mapping[str, GroupInterest | None]) -> None:
        """Take in new interests by group id, None for groups that are of no interest any more."""
        for group_id, interest in changes.items():
            part = self._of.get(group_id)
            if part is not None and (interest is None or part.patterns != (interest.pattern is not None)):
                part.drop(group_id)
                del self._of[group_id]
                part = None
            if interest is not None:
                part = part or self._part_with_room(interest)
                part.put(interest)
                self._of[group_id] = part
        self._parts = [part for part in self._parts if part.interests] or [GroupPart(patterns=False)]

    def due(self, now: float) -> GroupPart:
        """The part to look at next: of those that are due the one that was looked at before the others.

        Wishes make their parts due at once, again and again, and a part whose looks fail stays due; the others must
        have their turn all the same.
        """
        due = [part for part in self._parts if part.due_at <= now]
        return min(due, key=lambda part: part.asked) if due else min(self._parts, key=lambda part: part.due_at)

    def take(
        self, part: GroupPart, topics: Mapping[str, TopicObservation], matches: Mapping[str, tuple[str, ...]]
    ) -> bool:
        """Note what a look at a part has found of topics; True if that is not what the look before has found."""
        self._looks += 1
        part.asked = part.turn = self._last_good = self._looks
        part.failed = 0
        as_before = (part.topics, part.matches) == (topics, matches)
        if not as_before:
            part.topics, part.matches = topics, matches
        return not as_before

    def fail(self, part: GroupPart) -> bool:
        """Note a look at a part that failed; True if others have answered since it failed before.

        Then the cluster is not to blame: a pattern asks for all topics, which may be too many for the time that a look
        has.
        """
        self._looks += 1
        own = 0 < part.failed < self._last_good
        part.asked = part.failed = self._looks
        return own

    def topics(self) -> dict[str, TopicObservation]:
        """All topics; one that groups of several parts read is as the last look at any of them found it."""
        return {name: topic for part in self._by_turn() for name, topic in part.topics.items()}

    def matches(self) -> dict[str, tuple[str, ...]]:
        """The topics that match each pattern, as the last look at any part with this pattern found them."""
        return {text: names for part in self._by_turn() for text, names in part.matches.items()}

    def _by_turn(self) -> list[GroupPart]:
        return sorted(self._parts, key=lambda part: part.turn)

    def all_due(self) -> None:
        """Have every part looked at as soon as possible."""
        for part in self._parts:
            part.due_at = float("-inf")

    def reading(self, topics: frozenset[str]) -> Iterator[GroupPart]:
        """The parts with a group that names one of these topics."""
        for part in self._parts:
            if any(not topics.isdisjoint(interest.named_topics) for interest in part.interests.values()):
                yield part

    @property
    def cpu_s(self) -> float:
        """CPU time of one look at every part."""
        return sum(part.cpu_s for part in self._parts)

    def _part_with_room(self, interest: GroupInterest) -> GroupPart:
        patterns, weight = interest.pattern is not None, _weight(interest)
        for part in self._parts:
            if part.patterns == patterns and (part.weight + weight <= WEIGHT_MAX or not part.interests):
                return part
            if not part.interests:  # the first part of all
                part.patterns = patterns
                return part
        made = GroupPart(patterns=patterns)
        self._parts.append(made)
        return made


def _weight(interest: GroupInterest) -> int:
    return 1 + len(interest.named_topics)
