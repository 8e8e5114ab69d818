"""Memory of looks for later ones: of a whole cluster, and of one part of its groups. Used by one thread."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.net import BrokerAddress, Call
from fleet_consumer.wire.admin import DescribeConfigsResponse
from fleet_consumer.wire.connection import ApiVersionsResponse
from fleet_consumer.wire.groups import ListedGroup
from fleet_operator.observe import folding
from fleet_operator.observe.batches import OFFSETS_TOPIC
from fleet_operator.observe.calls import Repeats
from fleet_operator.observe.flow import FlowMemory
from fleet_operator.observe.folding import GroupFacts
from fleet_operator.observe.log_ends import LogEnds
from fleet_operator.planning.observation import BrokerSettings, GroupObservation
from fleet_operator.planning.topic_pattern import TopicMatches

CONFIGS_SECONDS: Final = 60.0
"""Interval at which these settings are read. They change when a broker restarts, which may be between two looks."""


@dataclass(slots=True)
class ConfigFacts:
    """Settings of `__consumer_offsets`, and of the brokers for it, with the metadata.version; read now and then, next
    at `due_at` (monotonic seconds).

    Each broker answers for itself. One that gives no answer keeps what it said before; one that never said anything is
    unknown, and is asked again at each look. `topic` is None until a look has read the settings of an existing topic.
    """

    topic: DescribeConfigsResponse | None = None
    brokers: dict[int, BrokerSettings] = field(default_factory=dict)
    metadata_version: int | None = None
    due_at: float = 0.0
    asked: bool = False

    def due_brokers(self, live: Iterable[int], now: float) -> tuple[int, ...]:
        """The brokers to ask in this look: all of them when it is time, else those that are not known."""
        if now >= self.due_at:
            return tuple(sorted(live))
        return tuple(sorted(set(live) - self.brokers.keys())) if self.asked else ()

    def topic_due(self, now: float, *, exists: bool) -> bool:
        """True if the settings of the topic are to be read; at once for one that was just created."""
        return exists and (now >= self.due_at or (self.asked and self.topic is None))

    def take_brokers(self, calls: Mapping[int, Call[DescribeConfigsResponse]], live: Iterable[int]) -> None:
        """Remember what brokers said, and forget those that are gone."""
        self.brokers |= {node: folding.broker_settings(call.response) for node, call in calls.items() if not call.error}
        for gone in self.brokers.keys() - set(live):
            del self.brokers[gone]

    def take(
        self, topic: Iterable[Call[DescribeConfigsResponse]], features: Iterable[Call[ApiVersionsResponse]]
    ) -> None:
        """Remember what was said of the topic and of the cluster's features."""
        self.topic = next((call.response for call in topic if not call.error), self.topic)
        versions = (folding.metadata_version(call.response) for call in features if not call.error)
        self.metadata_version = next(versions, self.metadata_version)

    def forget(self, changed_topics: Collection[str]) -> bool:
        """Ask anew about the topic if it was just changed; True if it was."""
        if OFFSETS_TOPIC not in changed_topics:
            return False
        self.topic = None
        return True

    def asked_at(self, now: float) -> None:
        """Note that everything that was due was asked."""
        self.asked = True
        if now >= self.due_at:
            self.due_at = now + CONFIGS_SECONDS


@dataclass(slots=True)
class ClusterMemory:
    """Memory of all looks at one cluster: settings, logs of topics, the coordinator of each group.

    `other_groups` has the groups of another protocol than the classic one, by the broker that lists them, as it last
    did. `hanging` are brokers that let calls time out, with the end of the time in which little patience is had with
    them (monotonic seconds).
    """

    configs: ConfigFacts = field(default_factory=ConfigFacts)
    logs: LogEnds = field(default_factory=LogEnds)
    coordinators: dict[str, int] = field(default_factory=dict)
    other_groups: dict[int, frozenset[str]] = field(default_factory=dict)
    hanging: dict[BrokerAddress, float] = field(default_factory=dict)

    def take_listed(self, node_id: int, groups: Iterable[ListedGroup]) -> None:
        """Take in the groups that a broker lists."""
        self.other_groups[node_id] = frozenset(group.group_id for group in groups if not folding.is_classic(group))

    def forget_brokers(self, live: Container[int]) -> None:
        """Forget the lists of brokers that have left; those that are there have just been asked."""
        self.other_groups = {node_id: groups for node_id, groups in self.other_groups.items() if node_id in live}

    def is_other(self, group_id: str) -> bool:
        """True if the members of a group speak another protocol, whose description has no such group."""
        return any(group_id in others for others in self.other_groups.values())


@dataclass(slots=True)
class PartMemory:
    """Memory of the looks at one part of the groups."""

    flow: FlowMemory = field(default_factory=FlowMemory)
    matches: TopicMatches = field(default_factory=TopicMatches)
    repeats: Repeats = field(default_factory=Repeats)
    facts: Mapping[str, GroupFacts] = field(default_factory=dict)
    groups: Mapping[str, GroupObservation] = field(default_factory=dict)
    """The last look's answers about each group, and the observation that was made of them."""
