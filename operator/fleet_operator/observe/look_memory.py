"""Memory of looks for later ones: of a whole cluster, and of one part of its groups. Used by one thread."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from fleet_consumer.net import BrokerAddress
from fleet_consumer.wire.admin.list_groups import ListedGroup
from fleet_operator.observe.config_facts import ConfigFacts
from fleet_operator.observe.flow import FlowMemory
from fleet_operator.observe.folding import GroupFacts, is_classic
from fleet_operator.observe.log_ends import JoinedLogs, LogEnds
from fleet_operator.observe.repeats import Repeats
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.topic_pattern import TopicMatches


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
        self.other_groups[node_id] = frozenset(group.group_id for group in groups if not is_classic(group))

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
    joined: JoinedLogs = field(default_factory=JoinedLogs)
    facts: Mapping[str, GroupFacts] = field(default_factory=dict)
    groups: Mapping[str, GroupObservation] = field(default_factory=dict)
    """The last look's answers about each group, and the observation that was made of them."""
