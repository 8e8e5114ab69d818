"""Memory of polls for later ones: of a whole cluster, and of one part of its groups. Used by one thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeVar

from fleet_consumer.net import BrokerAddress
from fleet_consumer.wire.admin import DescribeConfigsResponse
from fleet_consumer.wire.connection import ApiVersionsResponse
from fleet_operator.observe import aggregation
from fleet_operator.observe.aggregation import History, Offsets, TopicLog
from fleet_operator.observe.calls import Repeats
from fleet_operator.observe.flow import FlowMemory
from fleet_operator.planning.observation import BrokerSettings
from fleet_operator.planning.topic_pattern import TopicMatches
from fleet_operator.planning.transactions import OpenTransaction

T = TypeVar("T")

CONFIGS_SECONDS: Final = 60.0
"""Interval at which these settings are read. They change when a broker restarts, which may be between two polls."""


@dataclass(slots=True)
class ConfigFacts:
    """Settings of `__consumer_offsets`, and of the brokers for it, with the metadata.version; read now and then, next
    at `due_at` (monotonic seconds).

    Each broker answers for itself. One that gives no answer keeps what it said before; one that never said anything is
    unknown, and is asked again at each poll. `topic` is None until a poll has read the settings of an existing topic.
    """

    topic: DescribeConfigsResponse | None = None
    brokers: dict[int, BrokerSettings] = field(default_factory=dict)
    metadata_version: int | None = None
    due_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """True if everything is to be read in this poll; then it is due again a while later."""
        due = now >= self.due_at
        if due:
            self.due_at = now + CONFIGS_SECONDS
        return due

    def take_broker(self, node_id: int, response: DescribeConfigsResponse) -> None:
        self.brokers[node_id] = aggregation.broker_settings(response)

    def take_topic(self, response: DescribeConfigsResponse) -> None:
        self.topic = response

    def take_features(self, response: ApiVersionsResponse) -> None:
        self.metadata_version = aggregation.metadata_version(response)


COMPARED_SECONDS: Final = 20.0
"""Time between two comparisons of a log's two ends, which take one more request to its leaders. Two of them come before
an idle fleet may fall asleep, which takes a minute at least."""


@dataclass(slots=True)
class _Ends:
    """The ends of one topic; `confirmed` is when they were last read (epoch seconds), `repeated` that they had not
    changed then."""

    ends: Offsets
    history: History
    confirmed: float
    repeated: bool = False


Address = tuple[bool, str]
"""A topic as read: True where open transactions are left out (`read_committed`), and its name."""


class LogEnds:
    """First and last offsets of the logs of all topics that one observer reads, as last read, with a few earlier last
    offsets and open transactions.

    Many groups read one topic, so this is kept once for a topic, whoever reads it.
    """

    def __init__(self) -> None:
        self._ends: dict[Address, _Ends] = {}
        self._starts: dict[str, Offsets] = {}
        self._compared: dict[str, float] = {}
        self._open: dict[str, dict[tuple[str, int], tuple[OpenTransaction, float]]] = {}

    def take_ends(self, read_committed: bool, read: Mapping[str, Offsets], now: float) -> None:
        """Take in the ends that were read just now, by topic."""
        for topic, ends in read.items():
            known = self._ends.get((read_committed, topic))
            if known is not None and known.ends == ends:
                if not known.repeated:  # two samples say more than one: the records are older than the first
                    known.history = aggregation.extend_history(known.history, ends, now)
                known.confirmed, known.repeated = now, True
            else:
                history = known.history if known is not None else {}
                if known is not None and known.repeated:
                    # Until then nothing arrived: the estimate must not spread the new records over that time.
                    history = aggregation.extend_history(history, known.ends, known.confirmed)
                self._ends[read_committed, topic] = _Ends(ends, aggregation.extend_history(history, ends, now), now)
            if read_committed and topic in self._open:
                # The end has moved past a transaction that is over, whatever else is open behind it.
                for key, (seen, _) in tuple(self._open[topic].items()):
                    if ends.get(key, seen.offset) != seen.offset:
                        del self._open[topic][key]

    def due_comparisons(self, topics: Iterable[str], clock: float) -> set[str]:
        """The topics whose high watermarks are asked for, too (monotonic seconds)."""
        due = {topic for topic in topics if clock - self._compared.get(topic, float("-inf")) >= COMPARED_SECONDS}
        self._compared |= dict.fromkeys(due, clock)
        return due

    def compare(self, stable: Mapping[str, Offsets], highs: Mapping[str, Offsets], now: float, clock: float) -> None:
        """Take in both ends that were read just now, by topic, after `take_ends`: what was written since the first open
        transaction began is between the two.

        One comparison proves nothing, as records arrive between two answers; an end that stands from one to the next
        does. `now` is epoch seconds, `clock` monotonic ones.
        """
        for topic, found in highs.items():
            ends, opened = stable.get(topic, {}), self._open.setdefault(topic, {})
            for key in found.keys() & ends.keys():
                if found[key] <= ends[key]:
                    opened.pop(key, None)
                    continue
                first, began = opened.get(key, (OpenTransaction(ends[key], now, 0.0, found[key]), clock))
                opened[key] = first._replace(stood_s=clock - began, end_offset=found[key]), began

    def take_starts(self, read: Mapping[str, Offsets]) -> None:
        """Take in the starts that were read just now, by topic."""
        for topic, starts in read.items():
            if self._starts.get(topic) != starts:
                self._starts[topic] = starts

    def log(
        self, read_committed: bool, topics: Collection[str], *, ends: Collection[str], starts: Collection[str]
    ) -> TopicLog:
        """The log of topics as known; `ends` and `starts` have the topics of which they were answered just now."""
        found = {topic: self._ends[read_committed, topic] for topic in topics if (read_committed, topic) in self._ends}
        opened = {key: seen for topic in topics for key, (seen, _) in self._open.get(topic, {}).items()}
        return TopicLog(
            ends=_union(each.ends for topic, each in found.items() if topic in ends),
            history=_union(each.history for each in found.values()),
            starts=_union(self._starts.get(topic, {}) for topic in topics if topic in starts),
            transactions={key: seen for key, seen in opened.items() if read_committed and seen.stood_s > 0.0},
        )

    def retain(self, topics: AbstractSet[str]) -> None:
        """Forget all other topics."""
        self._compared = {topic: clock for topic, clock in self._compared.items() if topic in topics}
        self._open = {topic: opened for topic, opened in self._open.items() if topic in topics}
        self._ends = {address: ends for address, ends in self._ends.items() if address[1] in topics}
        self._starts = {topic: starts for topic, starts in self._starts.items() if topic in topics}


def _union(mappings: Iterable[dict[tuple[str, int], T]]) -> dict[tuple[str, int], T]:
    """One mapping of several; that of a single topic is shared by all its readers."""
    found = [each for each in mappings if each]
    return found[0] if len(found) == 1 else dict(chain.from_iterable(each.items() for each in found))


@dataclass(slots=True)
class ClusterMemory:
    """Memory of all polls of one cluster: settings, logs of topics, the coordinator of each group.

    `other_groups` has the groups of another protocol than the classic one, by the broker that lists them, as it last
    did. `hanging` are brokers that let calls time out, with the end of the time in which little patience is had with
    them (monotonic seconds).
    """

    configs: ConfigFacts = field(default_factory=ConfigFacts)
    logs: LogEnds = field(default_factory=LogEnds)
    coordinators: dict[str, int] = field(default_factory=dict)
    other_groups: dict[int, frozenset[str]] = field(default_factory=dict)
    hanging: dict[BrokerAddress, float] = field(default_factory=dict)

    def is_other(self, group_id: str) -> bool:
        """True if the members of a group speak another protocol, whose description has no such group."""
        return any(group_id in others for others in self.other_groups.values())


@dataclass(slots=True)
class PartMemory:
    """Memory of the polls of one part of the groups."""

    flow: FlowMemory = field(default_factory=FlowMemory)
    matches: TopicMatches = field(default_factory=TopicMatches)
    repeats: Repeats = field(default_factory=Repeats)
