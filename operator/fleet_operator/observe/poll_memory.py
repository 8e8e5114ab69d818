"""State that later polls use: about the whole cluster, and about one group part. Used by one thread."""

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
from fleet_operator.planning.observation import BrokerSettings, OpenTransaction
from fleet_operator.planning.topic_pattern import TopicMatches

T = TypeVar("T")

CONFIGS_SECONDS: Final = 60.0
"""Interval in seconds at which `ConfigFacts` are read. Settings are read again because a broker's restart may change
them."""


@dataclass(slots=True)
class ConfigFacts:
    """Settings of `__consumer_offsets`, the brokers' settings for this topic, and metadata.version. They are next read
    at `due_at` (monotonic seconds).

    Each broker returns its own settings. If a broker does not answer, its previous settings are kept. A broker that has
    never answered is missing in `brokers`, and is asked again at each poll. `topic` is None until the settings of an
    existing topic have been read.
    """

    topic: DescribeConfigsResponse | None = None
    brokers: dict[int, BrokerSettings] = field(default_factory=dict)
    metadata_version: int | None = None
    due_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """True if this poll must read all settings; the next read is then due CONFIGS_SECONDS later."""
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
"""Time in seconds between two comparisons of a topic's high watermarks and last stable offsets. Each comparison costs
one more request to the leaders. The interval is short enough for at least two comparisons before an idle fleet is
scaled to zero, which takes at least one minute."""


@dataclass(slots=True)
class _Ends:
    """The log end offsets of one topic. `confirmed`: time of the last read (epoch seconds). `repeated`: the last read
    found no change."""

    ends: Offsets
    history: History
    confirmed: float
    repeated: bool = False


Address = tuple[bool, str]
"""Key of a topic's end offsets: True for last stable offsets, False for high watermarks; and the topic's name."""


class LogEnds:
    """The last log start and end offsets of all topics of one observer, samples of earlier end offsets, and the open
    transactions. They are stored per topic, not per group, because many groups may read the same topic."""

    def __init__(self) -> None:
        self._ends: dict[Address, _Ends] = {}
        self._starts: dict[str, Offsets] = {}
        self._compared: dict[str, float] = {}
        self._open: dict[str, dict[tuple[str, int], tuple[OpenTransaction, float]]] = {}

    def take_ends(self, read_committed: bool, read: Mapping[str, Offsets], now: float) -> None:
        for topic, ends in read.items():
            known = self._ends.get((read_committed, topic))
            if known is not None and known.ends == ends:
                if not known.repeated:  # a second sample shows that no record arrived after the first sample
                    known.history = aggregation.extend_history(known.history, ends, now)
                known.confirmed, known.repeated = now, True
            else:
                history = known.history if known is not None else {}
                if known is not None and known.repeated:
                    # No record arrived before `confirmed`, and an interpolation must not spread new records over that
                    # time.
                    history = aggregation.extend_history(history, known.ends, known.confirmed)
                self._ends[read_committed, topic] = _Ends(ends, aggregation.extend_history(history, ends, now), now)
            if read_committed and topic in self._open:
                # The last stable offset has changed, so the transaction that held it back has ended.
                for key, (seen, _) in tuple(self._open[topic].items()):
                    if ends.get(key, seen.offset) != seen.offset:
                        del self._open[topic][key]

    def due_comparisons(self, topics: Iterable[str], clock: float) -> set[str]:
        """The topics whose high watermarks this poll should read; `clock` is monotonic seconds."""
        due = {topic for topic in topics if clock - self._compared.get(topic, float("-inf")) >= COMPARED_SECONDS}
        self._compared |= dict.fromkeys(due, clock)
        return due

    def compare(self, stable: Mapping[str, Offsets], highs: Mapping[str, Offsets], now: float, clock: float) -> None:
        """Compare last stable offsets and high watermarks that were just read, both keyed by topic. Call this after
        `take_ends`. `now` is in epoch seconds, `clock` in monotonic seconds.

        If a partition's high watermark is above its last stable offset, a transaction may be open, and the records
        between the two offsets have arrived since it began. One comparison does not prove this, because records may
        arrive between the two responses. Two comparisons with the same last stable offset do.
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
        for topic, starts in read.items():
            if self._starts.get(topic) != starts:
                self._starts[topic] = starts

    def log(
        self, read_committed: bool, topics: Collection[str], *, ends: Collection[str], starts: Collection[str]
    ) -> TopicLog:
        """Combine the offsets of several topics. `ends`, `starts`: the offsets that this poll has read, keyed by
        topic."""
        found = {topic: self._ends[read_committed, topic] for topic in topics if (read_committed, topic) in self._ends}
        opened = {key: seen for topic in topics for key, (seen, _) in self._open.get(topic, {}).items()}
        return TopicLog(
            ends=_union(each.ends for topic, each in found.items() if topic in ends),
            history=_union(each.history for each in found.values()),
            starts=_union(self._starts.get(topic, {}) for topic in topics if topic in starts),
            transactions={key: seen for key, seen in opened.items() if read_committed and seen.stood_s > 0.0},
        )

    def retain(self, topics: AbstractSet[str]) -> None:
        self._compared = {topic: clock for topic, clock in self._compared.items() if topic in topics}
        self._open = {topic: opened for topic, opened in self._open.items() if topic in topics}
        self._ends = {address: ends for address, ends in self._ends.items() if address[1] in topics}
        self._starts = {topic: starts for topic, starts in self._starts.items() if topic in topics}


def _union(mappings: Iterable[dict[tuple[str, int], T]]) -> dict[tuple[str, int], T]:
    """The union of mappings. A single mapping is returned without a copy, so that all groups of a topic share one
    object."""
    found = [each for each in mappings if each]
    return found[0] if len(found) == 1 else dict(chain.from_iterable(each.items() for each in found))


@dataclass(slots=True)
class ClusterMemory:
    """State that is kept between the polls of one cluster: settings, topic logs, and the coordinator of each group.

    `other_groups`: the groups that do not use the classic protocol, keyed by the broker that last listed them.
    `hanging`: the brokers whose calls timed out. Each has a time (monotonic seconds); until then, calls to the broker
    get a shorter timeout.
    """

    configs: ConfigFacts = field(default_factory=ConfigFacts)
    logs: LogEnds = field(default_factory=LogEnds)
    coordinators: dict[str, int] = field(default_factory=dict)
    other_groups: dict[int, frozenset[str]] = field(default_factory=dict)
    hanging: dict[BrokerAddress, float] = field(default_factory=dict)

    def is_other(self, group_id: str) -> bool:
        return any(group_id in others for others in self.other_groups.values())


@dataclass(slots=True)
class PartMemory:
    flow: FlowMemory = field(default_factory=FlowMemory)
    matches: TopicMatches = field(default_factory=TopicMatches)
    repeats: Repeats = field(default_factory=Repeats)
