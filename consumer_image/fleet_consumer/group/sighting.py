"""Partition counts as they can be believed: an answer that says less than is known is doubted before it counts.

Metadata answers come from whichever broker is asked. One that lags, or has just started, says that a topic does not
exist; one that refuses says nothing about it at all. Neither is a count of 0: a plan made with that would take every
partition of the topic away from the whole group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fleet_consumer.group.metadata import partition_counts
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, is_retriable
from fleet_consumer.wire.metadata import MetadataResponse

GONE_AFTER_S = 3.0
"""How long brokers must have said that a topic is gone, or is smaller than it was, before that is believed."""

MISSES_BELIEVED = 2
"""How many answers in a row make a topic one that did not exist when it was subscribed to; each comes from another
broker, where there are several."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One Metadata answer beside what was known before it.

    `counts` holds the topics with partitions, by this answer or, where it refuses to say, by what was known.
    `doubtful` are topics that may be more than the answer says, `denied` those that the principal may not Describe.
    `hidden` are all about which the answer says nothing, `denied` included.
    """

    counts: Mapping[str, int]
    doubtful: frozenset[str]
    denied: frozenset[str]
    hidden: frozenset[str]


def sight(
    response: MetadataResponse, topics: Collection[str], known: Mapping[str, int], claimed: Mapping[str, int]
) -> Sighting:
    """Read an answer about `topics`.

    `known` are counts of earlier answers. `claimed` come from other members, who may be wrong or hostile: they can
    raise a doubt, and never stand for a count.
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


def lacks_topics(response: MetadataResponse) -> bool:
    """Whether the broker does not know a topic that it was asked for, so that another one may know better."""
    return any(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in response.topics)


class Doubts:
    """Since when topics have been doubtful."""

    def __init__(self, patience_s: float = GONE_AFTER_S) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}

    def remaining(self, sighting: Sighting, now: float) -> frozenset[str]:
        """The topics of an answer that must be asked about again before it counts."""
        self._since = {topic: self._since.get(topic, now) for topic in sighting.doubtful}
        return frozenset(topic for topic, since in self._since.items() if now < since + self._patience_s)


class FirstSight:
    """Partitions that existed when this member subscribed to their topic; later ones begin at their beginning.

    A topic that brokers refuse to show, or that only one answer has missed, is not new: a group that reads from the
    latest offsets would replay all of it. Its partitions count as old until an answer decides.
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._misses: dict[str, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._by_pattern = False
        self._informed = False

    @property
    def undecided(self) -> bool:
        """Whether another answer decides if a topic is new."""
        return any(misses for misses in self._misses.values())

    def subscribe(self, *, by_pattern: bool) -> None:
        """Other topics than before; their first answer is still to come."""
        self._by_pattern, self._informed = by_pattern, False
        self._topics, self._misses = frozenset(), {}

    def answered(self, topics: frozenset[str], sighting: Sighting) -> None:
        """Take an answer about this member's own topics; by a pattern, these are those that match and exist."""
        began, self._informed, self._topics = self._informed, True, topics
        misses: dict[str, int] = {}
        for topic in topics - self._first.keys():
            if topic in sighting.counts:
                # A name's first count is what there was before; of a pattern, what the first answer lacked is new.
                self._first[topic] = 0 if began and self._by_pattern else sighting.counts[topic]
            elif topic in sighting.hidden:
                misses[topic] = 0
            elif self._misses.get(topic, 0) + 1 >= MISSES_BELIEVED:
                self._first[topic] = 0
            else:
                misses[topic] = self._misses.get(topic, 0) + 1
        self._misses = misses

    def appeared(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """The ones of `partitions` that did not exist yet. Before the first answer none counts as new."""
        if not self._informed:
            return frozenset()
        return frozenset(
            part
            for part in partitions
            if part.topic not in self._misses and part.partition >= self._first.get(part.topic, 0)
        )
