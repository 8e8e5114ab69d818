"""Partition counts of the topics that matter to a member, and when to look again.

Every member watches its own topics, to say which are missing; the leader watches the whole group's and compares with
what it planned for, because a topic that gained partitions must be dealt out anew. Counts come in as Metadata answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet_consumer.group import errors
from fleet_consumer.group.timing import NEVER, Backoff
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

MISSING_TOPIC_RECHECK_S = 2.0
"""How often a topic that does not exist yet is looked for; Java asks every second or faster."""


def topics_request(topics: Iterable[str]) -> MetadataRequest:
    """Ask for these topics without creating them."""
    names = sorted(set(topics))
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=name) for name in names), allow_auto_topic_creation=False
    )


def partition_counts(response: MetadataResponse) -> tuple[dict[str, int], dict[str, int]]:
    """Counts of the topics that exist, and the error codes of those that cannot be seen.

    A topic whose leaders are being elected carries an error and its partitions; it counts as existing.
    """
    counts: dict[str, int] = {}
    failures: dict[str, int] = {}
    for topic in response.topics:
        if topic.partitions:
            counts[topic.name or ""] = len(topic.partitions)
        elif topic.error_code != ErrorCode.NONE:
            failures[topic.name or ""] = topic.error_code
    return counts, failures


class MetadataWatch:
    """What one member knows of partition counts."""

    def __init__(self, max_age_s: float, backoff: Backoff) -> None:
        self._max_age_s = max_age_s
        self._backoff = backoff
        self._own: frozenset[str] = frozenset()
        self._group: frozenset[str] = frozenset()
        self._planned: dict[str, int] = {}
        self._first: dict[str, int] | None = None
        self._informed = False
        self.counts: dict[str, int] = {}
        self.error: errors.ConsumerError | None = None
        self.next_at = NEVER
        self.in_flight = False

    @property
    def topics(self) -> frozenset[str]:
        """What to ask for."""
        return self._own | self._group

    def subscribe(self, topics: Iterable[str]) -> None:
        """This member's own topics from now on."""
        self._own = frozenset(topics)
        self.next_at = NEVER

    def lead(self, topics: frozenset[str], counts: dict[str, int]) -> None:
        """This member leads and has planned with these counts of the group's topics."""
        self._group = topics
        self.counts.update(counts)
        self._informed = self._informed or bool(counts)
        self._planned = {topic: counts.get(topic, 0) for topic in topics}

    def lead_old_plan(self, topics: frozenset[str]) -> None:
        """This member leads, by a plan that it has not made (KIP-814); the counts of that plan are not known.

        What this member saw when it subscribed stands in for them, and for other topics the next answer does.
        """
        self._group = topics
        self._planned = {topic: self.counts.get(topic, 0) for topic in self._own} if self._informed else {}

    def follow(self) -> None:
        """Somebody else leads."""
        self._group = frozenset()
        self._planned = {}

    def due(self, now: float) -> bool:
        """Whether to ask now."""
        return not self.in_flight and bool(self.topics) and now >= self.next_at

    def answered(self, response: MetadataResponse, now: float) -> tuple[str, int, int] | None:
        """Take an answer to `topics_request(self.topics)`.

        Returns a topic whose count is not the planned one any more, with both counts.
        """
        self.in_flight = False
        self._informed = True
        self._backoff.reset()
        self.counts, failures = partition_counts(response)
        self.error = _visible_error({topic: code for topic, code in failures.items() if topic in self._own})
        # Somebody who waits for a topic should not wait for the metadata to grow old.
        missing = self._own - self.counts.keys()
        self.next_at = now + (min(MISSING_TOPIC_RECHECK_S, self._max_age_s) if missing else self._max_age_s)
        for topic in sorted(self._group):
            planned, count = self._planned.setdefault(topic, self.counts.get(topic, 0)), self.counts.get(topic, 0)
            if planned != count:
                return topic, planned, count
        return None

    def unanswered(self, now: float, wait_s: float = 0.0) -> None:
        """No answer came; the next try is after the backoff, or `wait_s` if that is longer."""
        self.in_flight = False
        self.next_at = now + max(self._backoff.next(), wait_s)

    def appeared(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` did not exist yet at the first assignment, when this was asked first.

        Records that were written to them before we knew of them must not be skipped, so they start at the beginning.
        Before the first Metadata answer nothing is known of what existed, and none counts as new.
        """
        if self._first is None:
            self._first = dict(self.counts) if self._informed else None
            return frozenset()
        first = self._first
        return frozenset(part for part in partitions if part.partition >= first.get(part.topic, 0))


def _visible_error(failures: dict[str, int]) -> errors.ConsumerError | None:
    if not failures:
        return None
    denied = sorted(topic for topic, code in failures.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if denied:
        return errors.TopicAuthorizationFailed(
            f"topics {', '.join(denied)}: not authorized; allow the principal Describe and Read on them"
        )
    named = ", ".join(f"{topic} ({describe(code)})" for topic, code in sorted(failures.items()))
    return errors.TopicMissing(f"subscribed topics do not exist: {named}; create them, they will be picked up")
