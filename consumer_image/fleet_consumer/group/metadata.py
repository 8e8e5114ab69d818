"""Metadata answers as the group reads them: which topics there are, their partitions, and the racks of these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

Racks = tuple[frozenset[str], ...]
"""For each partition of a topic, by number, the racks that hold a replica of it."""


def topics_request(topics: Iterable[str]) -> MetadataRequest:
    """Ask for these topics without creating them."""
    names = sorted(set(topics))
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=name) for name in names), allow_auto_topic_creation=False
    )


def all_topics_request() -> MetadataRequest:
    """Ask for every topic that may be seen."""
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)


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


class BrokerRacks:
    """Which rack each broker stands in.

    A broker that is down is missing from answers. It is remembered, or each restart of one would look like replicas
    that moved, and cost a rebalance.
    """

    def __init__(self) -> None:
        self._racks: dict[int, str] = {}

    def learn(self, response: MetadataResponse) -> None:
        """Take the brokers of an answer."""
        for broker in response.brokers:
            if broker.rack is not None:
                self._racks[broker.node_id] = broker.rack

    def of_topics(self, response: MetadataResponse, topics: Collection[str]) -> Mapping[str, Racks]:
        """The racks of these topics' partitions."""
        return {
            topic.name or "": tuple(
                frozenset(self._racks[node] for node in part.replica_nodes if node in self._racks)
                for part in sorted(topic.partitions, key=lambda part: part.partition_index)
            )
            for topic in response.topics
            if topic.name in topics and topic.partitions
        }
