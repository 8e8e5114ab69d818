"""The settings of topics, asked for about once a minute and remembered between looks.

A broker builds a topic's whole configuration to answer for one setting of it, so this is the costliest question of all:
it is spread over the looks and over the brokers. Belongs to the observer's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.wire.admin import describe_configs
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.observe.batches import chunks
from fleet_operator.planning.retry.topics import ASKED_SETTINGS

FRESH_SECONDS: Final = 60.0
"""Time for which an answer counts; settings that we change are forgotten at once."""
TOPICS_PER_LOOK_MAX: Final = 2_000
TOPICS_PER_REQUEST_MAX: Final = 250

Settings = Mapping[str, str]


@dataclass(slots=True)
class TopicConfigs:
    """Topic settings as last read. Times are monotonic seconds."""

    _known: dict[str, Settings] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def of(self, topic: str) -> Settings | None:
        """The settings that matter, by name; None while they have not been read or must not be."""
        return self._known.get(topic)

    def forget(self, topics: Iterable[str]) -> None:
        """Have these topics asked again at the next look; what was known of them counts no more."""
        for topic in topics:
            self._known.pop(topic, None)
            self._due.pop(topic, None)

    def requests(self, wanted: Collection[str], now: float) -> list[describe_configs.DescribeConfigsRequest]:
        """The requests of this look: for topics never read first, then for those read longest ago."""
        for gone in self._due.keys() - wanted:
            self.forget((gone,))
        due = sorted((self._due.get(topic, 0.0), topic) for topic in wanted if self._due.get(topic, 0.0) <= now)
        names = sorted(topic for _, topic in due[:TOPICS_PER_LOOK_MAX])
        return [
            describe_configs.DescribeConfigsRequest(resources=tuple(_resource(name) for name in part))
            for part in chunks(names, TOPICS_PER_REQUEST_MAX)
        ]

    def take(self, responses: Sequence[describe_configs.DescribeConfigsResponse], now: float) -> None:
        """Remember answers. A topic that a broker has not heard of yet is asked again in the next look."""
        for result in (result for response in responses for result in response.results):
            name = result.resource_name
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.forget((name,))
                continue
            self._due[name] = now + FRESH_SECONDS
            if result.error_code:
                self._known.pop(name, None)
            else:
                self._known[name] = {entry.name: entry.value for entry in result.configs if entry.value is not None}


def _resource(topic: str) -> describe_configs.DescribeConfigsResource:
    return describe_configs.DescribeConfigsResource(
        resource_type=describe_configs.TOPIC_RESOURCE, resource_name=topic, configuration_keys=ASKED_SETTINGS
    )
