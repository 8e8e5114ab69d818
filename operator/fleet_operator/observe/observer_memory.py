"""The memory of one observer: the parts of a cluster's groups, when to poll each, and what was last observed. Pure.

A poll of everything would be as long as its slowest answer, and nothing of it would be known before. So the groups are
divided by how much there is to ask: a part answers in time whatever the size of the whole, and what has answered is
known. A group stays in its part, or no answer would be like the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.net import NetError
from fleet_operator.observe.batches import OFFSETS_TOPIC
from fleet_operator.observe.changes import Observed, compare, earlier
from fleet_operator.observe.group_aggregation import unobserved
from fleet_operator.observe.interests import GroupInterest
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, TopicObservation

WEIGHT_MAX: Final = 400
"""Topics and groups of one part: with a dozen partitions in each topic about 4,000 offsets are asked for."""
HURRY_SECONDS: Final = 1.0
"""The interval while a group has not been seen yet, or waits for nobody's record that becomes due."""
PART_REST_FACTOR: Final = 19.0
"""Least pause of a part that has new groups or changed topics, as a multiple of the CPU time of its last poll: while
thousands of groups are created, each of them would have its whole part polled."""
HURRY_MAX_SECONDS: Final = 120.0
"""Longest time for which one group may shorten the pauses: it may never be there."""
CALM_FACTOR: Final = 20.0
"""Least interval of the polls of a group, as a multiple of the CPU time of polls of all groups."""
SCALED_SECONDS: Final = 10.0
"""Longest interval for a group that is scaled: rates need several samples in a window."""
ASLEEP_SECONDS: Final = 2.0
"""The same for one without workers, whose first record waits for the poll that sees it."""
INTERVAL_SECONDS_MAX: Final = 12.0
"""Longest interval that the load makes of a shorter one: decisions must not rest on older observations."""
DOUBT_POLLS: Final = 3
DOUBT_SECONDS: Final = 15.0
"""A cluster counts as unreachable when so many polls in a row, or all polls for so long, have failed."""


@dataclass(slots=True, eq=False)
class GroupPart:
    """Some groups, what was seen of their topics, and when to poll them again (monotonic seconds).

    `cpu_s` is the CPU time that the last poll took, and until `rest_until` no wish has the part polled. `asked` is the
    number of the last poll among those at all parts, `turn` that of the last good one, `failed` that of the last one if
    it failed; 0 for none. `unheard` says that nobody has been notified of its groups since the cluster was found,
    perhaps again. `unseen_since` has the groups that no poll has seen yet. `named` counts how often its groups name
    each topic: topics are made one by one, and whom each of them concerns must not take a walk over all groups.
    """

    patterns: bool
    interests: dict[str, GroupInterest] = field(default_factory=dict)
    named: Counter[str] = field(default_factory=Counter)
    memory: PartMemory = field(default_factory=PartMemory)
    topics: Mapping[str, TopicObservation] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    due_at: float = float("-inf")
    rest_until: float = float("-inf")
    cpu_s: float = 0.0
    asked: int = 0
    turn: int = 0
    failed: int = 0
    unheard: bool = True
    weight: int = 0
    unseen_since: dict[str, float] = field(default_factory=dict)

    def put(self, interest: GroupInterest) -> None:
        self.drop(interest.group_id)
        self.interests[interest.group_id] = interest
        self.named.update(interest.named_topics)
        self.weight += _weight(interest)
        self.wish()

    def wish(self) -> None:
        """Have the part polled next, unless it was just polled."""
        self.due_at = min(self.due_at, self.rest_until)

    def rest(self, ended: float, cpu_s: float) -> None:
        """Note a poll that ended at this time and took so much CPU time."""
        self.cpu_s, self.rest_until = cpu_s, ended + PART_REST_FACTOR * cpu_s

    def drop(self, group_id: str) -> None:
        gone = self.interests.pop(group_id, None)
        if gone is None:
            return
        self.weight -= _weight(gone)
        topics = gone.named_topics
        self.named.subtract(topics)
        for topic in topics:
            if not self.named[topic]:
                del self.named[topic]


class GroupParts:
    """All groups of one observer, by part. There is always one part, for the facts of the cluster itself."""

    def __init__(self) -> None:
        self._parts = [GroupPart(patterns=False)]
        self._of: dict[str, GroupPart] = {}
        self._polls = 0
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
        """The part to poll next: of those that are due the one that was polled before the others.

        Wishes make their parts due at once, again and again, and a part whose polls fail stays due; the others must
        have their turn all the same.
        """
        due = [part for part in self._parts if part.due_at <= now]
        return min(due, key=lambda part: part.asked) if due else min(self._parts, key=lambda part: part.due_at)

    def take(
        self, part: GroupPart, topics: Mapping[str, TopicObservation], matches: Mapping[str, tuple[str, ...]]
    ) -> bool:
        """Note what a poll of a part has found of topics; True if that is not what the poll before has found."""
        self._polls += 1
        part.asked = part.turn = self._last_good = self._polls
        part.failed = 0
        as_before = (part.topics, part.matches) == (topics, matches)
        if not as_before:
            part.topics, part.matches = topics, matches
        return not as_before

    def fail(self, part: GroupPart) -> bool:
        """Note a poll of a part that failed; True if others have answered since it failed before.

        Then the cluster is not to blame: a pattern asks for all topics, which may be too many for the time that a poll
        has.
        """
        self._polls += 1
        own = 0 < part.failed < self._last_good
        part.asked = part.failed = self._polls
        return own

    def topics(self) -> dict[str, TopicObservation]:
        """All topics; one that groups of several parts read is as the last poll of any of them found it."""
        return {name: topic for part in self._by_turn() for name, topic in part.topics.items()}

    def matches(self) -> dict[str, tuple[str, ...]]:
        """The topics that match each pattern, as the last poll of any part with this pattern found them."""
        return {text: names for part in self._by_turn() for text, names in part.matches.items()}

    def _by_turn(self) -> list[GroupPart]:
        return sorted(self._parts, key=lambda part: part.turn)

    def all_due(self) -> None:
        """Have every part polled as soon as possible."""
        for part in self._parts:
            part.due_at = float("-inf")

    def reading(self, topics: frozenset[str]) -> Iterator[GroupPart]:
        """The parts with a group that names one of these topics."""
        return (part for part in self._parts if not part.named.keys().isdisjoint(topics))

    @property
    def cpu_s(self) -> float:
        """CPU time of one poll of every part."""
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


def pause_s(
    part: GroupPart, interval_s: float, seen: ClusterObservation, now: float, *, all_cpu_s: float = 0.0
) -> float:
    """Seconds between a poll of a part and the next; `all_cpu_s` is the CPU time of one poll of every part.

    States are polled each second, so a rebalance is no reason for a poll.
    """
    interests = part.interests
    groups = {group_id: seen.groups.get(group_id) for group_id in interests}
    unseen = {group_id for group_id, group in groups.items() if group is None or group.error is not None}
    part.unseen_since = {group_id: part.unseen_since.get(group_id, now) for group_id in unseen}
    if any(now - since < HURRY_MAX_SECONDS for since in part.unseen_since.values()):
        return min(interval_s, HURRY_SECONDS)
    interval_s = min(interval_s, *(_scaling_interval(interest) for interest in interests.values()), float("inf"))
    calm = max(interval_s, min(INTERVAL_SECONDS_MAX, CALM_FACTOR * all_cpu_s))
    return min(calm, max(HURRY_SECONDS, _seconds_to_wake(groups.values(), seen.observed_at)))


def _scaling_interval(interest: GroupInterest) -> float:
    """Longest pause that the scaling of a group can do with."""
    if not interest.scaled:
        return float("inf")
    return ASLEEP_SECONDS if interest.asleep else SCALED_SECONDS


def _seconds_to_wake(groups: Iterable[GroupObservation | None], now: float) -> float:
    """Until the next record becomes due that nobody is there to handle; workers that are there need no poll for it."""
    flows = (group.retry for group in groups if group is not None and group.retry is not None)
    due = (flow.next_due_at for flow in flows if not flow.members and flow.next_due_at is not None)
    return min(due, default=float("inf")) - now


@dataclass(slots=True)
class ObserverMemory:
    """The memory of one observer between polls; `last` is the newest observation, `notified` the newest without doubt.

    `begun` is the observation to begin with, which counts for parts that have not been polled. At `survey_at` the
    facts of the whole cluster are asked for again; until `rest_until` nothing is polled (both in monotonic seconds).
    """

    begun: ClusterObservation | None = None
    last: ClusterObservation | None = None
    notified: ClusterObservation | None = None
    parts: GroupParts = field(default_factory=GroupParts)
    cluster: ClusterMemory = field(default_factory=ClusterMemory)
    survey_at: float = float("-inf")
    rest_until: float = float("-inf")
    _untidy: bool = False
    _failures: int = 0
    _failing_since: float = 0.0

    def is_proven(self, began: float, now: float) -> bool:
        """Count a poll that failed as a whole; True if there were enough to say that the cluster does not answer.

        Times are monotonic seconds.
        """
        if not self._failures:
            self._failing_since = began
        self._failures += 1
        return self._failures >= DOUBT_POLLS or now - self._failing_since >= DOUBT_SECONDS

    def change(self, changes: Mapping[str, GroupInterest | None]) -> None:
        """Take in changed interests; a group that is of no interest any more is not observed any more."""
        self.parts.change(changes)
        self._untidy = True
        gone = {group_id for group_id, interest in changes.items() if interest is None}
        if gone:
            self.last, self.notified = _without(self.last, gone), _without(self.notified, gone)

    def tidy(self) -> None:
        """Forget topics and groups that are of no interest any more; not after each change, as that walks over all."""
        if not self._untidy:
            return
        self._untidy = False
        interests = [interest for part in self.parts for interest in part.interests.values()]
        retry = (interest.retry.group_id for interest in interests if interest.retry is not None)
        groups = {*(interest.group_id for interest in interests), *retry}
        known = self.cluster.coordinators
        self.cluster.coordinators = {group_id: node_id for group_id, node_id in known.items() if group_id in groups}
        named = (topic for interest in interests for topic in interest.named_topics)
        matching = (topic for part in self.parts for names in part.matches.values() for topic in names)
        self.cluster.logs.retain({*named, *matching, *self._committed_topics(interests)})
        if all(part.turn for part in self.parts):
            self.begun = None
        if self.last is not None:
            self.last = self._with_topics(self.last)

    def doubt_topics(self, topics: frozenset[str]) -> None:
        """Have the groups of topics polled, of which nothing counts as known; without topics, all groups."""
        if OFFSETS_TOPIC in topics:
            self.cluster.configs.topic = None
            self.survey_at = float("-inf")
        if not topics:
            self.parts.all_due()
        for part in self.parts.reading(topics):
            part.memory.flow.forget(topics)
            part.wish()

    def merge(self, part: GroupPart, seen: ClusterObservation, seconds: float) -> Observed:
        """Put the observation of a part into that of the whole; returns what is new."""
        self._failures = 0
        last, before, topics, matches = self.last, self.notified, part.topics, part.matches
        changed = self.parts.take(part, seen.topics, seen.matches)
        if changed or last is None or not _shows(last, seen):
            # Another part may have found the same change before: this part's groups have not heard of it.
            topics = earlier(seen.topics, last.topics if last is not None else {}, topics)
            matches = earlier(seen.matches, last.matches if last is not None else {}, matches)
            seen = self._with_topics(seen)
            self._untidy = True
        else:
            seen = replace(seen, topics=last.topics, matches=last.matches)
            topics, matches = seen.topics, seen.matches
        self.last = replace(seen, groups={**last.groups, **seen.groups} if last is not None else seen.groups)
        if before is not None:
            before = replace(before, topics=topics, matches=matches)
        observed = compare(before, self.last, part.interests, seconds, first=part.unheard)
        self.notified, part.unheard = self.last, False
        return observed

    def merge_states(self, seen: ClusterObservation) -> Observed:
        """Take in what a state poll found; returns what is new."""
        before = self.last.groups if self.last is not None else {}
        changed = {group_id: True for group_id, group in seen.groups.items() if before.get(group_id) is not group}
        self.last = self.notified = seen
        return Observed(observation=seen, groups=changed)

    def fail_part(self, part: GroupPart, error: NetError, now: float) -> Observed:
        """Take in a failed poll of a part of a cluster that others have seen; returns what is new. `now` is epoch
        seconds."""
        assert self.last is not None, "others have seen it"
        known = self.last.groups
        groups = {group_id: unobserved(group_id, known.get(group_id), error.reason, now) for group_id in part.interests}
        self.last = replace(self.last, groups={**known, **groups})
        observed = compare(self.notified, self.last, part.interests, None)
        self.notified = self.last
        return observed

    def fail(self, seen: ClusterObservation, seconds: float) -> Observed:
        """Take in a failed poll; returns what is new."""
        self.last = seen
        observed = compare(self.notified, seen, {}, seconds)
        if not seen.doubtful:
            self.notified = seen
            for part in self.parts:
                part.unheard = True
        return observed

    def _with_topics(self, seen: ClusterObservation) -> ClusterObservation:
        """The observation with what all parts have seen of topics; of those that were not polled, with what was
        known to begin with."""
        begun = self.begun if any(not part.turn for part in self.parts) else None
        topics, matches = (begun.topics, begun.matches) if begun is not None else ({}, {})
        return replace(seen, topics={**topics, **self.parts.topics()}, matches={**matches, **self.parts.matches()})

    def _committed_topics(self, interests: Iterable[GroupInterest]) -> Iterator[str]:
        """The topics of groups that name none: those that they have commits for."""
        groups = self.last.groups if self.last is not None else {}
        unnamed = (interest.group_id for interest in interests if not interest.topics and interest.pattern is None)
        return (topic for group_id in unnamed if group_id in groups for topic, _ in groups[group_id].committed)


def _shows(whole: ClusterObservation, part: ClusterObservation) -> bool:
    """True if topics are in the whole observation as in that of a part."""
    return whole.topics.items() >= part.topics.items() and whole.matches.items() >= part.matches.items()


def _without(seen: ClusterObservation | None, gone: AbstractSet[str]) -> ClusterObservation | None:
    if seen is None:
        return None
    return replace(seen, groups={group_id: group for group_id, group in seen.groups.items() if group_id not in gone})
