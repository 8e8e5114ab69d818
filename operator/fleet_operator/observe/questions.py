"""The calls of one look, by what they are about, and the reading of their answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fleet_consumer.net import Call
from fleet_consumer.wire.admin.describe_configs import DescribeConfigsResponse
from fleet_consumer.wire.admin.list_groups import ListGroupsResponse
from fleet_consumer.wire.api_versions import ApiVersionsResponse
from fleet_consumer.wire.describe_groups import DescribeGroupsResponse
from fleet_consumer.wire.list_offsets import ListOffsetsResponse
from fleet_consumer.wire.offset_fetch import OffsetFetchResponse
from fleet_operator.observe import folding
from fleet_operator.observe.folding import GroupFacts, Offsets
from fleet_operator.observe.repeats import derived

Asked = tuple[str, ...]
"""The groups that a call asks for."""


@dataclass(slots=True)
class Questions:
    """The calls of a look's main phase."""

    listed: dict[int, Call[ListGroupsResponse]] = field(default_factory=dict)
    described: list[tuple[Asked, Call[DescribeGroupsResponse]]] = field(default_factory=list)
    fetched: list[tuple[Asked, Call[OffsetFetchResponse]]] = field(default_factory=list)
    starts: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    ends: dict[bool, list[Call[ListOffsetsResponse]]] = field(default_factory=lambda: {False: [], True: []})
    highs: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    """Of some topics whose last stable offsets are their ends."""
    broker_configs: dict[int, Call[DescribeConfigsResponse]] = field(default_factory=dict)
    topic_configs: list[Call[DescribeConfigsResponse]] = field(default_factory=list)
    features: list[Call[ApiVersionsResponse]] = field(default_factory=list)
    settings: list[Call[DescribeConfigsResponse]] = field(default_factory=list)
    managed: set[str] = field(default_factory=set)
    """The managed topics whose starts were asked for."""

    def calls(self) -> Iterator[Call[Any]]:
        pairs = (call for _, call in chain[tuple[Asked, Call[Any]]](self.described, self.fetched))
        rare = chain[Call[Any]](self.broker_configs.values(), self.topic_configs, self.features, self.settings)
        return chain(self.listed.values(), pairs, self.starts, *self.ends.values(), self.highs, rare)

    def take_groups(self, facts: Mapping[str, GroupFacts]) -> None:
        """Give each group its description and its commits, or the error of the call that asked for them.

        A group that nobody asked for is none of ours, whatever a broker returns.
        """
        for asked, described in self.described:
            if _blame(described, asked, facts):
                for group in described.response.groups:
                    if group.group_id in facts:
                        facts[group.group_id].described = group
        for asked, fetched in self.fetched:
            if _blame(fetched, asked, facts):
                for group_id, positions in derived(fetched, folding.positions).items():
                    if group_id not in facts:
                        continue
                    if isinstance(positions, str):
                        facts[group_id].error = facts[group_id].error or positions
                    else:
                        facts[group_id].committed = positions


def read(calls: Iterable[Call[ListOffsetsResponse]]) -> dict[str, Offsets]:
    """The offsets of all calls that were answered, by topic; partitions of one topic may be led by several brokers."""
    found: dict[str, Offsets] = {}
    for call in calls:
        if call.error is None:
            for topic, offsets in derived(call, _offsets_by_topic).items():
                found[topic] = found[topic] | offsets if topic in found else offsets
    return found


def _offsets_by_topic(response: ListOffsetsResponse) -> dict[str, Offsets]:
    return folding.by_topic(folding.offsets(response))


def _blame(call: Call[Any], asked: Iterable[str], facts: Mapping[str, GroupFacts]) -> bool:
    """True if a call was answered; if not, its groups get the error."""
    if call.error is None:
        return True
    for group_id in asked:
        facts[group_id].error = facts[group_id].error or call.error.reason
    return False
