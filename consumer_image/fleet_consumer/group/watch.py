"""Watch of a member's topics: existence, partition counts, racks, and the time of the next Metadata request.

Every member watches its own topics, to report missing ones, or to match its pattern. The leader watches those of the
whole group and compares them with its plan: a topic that gained partitions, or whose replicas moved to other racks,
needs a new assignment.

A response with less than is known is doubted before it counts. Any broker may answer Metadata. One that lags, or has
just started, reports that a topic does not exist; one that refuses reports nothing about it. Neither is a count of 0: a
plan made with that would take all partitions of the topic from the whole group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fleet_consumer.contract.naming import TopicPattern, pattern_matches
from fleet_consumer.group import errors, reasons
from fleet_consumer.group.metadata import BrokerRacks, Racks, partition_counts, topics_request
from fleet_consumer.group.timing import NEVER, Backoff
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe, is_retriable
from fleet_consumer.wire.topics import MetadataRequest, MetadataResponse

GONE_AFTER_S = 3.0
"""Time for which brokers must report that a topic is gone, or smaller than before, until that counts."""

MISSES_BELIEVED = 2
"""Responses in a row without a topic until it counts as absent at the time of subscribing; each comes from another
broker, if there are several."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One Metadata response compared with earlier knowledge.

    `counts` has the topics with partitions, by this response or, where it refuses, by earlier ones. `doubtful` topics
    may have more partitions than the response shows. `denied` topics may not be described by the principal. `hidden`
    are all topics about which the response shows nothing, `denied` included.
    """

    counts: Mapping[str, int]
    doubtful: frozenset[str]
    denied: frozenset[str]
    hidden: frozenset[str]


def sight(
    response: MetadataResponse, topics: Collection[str], known: Mapping[str, int], claimed: Mapping[str, int]
) -> Sighting:
    """Read a response about `topics`.

    `known` are counts of earlier responses. `claimed` counts come from other members, which may be wrong or hostile:
    they can raise a doubt, but never replace a count.
    """
    seen, failures = partition_counts(response)
    counts: dict[str, int] = {}
    doubtful, hidden = set(), set()
    for topic in topics:
        code = failures.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic in seen:
            counts[topic] = seen[topic]
        elif code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            hidden.add(topic)
            if topic in known:
                counts[topic] = known[topic]
        expected = max(known.get(topic, 0), claimed.get(topic, 0))
        if is_retriable(code) if topic in hidden else counts.get(topic, 0) < expected:
            doubtful.add(topic)
    denied = frozenset(topic for topic in hidden if failures[topic] == ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return Sighting(counts, frozenset(doubtful), denied, frozenset(hidden))


class Doubts:
    """Start times of doubts about topics."""

    def __init__(self, patience_s: float = GONE_AFTER_S) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}

    def remaining(self, sighting: Sighting, now: float) -> frozenset[str]:
        """The topics that must be looked up again before the response counts."""
        self._since = {topic: self._since.get(topic, now) for topic in sighting.doubtful}
        return frozenset(topic for topic, since in self._since.items() if now < since + self._patience_s)


class FirstSight:
    """Partitions that existed when this member subscribed to their topic; later ones begin at their beginning.

    A topic that brokers refuse to show, or that only one response lacks, is not new: a group that reads from the latest
    offsets would replay all of it. Its partitions count as old until a response decides.
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._misses: dict[str, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._by_pattern = False
        self._informed = False

    @property
    def undecided(self) -> bool:
        """True while another response is needed to decide if a topic is new."""
        return any(misses for misses in self._misses.values())

    def subscribe(self, *, by_pattern: bool) -> None:
        """Begin with other topics; their first response is still to come."""
        self._by_pattern, self._informed = by_pattern, False
        self._topics, self._misses = frozenset(), {}

    def answered(self, topics: frozenset[str], sighting: Sighting) -> None:
        """Take a response about this member's topics; by a pattern, those that match and exist."""
        began, self._informed, self._topics = self._informed, True, topics
        misses: dict[str, int] = {}
        for topic in topics - self._first.keys():
            if topic in sighting.counts:
                # The first count of a named topic is old; of a pattern, topics missing from the first response are new.
                self._first[topic] = 0 if began and self._by_pattern else sighting.counts[topic]
            elif topic in sighting.hidden:
                misses[topic] = 0
            elif self._misses.get(topic, 0) + 1 >= MISSES_BELIEVED:
                self._first[topic] = 0
            else:
                misses[topic] = self._misses.get(topic, 0) + 1
        self._misses = misses

    def appeared(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of `partitions` that did not exist at the subscription; none before the first response.

        They start at the beginning: records written before the member knew of them must not be skipped.
        """
        if not self._informed:
            return frozenset()
        return frozenset(
            part
            for part in partitions
            if part.topic not in self._misses and part.partition >= self._first.get(part.topic, 0)
        )


MISSING_TOPIC_RECHECK_S = 2.0
"""Wait between lookups of a topic that does not exist yet; Java asks every second or faster."""

DOUBT_RECHECK_S = 0.5
"""Wait before another broker is asked about a doubtful topic."""

LEAD_RECHECK_S = 2.0
"""Wait before a leader verifies the counts of its plan: a broker that lags may have answered."""


class MetadataWatch:
    """Topics as one member knows them. `rack` is the member's own; without one, racks are no reason to rebalance."""

    def __init__(self, max_age_s: float, backoff: Backoff, rack: str | None = None) -> None:
        self._max_age_s = max_age_s
        self._backoff = backoff
        self._rack = rack
        self._pattern: TopicPattern | None = None
        self._group: frozenset[str] = frozenset()
        self._planned: dict[str, int] = {}
        self._planned_racks: dict[str, Racks] = {}
        self.first_sight = FirstSight()
        self._doubts = Doubts()
        self._informed = False
        self.own: frozenset[str] = frozenset()
        """This member's topics: named, or existing and matching the pattern."""
        self.counts: dict[str, int] = {}
        """Known partition counts of the topics that this member or its group reads."""
        self.denied: frozenset[str] = frozenset()
        """Those of them that the principal may not describe, by the last response."""
        self.racks = BrokerRacks()
        self.error: errors.ConsumerError | None = None
        self.next_at = NEVER
        self.in_flight = False

    def subscribe(self, topics: Iterable[str], pattern: TopicPattern | None = None) -> None:
        """Watch these topics of this member, or with a pattern all that match."""
        self.own = frozenset(topics)
        self._pattern = pattern
        self.first_sight.subscribe(by_pattern=pattern is not None)
        self._informed = False
        self.error = None
        self.refresh()

    def refresh(self) -> None:
        """Make the next request due at once."""
        self.next_at = NEVER

    def lead(
        self, topics: frozenset[str], counts: Mapping[str, int], racks: Mapping[str, Racks] | None, now: float
    ) -> None:
        """Watch the group's topics as its leader, which has planned with these counts (and racks)."""
        self._group = topics
        self.counts = {topic: count for topic, count in self.counts.items() if topic not in topics} | dict(counts)
        self._planned = {topic: counts.get(topic, 0) for topic in topics}
        self._planned_racks = dict(racks or {})
        self.next_at = min(self.next_at, now + LEAD_RECHECK_S)

    def lead_old_plan(self, topics: frozenset[str]) -> None:
        """Watch the group's topics as a leader by a plan that it has not made (KIP-814).

        Until `old_plan_had` brings the counts of that plan, the counts at the subscription stand in for them, and for
        other topics those of the next response.
        """
        self._group = topics
        self._planned_racks = {}
        self._planned = {topic: self.counts.get(topic, 0) for topic in self.own} if self._informed else {}

    def old_plan_had(self, planned: Mapping[str, int]) -> None:
        """Take the counts of the plan that this member leads by and has not made."""
        self._planned = {topic: planned.get(topic, 0) for topic in self._group}
        self.refresh()

    def follow(self) -> None:
        """Watch only this member's own topics: another member leads."""
        self._group = frozenset()
        self._planned = {}
        self._planned_racks = {}

    def due(self, now: float) -> bool:
        wanted = self._pattern is not None or bool(self.own or self._group)
        return not self.in_flight and wanted and now >= self.next_at

    def request(self) -> MetadataRequest:
        return topics_request(self.own | self._group if self._pattern is None else None)

    def answered(self, response: MetadataResponse, now: float) -> str | None:
        """Take a response to `request`. Returns the reason for the leader to plan again, None while its plan holds."""
        self.in_flight = False
        self._informed = True
        self._backoff.reset()
        self.racks.learn(response)
        topics = self.own | self._group
        if self._pattern is not None:
            # Known topics stay among them until they are surely gone.
            topics = self._group | frozenset(
                topic
                for topic in (*self.counts, *(each.name or "" for each in response.topics))
                if pattern_matches(self._pattern, topic)
            )
        sighting = sight(response, topics, self.counts, self._planned)
        doubted = self._doubts.remaining(sighting, now)
        counts = {topic: count for topic, count in sighting.counts.items() if topic not in doubted}
        self.counts = counts | {topic: self.counts[topic] for topic in doubted if topic in self.counts}
        if self._pattern is not None:
            self.own = frozenset(topic for topic in self.counts if pattern_matches(self._pattern, topic))
        self.first_sight.answered(self.own, sighting)
        self.denied = sighting.denied
        self.error = self._visible_error(response)
        self._schedule(sighting, doubted, now)
        return self._outdated(response, sighting, doubted)

    def _schedule(self, sighting: Sighting, doubted: frozenset[str], now: float) -> None:
        """Set the next request: early for missing and doubtful topics."""
        wait_s = self._max_age_s
        if self.own - self.counts.keys() or sighting.hidden:
            wait_s = min(wait_s, MISSING_TOPIC_RECHECK_S)
        if doubted or self.first_sight.undecided:
            wait_s = min(wait_s, DOUBT_RECHECK_S)
        self.next_at = now + wait_s

    def _outdated(self, response: MetadataResponse, sighting: Sighting, doubted: frozenset[str]) -> str | None:
        """The reason why the leader's plan is outdated. Unknown counts are no reason."""
        for topic in sorted(self._group):
            if topic in doubted or (topic in sighting.hidden and topic not in self.counts):
                continue
            planned, count = self._planned.setdefault(topic, self.counts.get(topic, 0)), self.counts.get(topic, 0)
            if planned != count:
                return f"{reasons.METADATA_CHANGED}: topic {topic} went from {planned} to {count} partitions"
        racks = self.racks.of_topics(response, self._group) if self._rack is not None else {}
        for topic in sorted(racks):
            if self._planned_racks.setdefault(topic, racks[topic]) != racks[topic]:
                return f"{reasons.METADATA_CHANGED}: replicas of topic {topic} are in other racks"
        return None

    def unanswered(self, now: float, wait_s: float = 0.0) -> None:
        """Retry after the backoff, or after `wait_s` if that is longer."""
        self.in_flight = False
        self.next_at = now + max(self._backoff.next(), wait_s)

    def _visible_error(self, response: MetadataResponse) -> errors.ConsumerError | None:
        _, failures = partition_counts(response)
        if self.denied:
            return topics_denied(self.denied)
        named = ", ".join(f"{topic} ({describe(failures[topic])})" for topic in sorted(self.own & failures.keys()))
        if not named:
            return None
        return errors.TopicMissing(f"subscribed topics do not exist: {named}; create them, they are picked up then")


def topics_denied(topics: Iterable[str]) -> errors.TopicAuthorizationFailed:
    """The error for topics that a member may not describe. A leader that may not assigns none of their partitions."""
    return errors.TopicAuthorizationFailed(
        f"topics {', '.join(sorted(topics))}: not authorized; allow the principal Describe and Read on them"
    )
