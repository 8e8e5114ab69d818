"""Keeps the state of one observer: the group parts of a cluster, their poll times, and the last observation. Pure.

A single poll of all groups would give no result before its slowest response. Therefore the groups are divided into
group parts of bounded weight: a poll of one part takes a bounded time, however many groups there are. A group stays in
its part, so that the part's requests and responses are the same in each poll and can be reused.

After a failed poll, a different part is polled next, so that consecutive failures prove that the cluster is the cause.
A poll of a part with a topic pattern requests the names of all topics. If only such polls fail, because somebody has
created too many topics, the groups of other parts are still observed.

Decision: docs/decisions/0048-thousands-of-groups.md.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.net import NetError
from fleet_operator.observe.batches import OFFSETS_TOPIC
from fleet_operator.observe.changes import Observed, compare
from fleet_operator.observe.group_aggregation import unobserved
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, TopicObservation

WEIGHT_MAX: Final = 400
"""Largest number of topics and groups in a group part. With a dozen partitions per topic, this is about 4,000 offsets
per poll."""
HURRY_SECONDS: Final = 1.0
"""Poll interval in seconds while a group has not been observed yet. It is also the shortest interval with which a poll
is timed for a record that becomes due soon, in a retry flow without workers."""
PART_REST_FACTOR: Final = 19.0
"""Shortest pause between polls of a group part with new groups or changed topics, as a multiple of the CPU time of the
part's last poll. Without this pause, each of thousands of new groups would cause a poll of its whole part."""
HURRY_MAX_SECONDS: Final = 120.0
"""Longest time in seconds for which an unobserved group shortens poll intervals. Such a group may never exist."""
CALM_FACTOR: Final = 20.0
"""Shortest interval between polls of a group part, as a multiple of the CPU time of one poll of every part."""
SCALED_SECONDS: Final = 10.0
"""Longest poll interval in seconds for a scaled group, because rates need several samples in a window."""
ASLEEP_SECONDS: Final = 2.0
"""Longest poll interval in seconds for a scaled group without workers, because its first new record is noticed only by
a poll."""
INTERVAL_SECONDS_MAX: Final = 12.0
"""Longest poll interval in seconds that CALM_FACTOR may cause, because decisions need recent observations."""
OUTAGE_POLLS: Final = 3
OUTAGE_SECONDS: Final = 15.0
"""A cluster counts as unreachable after OUTAGE_POLLS consecutive failed polls, or if all polls have failed for
OUTAGE_SECONDS."""


@dataclass(slots=True, eq=False)
class GroupPart:
    """Groups of a cluster that are polled together, their topics, and their poll times (monotonic seconds).

    - `cpu_s`: CPU time of the last poll in seconds. `rest_until`: end of the pause after the last poll; before this
      time, changes of subscriptions or topics cause no poll.
    - `asked`, `answered`, `failed`: sequence numbers of this part's last poll, of its last successful poll, and of its
      last poll if that poll failed. 0 if there is no such poll. The polls of all parts are numbered in one sequence.
    - `unheard`: the listener has not been notified of these groups since the cluster became reachable.
    - `unseen_since`: the groups that the last poll could not observe, each with the time of the first of these failures
      in a row.
    - `named`: for each topic, the number of groups whose subscription names it. A change of a topic in `named` makes a
      poll of this part due.
    """

    patterns: bool
    subscriptions: dict[str, GroupSubscription] = field(default_factory=dict)
    named: Counter[str] = field(default_factory=Counter)
    memory: PartMemory = field(default_factory=PartMemory)
    topics: Mapping[str, TopicObservation] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    due_at: float = float("-inf")
    rest_until: float = float("-inf")
    cpu_s: float = 0.0
    asked: int = 0
    answered: int = 0
    failed: int = 0
    unheard: bool = True
    weight: int = 0
    unseen_since: dict[str, float] = field(default_factory=dict)

    def put(self, subscription: GroupSubscription) -> None:
        self.drop(subscription.group_id)
        self.subscriptions[subscription.group_id] = subscription
        self.named.update(subscription.named_topics)
        self.weight += _weight(subscription)
        self.request_poll()

    def request_poll(self) -> None:
        """Make the next poll due now or, during the pause after the last poll, at the end of the pause."""
        self.due_at = min(self.due_at, self.rest_until)

    def rest(self, ended: float, cpu_s: float) -> None:
        """Record the end and the CPU time of a poll, and start the pause after it."""
        self.cpu_s, self.rest_until = cpu_s, ended + PART_REST_FACTOR * cpu_s

    def drop(self, group_id: str) -> None:
        gone = self.subscriptions.pop(group_id, None)
        if gone is None:
            return
        self.weight -= _weight(gone)
        topics = gone.named_topics
        self.named.subtract(topics)
        for topic in topics:
            if not self.named[topic]:
                del self.named[topic]


class GroupParts:
    """All groups of one observer, divided into parts. Without groups, one empty part remains, whose polls read the
    facts about the cluster itself."""

    def __init__(self) -> None:
        self._parts = [GroupPart(patterns=False)]
        self._of: dict[str, GroupPart] = {}
        self._polls = 0
        self._last_good = 0

    def __iter__(self) -> Iterator[GroupPart]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._of)

    def change(self, changes: Mapping[str, GroupSubscription | None]) -> None:
        for group_id, subscription in changes.items():
            part = self._of.get(group_id)
            if part is not None and (subscription is None or part.patterns != (subscription.pattern is not None)):
                part.drop(group_id)
                del self._of[group_id]
                part = None
            if subscription is not None:
                part = part or self._part_with_room(subscription)
                part.put(subscription)
                self._of[group_id] = part
        self._parts = [part for part in self._parts if part.subscriptions] or [GroupPart(patterns=False)]

    def due(self, now: float) -> GroupPart:
        """The part to poll next: among due parts, the part that has not been polled for the longest time. So a part
        that is always due, because of many changes or failed polls, does not starve the others."""
        due = [part for part in self._parts if part.due_at <= now]
        return min(due, key=lambda part: part.asked) if due else min(self._parts, key=lambda part: part.due_at)

    def record_poll(
        self, part: GroupPart, topics: Mapping[str, TopicObservation], matches: Mapping[str, tuple[str, ...]]
    ) -> bool:
        """Record the topics that a successful poll has found; return True if they differ from the previous topics."""
        self._polls += 1
        part.asked = part.answered = self._last_good = self._polls
        part.failed = 0
        as_before = (part.topics, part.matches) == (topics, matches)
        if not as_before:
            part.topics, part.matches = topics, matches
        return not as_before

    def fail(self, part: GroupPart) -> bool:
        """Record a failed poll of a part; return True if the cause is this part and not the cluster. This is so if
        polls of other parts have succeeded since this part's previous failure. For example, a topic pattern in this
        part may be the cause: its polls request all topics, which may be too many for one poll."""
        self._polls += 1
        own = 0 < part.failed < self._last_good
        part.asked = part.failed = self._polls
        return own

    def all_due(self) -> None:
        for part in self._parts:
            part.due_at = float("-inf")

    def naming(self, topics: frozenset[str]) -> Iterator[GroupPart]:
        """The parts with a group whose subscription names at least one of these topics."""
        return (part for part in self._parts if not part.named.keys().isdisjoint(topics))

    @property
    def cpu_s(self) -> float:
        return sum(part.cpu_s for part in self._parts)

    def _part_with_room(self, subscription: GroupSubscription) -> GroupPart:
        patterns, weight = subscription.pattern is not None, _weight(subscription)
        for part in self._parts:
            if part.patterns == patterns and (part.weight + weight <= WEIGHT_MAX or not part.subscriptions):
                return part
            if not part.subscriptions:  # the first part, which has no groups yet
                part.patterns = patterns
                return part
        made = GroupPart(patterns=patterns)
        self._parts.append(made)
        return made


def _weight(subscription: GroupSubscription) -> int:
    return 1 + len(subscription.named_topics)


def pause_s(
    part: GroupPart, interval_s: float, seen: ClusterObservation, now: float, *, all_cpu_s: float = 0.0
) -> float:
    """Seconds until the next poll of a part; `all_cpu_s` is the CPU time of one poll of every part. Rebalances do not
    shorten this time, because state polls observe them every second."""
    subscriptions = part.subscriptions
    groups = {group_id: seen.groups.get(group_id) for group_id in subscriptions}
    unseen = {group_id for group_id, group in groups.items() if group is None or group.error is not None}
    part.unseen_since = {group_id: part.unseen_since.get(group_id, now) for group_id in unseen}
    if any(now - since < HURRY_MAX_SECONDS for since in part.unseen_since.values()):
        return min(interval_s, HURRY_SECONDS)
    scaled = (each for each in subscriptions.values() if each.scaled)
    interval_s = min((interval_s, *(ASLEEP_SECONDS if each.asleep else SCALED_SECONDS for each in scaled)))
    calm = max(interval_s, min(INTERVAL_SECONDS_MAX, CALM_FACTOR * all_cpu_s))
    return min(calm, max(HURRY_SECONDS, _seconds_to_wake(groups.values(), seen.observed_at)))


def _seconds_to_wake(groups: Iterable[GroupObservation | None], now: float) -> float:
    """Seconds until the next record becomes due in a retry flow that has no workers."""
    flows = (group.retry for group in groups if group is not None and group.retry is not None)
    due = (flow.next_due_at for flow in flows if not flow.members and flow.next_due_at is not None)
    return min(due, default=float("inf")) - now


@dataclass(slots=True)
class ObserverMemory:
    """The state of one observer between polls.

    - `last`: the newest observation. At first, this is the last observation of an earlier observer, or None.
    - `notified`: the newest observation of which the listener was notified; it has no suspected outage.
    - `survey_at`: the first poll after this time also reads the facts about the cluster itself.
    - `rest_until`: there are no polls before this time.

    Times are monotonic seconds.
    """

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
        """Count a failed poll; returns True if the failures prove an outage of the cluster. Times are monotonic
        seconds."""
        if not self._failures:
            self._failing_since = began
        self._failures += 1
        return self._failures >= OUTAGE_POLLS or now - self._failing_since >= OUTAGE_SECONDS

    def change(self, changes: Mapping[str, GroupSubscription | None]) -> None:
        """Set changed subscriptions, and drop the observations of groups that no longer have a subscription."""
        self.parts.change(changes)
        self._untidy = True
        gone = {group_id for group_id, subscription in changes.items() if subscription is None}
        if gone:
            self.last, self.notified = _without(self.last, gone), _without(self.notified, gone)

    def tidy(self) -> None:
        """Drop the data of topics and groups without a subscription. Do not call this method at each change, because it
        iterates over all groups and topics."""
        if not self._untidy:
            return
        self._untidy = False
        subscriptions = [subscription for part in self.parts for subscription in part.subscriptions.values()]
        retry = (subscription.retry.group_id for subscription in subscriptions if subscription.retry is not None)
        groups = {*(subscription.group_id for subscription in subscriptions), *retry}
        known = self.cluster.coordinators
        self.cluster.coordinators = {group_id: node_id for group_id, node_id in known.items() if group_id in groups}
        named = (topic for subscription in subscriptions for topic in subscription.named_topics)
        matching = (topic for part in self.parts for names in part.matches.values() for topic in names)
        self.cluster.logs.retain({*named, *matching, *self._committed_topics(subscriptions)})
        if self.last is not None:
            self.last = self._with_topics_of(self.last, self.last)

    def invalidate_topics(self, topics: frozenset[str]) -> None:
        """Discard the settings and log start offsets of topics, and make the polls of their groups due. Without topics,
        make the polls of all groups due."""
        if OFFSETS_TOPIC in topics:
            self.cluster.configs.topic = None
            self.survey_at = float("-inf")
        if not topics:
            self.parts.all_due()
        for part in self.parts.naming(topics):
            part.memory.flow.invalidate_topics(topics)
            part.request_poll()

    def merge(self, part: GroupPart, seen: ClusterObservation, seconds: float) -> Observed:
        """Merge the observation of a part into the observation of the cluster. Return the changes.

        If several parts have the same topic, the last successful poll counts. If this poll finds such a topic changed,
        the listener is notified now of the groups of all these parts. It cannot be left to the polls of the other
        parts: by then, the change is already in the merged observation.
        """
        self._failures = 0
        last, before, polled = self.last, self.notified, dict(part.subscriptions)
        changed = self.parts.record_poll(part, seen.topics, seen.matches)
        if last is not None:
            if changed or not _shows(last, seen):
                polled |= self._others_with_changes(part, last, seen)
                seen = self._with_topics_of(last, seen)
                self._untidy = True
            else:
                seen = replace(seen, topics=last.topics, matches=last.matches)
            seen = replace(seen, groups={**last.groups, **seen.groups})
            if before is not None:
                before = replace(before, topics=last.topics, matches=last.matches)
        observed = compare(before, seen, polled, seconds, first=part.subscriptions if part.unheard else ())
        self.last = self.notified = seen
        part.unheard = False
        return observed

    def merge_states(self, seen: ClusterObservation) -> Observed:
        before = self.last.groups if self.last is not None else {}
        changed = {group_id: True for group_id, group in seen.groups.items() if before.get(group_id) is not group}
        self.last = self.notified = seen
        return Observed(observation=seen, groups=changed)

    def fail_part(self, part: GroupPart, error: NetError, now: float) -> Observed:
        """Record a failed poll of one part of a reachable cluster; return the changes. `now` is epoch seconds."""
        assert self.last is not None, "polls of other parts have succeeded"
        known = self.last.groups
        groups = {
            group_id: unobserved(group_id, known.get(group_id), error.reason, now) for group_id in part.subscriptions
        }
        self.last = replace(self.last, groups={**known, **groups})
        observed = compare(self.notified, self.last, part.subscriptions, None)
        self.notified = self.last
        return observed

    def fail(self, seen: ClusterObservation, seconds: float) -> Observed:
        self.last = seen
        observed = compare(self.notified, seen, {}, seconds)
        if not seen.unconfirmed:
            self.notified = seen
            for part in self.parts:
                part.unheard = True
        return observed

    def _others_with_changes(
        self, part: GroupPart, last: ClusterObservation, seen: ClusterObservation
    ) -> dict[str, GroupSubscription]:
        """The groups of the other parts that have a changed topic or pattern. A part that is `unheard` is left out,
        because its next successful poll notifies all its groups."""
        topics = {name for name, topic in seen.topics.items() if last.topics.get(name) != topic}
        patterns = {text for text, names in seen.matches.items() if last.matches.get(text) != names}
        return {
            group_id: subscription
            for other in self.parts
            if other is not part and not other.unheard
            if not (topics.isdisjoint(other.topics) and topics.isdisjoint(other.named))
            or not patterns.isdisjoint(other.matches)
            for group_id, subscription in other.subscriptions.items()
        }

    def _with_topics_of(self, last: ClusterObservation, seen: ClusterObservation) -> ClusterObservation:
        """Add the topics of an earlier observation. After all parts have been polled, topics that no part has are left
        out."""
        topics, matches = {**last.topics, **seen.topics}, {**last.matches, **seen.matches}
        if all(part.answered for part in self.parts):
            names = {name for part in self.parts for name in part.topics}
            patterns = {text for part in self.parts for text in part.matches}
            topics = {name: topic for name, topic in topics.items() if name in names}
            matches = {text: found for text, found in matches.items() if text in patterns}
        return replace(seen, topics=topics, matches=matches)

    def _committed_topics(self, subscriptions: Iterable[GroupSubscription]) -> Iterator[str]:
        """For subscriptions without source topics, yield the topics for which the group has commits."""
        groups = self.last.groups if self.last is not None else {}
        unnamed = (
            subscription.group_id
            for subscription in subscriptions
            if not subscription.topics and subscription.pattern is None
        )
        return (topic for group_id in unnamed if group_id in groups for topic, _ in groups[group_id].committed)


def _without(seen: ClusterObservation | None, gone: AbstractSet[str]) -> ClusterObservation | None:
    if seen is None:
        return None
    return replace(seen, groups={group_id: group for group_id, group in seen.groups.items() if group_id not in gone})


def _shows(last: ClusterObservation, seen: ClusterObservation) -> bool:
    return last.topics.items() >= seen.topics.items() and last.matches.items() >= seen.matches.items()
