"""Watch of a member's topics: their existence, partition counts and racks, and the time of the next Metadata request.

Every member watches its subscribed topics, to report missing topics and to match its pattern. The leader watches the
topics of all members and compares them with its plan. If a topic gained partitions, or its replicas moved to other
racks, the group needs a new assignment.

Any broker may answer Metadata, so a response with fewer topics or partitions than earlier responses must be confirmed.
A broker that lags or has just started may report an existing topic as unknown. A topic with another error in the
response may also exist. In both cases, a plan with 0 partitions would revoke the topic's partitions from all members.

Decision: docs/decisions/0020-unconfirmed-metadata.md.
"""

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
"""Seconds for which all responses must lack a known topic, or show fewer partitions than known, before this change is
accepted."""

MISSES_CONFIRM = 2
"""Number of consecutive responses that must lack a topic before the topic counts as one that did not exist when the
member subscribed. In a cluster of several brokers, consecutive responses come from different brokers."""


@dataclass(frozen=True, slots=True)
class MetadataView:
    """A Metadata response combined with earlier responses.

    - `counts`: partition counts, keyed by topic. A topic with an error in this response keeps its earlier count.
    - `unconfirmed`: topics that may have more partitions than this response shows.
    - `denied`: topics that the principal may not describe.
    - `hidden`: topics about which this response says nothing, because it has an error other than
      UNKNOWN_TOPIC_OR_PARTITION for them. Includes `denied`.
    """

    counts: Mapping[str, int]
    unconfirmed: frozenset[str]
    denied: frozenset[str]
    hidden: frozenset[str]


def view_of(
    response: MetadataResponse, topics: Collection[str], known: Mapping[str, int], claimed: Mapping[str, int]
) -> MetadataView:
    """Evaluate a response about `topics`.

    `known` counts come from earlier responses. `claimed` counts come from other members, which may be wrong or hostile.
    So a claimed count can make a topic unconfirmed, but never replaces a count from a response.
    """
    seen, failures = partition_counts(response)
    counts: dict[str, int] = {}
    unconfirmed, hidden = set(), set()
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
            unconfirmed.add(topic)
    denied = frozenset(topic for topic in hidden if failures[topic] == ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return MetadataView(counts, frozenset(unconfirmed), denied, frozenset(hidden))


class UnconfirmedTopics:
    """Topics for which the last Metadata response had a retriable error, or fewer partitions than known. For each
    topic, the time of the first of these consecutive responses is kept."""

    def __init__(self, patience_s: float = GONE_AFTER_S) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}

    def remaining(self, view: MetadataView, now: float) -> frozenset[str]:
        """Return the topics whose metadata must be refreshed before this response is used."""
        self._since = {topic: self._since.get(topic, now) for topic in view.unconfirmed}
        return frozenset(topic for topic, since in self._since.items() if now < since + self._patience_s)


class InitialPartitions:
    """Partitions that existed when this member subscribed to their topic. Later partitions are read from their
    beginning.

    It is undecided whether a topic existed while responses have an error for the topic, or only one response lacked it.
    Until later responses decide, all partitions of the topic count as old. Otherwise a group with the reset policy
    `latest` would replay the whole topic.
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._misses: dict[str, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._by_pattern = False
        self._informed = False

    @property
    def undecided(self) -> bool:
        """True while another response is needed to decide whether a topic is new."""
        return any(misses for misses in self._misses.values())

    def subscribe(self, *, by_pattern: bool) -> None:
        """Discard the topics of the previous subscription; the next response is the first about the new topics."""
        self._by_pattern, self._informed = by_pattern, False
        self._topics, self._misses = frozenset(), {}

    def answered(self, topics: frozenset[str], view: MetadataView) -> None:
        """Apply a response about this member's topics. With a pattern, `topics` are the existing topics that match the
        pattern."""
        began, self._informed, self._topics = self._informed, True, topics
        misses: dict[str, int] = {}
        for topic in topics - self._first.keys():
            if topic in view.counts:
                # The partitions in the first count of a named topic are old. With a pattern, a topic that the first
                # response lacked is new.
                self._first[topic] = 0 if began and self._by_pattern else view.counts[topic]
            elif topic in view.hidden:
                misses[topic] = 0
            elif self._misses.get(topic, 0) + 1 >= MISSES_CONFIRM:
                self._first[topic] = 0
            else:
                misses[topic] = self._misses.get(topic, 0) + 1
        self._misses = misses

    def appeared(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those of `partitions` that did not exist when the member subscribed; none before the first response.
        They are read from their beginning, because records may have been written before the member knew the
        partitions."""
        if not self._informed:
            return frozenset()
        return frozenset(
            part
            for part in partitions
            if part.topic not in self._misses and part.partition >= self._first.get(part.topic, 0)
        )


MISSING_TOPIC_RECHECK_S = 2.0
"""Seconds between lookups of a topic that does not exist yet; Java looks such a topic up at least every second."""

UNCONFIRMED_RECHECK_S = 0.5
"""Seconds before another broker is asked about an unconfirmed topic."""

LEAD_RECHECK_S = 2.0
"""Seconds after which a leader verifies the partition counts of its plan; a lagging broker may have reported them."""


class MetadataWatch:
    """The topics that one member watches. `rack` is the member's rack. If it is None, a move of replicas to other racks
    causes no rebalance."""

    def __init__(self, max_age_s: float, backoff: Backoff, rack: str | None = None) -> None:
        self._max_age_s = max_age_s
        self._backoff = backoff
        self._rack = rack
        self._pattern: TopicPattern | None = None
        self._group: frozenset[str] = frozenset()
        self._planned: dict[str, int] = {}
        self._planned_racks: dict[str, Racks] = {}
        self.initial_partitions = InitialPartitions()
        self._unconfirmed = UnconfirmedTopics()
        self._informed = False
        self.own: frozenset[str] = frozenset()
        """This member's topics: the named topics, or the existing topics that match the pattern."""
        self.counts: dict[str, int] = {}
        """Known partition counts of the topics that this member or its group reads."""
        self.denied: frozenset[str] = frozenset()
        """Topics that the principal may not describe, according to the last response."""
        self.racks = BrokerRacks()
        self.error: errors.ConsumerError | None = None
        self.next_at = NEVER
        self.in_flight = False

    def subscribe(self, topics: Iterable[str], pattern: TopicPattern | None = None) -> None:
        self.own = frozenset(topics)
        self._pattern = pattern
        self.initial_partitions.subscribe(by_pattern=pattern is not None)
        self._informed = False
        self.error = None
        self.refresh()

    def refresh(self) -> None:
        """Make the next request due immediately."""
        self.next_at = NEVER

    def lead(
        self, topics: frozenset[str], counts: Mapping[str, int], racks: Mapping[str, Racks] | None, now: float
    ) -> None:
        """Watch the group's topics as its leader, whose plan used these partition counts and racks."""
        self._group = topics
        self.counts = {topic: count for topic, count in self.counts.items() if topic not in topics} | dict(counts)
        self._planned = {topic: counts.get(topic, 0) for topic in topics}
        self._planned_racks = dict(racks or {})
        self.next_at = min(self.next_at, now + LEAD_RECHECK_S)

    def lead_old_plan(self, topics: frozenset[str]) -> None:
        """Watch the group's topics as a leader that keeps the plan of its predecessor (KIP-814).

        The partition counts of that plan arrive later, with `old_plan_had`. Until then, counts are assumed: for this
        member's own topics the known counts, for all other topics the counts of the next response.
        """
        self._group = topics
        self._planned_racks = {}
        self._planned = {topic: self.counts.get(topic, 0) for topic in self.own} if self._informed else {}

    def old_plan_had(self, planned: Mapping[str, int]) -> None:
        """Apply the counts of the predecessor's plan."""
        self._planned = {topic: planned.get(topic, 0) for topic in self._group}
        self.refresh()

    def follow(self) -> None:
        """Watch only this member's own topics, because another member leads."""
        self._group = frozenset()
        self._planned = {}
        self._planned_racks = {}

    def due(self, now: float) -> bool:
        wanted = self._pattern is not None or bool(self.own or self._group)
        return not self.in_flight and wanted and now >= self.next_at

    def request(self) -> MetadataRequest:
        return topics_request(self.own | self._group if self._pattern is None else None)

    def answered(self, response: MetadataResponse, now: float) -> str | None:
        """Apply a response to `request`. Returns the reason why the leader must plan again, or None."""
        self.in_flight = False
        self._informed = True
        self._backoff.reset()
        self.racks.learn(response)
        topics = self.own | self._group
        if self._pattern is not None:
            # Known topics stay included until their deletion is confirmed.
            topics = self._group | frozenset(
                topic
                for topic in (*self.counts, *(each.name or "" for each in response.topics))
                if pattern_matches(self._pattern, topic)
            )
        view = view_of(response, topics, self.counts, self._planned)
        unconfirmed = self._unconfirmed.remaining(view, now)
        counts = {topic: count for topic, count in view.counts.items() if topic not in unconfirmed}
        self.counts = counts | {topic: self.counts[topic] for topic in unconfirmed if topic in self.counts}
        if self._pattern is not None:
            self.own = frozenset(topic for topic in self.counts if pattern_matches(self._pattern, topic))
        self.initial_partitions.answered(self.own, view)
        self.denied = view.denied
        self.error = self._visible_error(response)
        self._schedule(view, unconfirmed, now)
        return self._outdated(response, view, unconfirmed)

    def _schedule(self, view: MetadataView, unconfirmed: frozenset[str], now: float) -> None:
        wait_s = self._max_age_s
        if self.own - self.counts.keys() or view.hidden:
            wait_s = min(wait_s, MISSING_TOPIC_RECHECK_S)
        if unconfirmed or self.initial_partitions.undecided:
            wait_s = min(wait_s, UNCONFIRMED_RECHECK_S)
        self.next_at = now + wait_s

    def _outdated(self, response: MetadataResponse, view: MetadataView, unconfirmed: frozenset[str]) -> str | None:
        """Return the reason why the leader's plan is outdated, or None. An unknown count does not make the plan
        outdated."""
        for topic in sorted(self._group):
            if topic in unconfirmed or (topic in view.hidden and topic not in self.counts):
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
        self.in_flight = False
        self.next_at = now + max(self._backoff.next(), wait_s)

    def _visible_error(self, response: MetadataResponse) -> errors.ConsumerError | None:
        _, failures = partition_counts(response)
        if self.denied:
            return topics_denied(self.denied)
        named = ", ".join(f"{topic} ({describe(failures[topic])})" for topic in sorted(self.own & failures.keys()))
        if not named:
            return None
        return errors.TopicMissing(f"subscribed topics do not exist: {named}; create them, and they will be read")


def topics_denied(topics: Iterable[str]) -> errors.TopicAuthorizationFailed:
    """Return the error for topics that this member may not describe. As the leader, the member does not assign these
    topics."""
    return errors.TopicAuthorizationFailed(
        f"topics {', '.join(sorted(topics))}: not authorized; allow the principal Describe and Read on them"
    )
