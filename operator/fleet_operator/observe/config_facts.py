"""Settings of `__consumer_offsets`, and of the brokers for it, read now and then. Used by the observer's thread.

Each broker answers for itself. One that gives no answer keeps what it said before; one that never said anything is
unknown, and is asked again at each look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.net import Call
from fleet_consumer.wire.admin.describe_configs import DescribeConfigsResponse
from fleet_consumer.wire.api_versions import ApiVersionsResponse
from fleet_operator.observe import folding
from fleet_operator.observe.batches import OFFSETS_TOPIC
from fleet_operator.planning.observation import BrokerSettings

CONFIGS_SECONDS: Final = 60.0
"""Interval at which these settings are read. They change when a broker restarts, which may be between two looks."""


@dataclass(slots=True)
class ConfigFacts:
    """The settings and the metadata.version as last read, and when to read them again (monotonic seconds).

    `topic` is None until a look has read the settings of an existing topic.
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

    def take_topic(self, call: Call[DescribeConfigsResponse]) -> None:
        if call.error is None:
            self.topic = call.response

    def take_features(self, call: Call[ApiVersionsResponse]) -> None:
        if call.error is None:
            self.metadata_version = folding.metadata_version(call.response)

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
