"""Trustworthy partition counts: a response with less than is known is doubted before it counts.

Any broker may answer Metadata. One that lags, or has just started, reports that a topic does not exist; one that
refuses reports nothing about it. Neither is a count of 0: a plan made with that would take all partitions of the topic
from the whole group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fleet_consumer.group.metadata import partition_counts
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, is_retriable
from fleet_consumer.wire.topics import MetadataResponse

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
