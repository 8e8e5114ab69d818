"""Source topics of a group, and their partition counts, from what was observed."""

from __future__ import annotations

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.observation import ClusterObservation


def source_topics(group: ConsumerGroup, seen: ClusterObservation | None) -> tuple[str, ...] | None:
    """The topics that a group reads: the spec's, or those that match its pattern; None while nobody has looked.

    A pattern's topics are known once a look was taken with this very pattern.
    """
    if group.spec.topic_pattern is None:
        return group.source_topics
    if seen is None or not seen.reachable:
        return None
    return seen.matches.get(group.spec.topic_pattern)


def partition_counts(group: ConsumerGroup, seen: ClusterObservation | None) -> dict[str, int] | None:
    """Partitions of each source topic; None while one of them is missing or has not been asked for."""
    if seen is None or not seen.reachable:
        return None
    found = {topic: seen.topics.get(topic) for topic in source_topics(group, seen) or ()}
    counts = {name: topic.partitions for name, topic in found.items() if topic and not topic.error}
    return counts if counts and len(counts) == len(found) else None
