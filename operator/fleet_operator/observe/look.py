"""One look at a Kafka cluster: a handful of requests to each broker, however many groups there are.

Runs on the observer's thread. All requests of a phase are under way at once; a broker that does not answer costs its
own groups and partitions, not the others'.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle
from typing import Any, Final, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.net import (
    AllBrokersUnreachable,
    AuthenticationFailed,
    Call,
    Coordinator,
    NetError,
    NetworkClient,
    TlsFailed,
)
from fleet_consumer.wire.admin.describe_configs import DescribeConfigsResponse
from fleet_consumer.wire.admin.list_groups import ListGroupsRequest, ListGroupsResponse
from fleet_consumer.wire.api_versions import ApiVersionsResponse
from fleet_consumer.wire.describe_groups import DescribeGroupsResponse
from fleet_consumer.wire.list_offsets import EARLIEST, LATEST, ListOffsetsResponse
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.metadata import MetadataResponse
from fleet_consumer.wire.offset_fetch import OffsetFetchResponse
from fleet_operator.api.v1alpha1.conditions import TOPIC_NOT_FOUND
from fleet_operator.observe import batches, folding
from fleet_operator.observe.due import Found
from fleet_operator.observe.flow import FlowMemory, Spans
from fleet_operator.observe.folding import GroupFacts, Offsets
from fleet_operator.observe.interests import GroupInterest
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, TopicObservation
from fleet_operator.planning.topic_pattern import TopicMatches

CALL_SECONDS: Final = 8.0
"""Patience with one phase of a look. A broker that hangs may cost four of them, and is reported after half a minute."""
CONFIGS_SECONDS: Final = 300.0
"""Interval at which the settings of `__consumer_offsets` are read; they rarely change."""

REFUSALS: Final = frozenset({"AuthenticationFailed", "TlsFailed"})
"""Reasons of a cluster that answers, and will not have us."""

ResponseT = TypeVar("ResponseT", bound=Response)


class LookAbandonedError(Exception):
    """The observer is being stopped in the middle of a look."""


@dataclass(slots=True)
class ConfigFacts:
    """The settings of `__consumer_offsets` and the metadata.version as last read, and when to read them again
    (monotonic seconds)."""

    responses: tuple[DescribeConfigsResponse, ...] = ()
    metadata_version: int | None = None
    due_at: float = 0.0


@dataclass(slots=True)
class Questions:
    """The calls of the main phase, by what they were about."""

    listed: dict[int, Call[ListGroupsResponse]] = field(default_factory=dict)
    described: list[tuple[tuple[str, ...], Call[DescribeGroupsResponse]]] = field(default_factory=list)
    fetched: list[tuple[tuple[str, ...], Call[OffsetFetchResponse]]] = field(default_factory=list)
    starts: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    ends: dict[bool, list[Call[ListOffsetsResponse]]] = field(default_factory=lambda: {False: [], True: []})
    configs: list[Call[DescribeConfigsResponse]] = field(default_factory=list)
    features: list[Call[ApiVersionsResponse]] = field(default_factory=list)
    settings: list[Call[DescribeConfigsResponse]] = field(default_factory=list)
    managed: set[str] = field(default_factory=set)
    """The managed topics whose starts were asked for."""

    def calls(self) -> Iterator[Call[Any]]:
        pairs = (call for _, call in chain[tuple[tuple[str, ...], Call[Any]]](self.described, self.fetched))
        rare = chain[Call[Any]](self.configs, self.features, self.settings)
        return chain(self.listed.values(), pairs, self.starts, *self.ends.values(), rare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Inputs of one look. `interests` are by group id; `last` is the newest good observation; `stopping` ends waits."""

    client: NetworkClient
    clock: Clock
    interests: Mapping[str, GroupInterest]
    last: ClusterObservation | None
    configs: ConfigFacts
    memory: FlowMemory
    matches: TopicMatches
    stopping: Callable[[], bool]

    def take(self) -> ClusterObservation:
        """Ask the cluster everything. Raises NetError when not even Metadata can be had, or LookAbandonedError."""
        metadata, topics, matches = self._topics()
        # From here on a pattern is the topics that it matches now.
        resolved = replace(self, interests=_resolved(self.interests, matches))
        return replace(resolved._take(metadata, topics), matches=matches)

    def _topics(self) -> tuple[MetadataResponse, dict[str, TopicObservation], Mapping[str, tuple[str, ...]]]:
        """The topics that matter, and by each pattern's text those that it matches.

        Patterns need the names of all topics; what nobody cares for is left out again.
        """
        named = {topic for interest in self.interests.values() for topic in interest.named_topics}
        patterns = {interest.pattern for interest in self.interests.values() if interest.pattern is not None}
        asked = (*sorted(named), batches.OFFSETS_TOPIC)
        metadata = self.client.metadata(None if patterns else asked, timeout_s=CALL_SECONDS)
        topics = folding.topics(metadata)
        matches = self.matches.update(patterns, topics)
        if patterns:
            wanted = {*asked, *(topic for names in matches.values() for topic in names)}
            missing = dict.fromkeys(wanted - topics.keys(), TopicObservation(partitions=0, error=TOPIC_NOT_FOUND))
            topics = {name: topics[name] for name in topics if name in wanted} | missing
        return metadata, topics, matches

    def _take(self, metadata: MetadataResponse, topics: dict[str, TopicObservation]) -> ClusterObservation:
        self._discover()
        facts = self._coordinators()
        questions = self._ask(metadata, topics, facts)
        self._wait(questions.calls())
        counts, ends = self._answers(questions, topics, facts)
        flows = {
            group_id: self.memory.spans(interest.retry, facts[interest.retry.group_id], topics, ends)
            for group_id, interest in self.interests.items()
            if interest.retry is not None
        }
        self._search(metadata, flows)
        return self._fold(metadata, topics, facts, counts, flows)

    def _discover(self) -> None:
        """Find the retry topics of groups that do not know theirs: once, as that takes the names of all topics."""
        wanted = {g for g, interest in self.interests.items() if interest.retry is not None and interest.retry.discover}
        known = {group_id: self.memory.found_delays[group_id] for group_id in wanted & self.memory.found_delays.keys()}
        if wanted - known.keys():
            found = folding.delays_by_group(self.client.metadata(None, timeout_s=CALL_SECONDS))
            known |= {group_id: found.get(group_id, ()) for group_id in wanted - known.keys()}
        self.memory.found_delays = known

    def _coordinators(self) -> dict[str, GroupFacts]:
        """The coordinator of each group, those of the retry workers too."""
        retry = (interest.retry.group_id for interest in self.interests.values() if interest.retry is not None)
        facts = {group_id: GroupFacts(group_id) for group_id in (*self.interests, *retry)}
        if facts:
            found = self.client.find_coordinators(sorted(facts), timeout_s=CALL_SECONDS)
            for group_id, coordinator in found.items():
                if isinstance(coordinator, Coordinator):
                    facts[group_id].coordinator_id = coordinator.node_id
                else:
                    facts[group_id].error = folding.reason_of(coordinator.code)
        return facts

    def _send(self, node_id: int, request: Request[ResponseT]) -> Call[ResponseT]:
        return self.client.send(self.client.brokers[node_id], request, timeout_s=CALL_SECONDS)

    def _ask(
        self, metadata: MetadataResponse, topics: Mapping[str, TopicObservation], facts: Mapping[str, GroupFacts]
    ) -> Questions:
        questions = Questions()
        for node_id in self.client.brokers:
            questions.listed[node_id] = self._send(node_id, ListGroupsRequest())
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for group in facts.values():
            if group.coordinator_id is not None and group.coordinator_id in self.client.brokers:
                by_coordinator[group.coordinator_id].append(group.group_id)
        for node_id, groups in by_coordinator.items():
            for describe in batches.describe_requests(groups):
                questions.described.append((describe.groups, self._send(node_id, describe)))
            for fetch in batches.offset_fetch_requests({g: _partitions(self.interests.get(g), topics) for g in groups}):
                questions.fetched.append((tuple(g.group_id for g in fetch.groups), self._send(node_id, fetch)))
        self._ask_offsets(metadata, questions)
        self._ask_settings(topics, questions)
        if self.clock.monotonic() >= self.configs.due_at and self.client.brokers:
            any_node = min(self.client.brokers)
            for request in (batches.offsets_topic_config_request(), batches.broker_config_request(any_node)):
                questions.configs.append(self._send(any_node, request))
            questions.features.append(self._send(any_node, batches.features_request()))
        return questions

    def _ask_offsets(self, metadata: MetadataResponse, questions: Questions) -> None:
        wanted: dict[bool, set[str]] = {False: set(), True: set()}
        managed: set[str] = set()
        for interest in self.interests.values():
            wanted[interest.read_committed] |= {*interest.topics, *self._committed_topics(interest)}
            managed |= {*(interest.retry.flow if interest.retry is not None else ()), interest.failed_topic}
        sources = wanted[False] | wanted[True]
        wanted[False] |= managed
        for read_committed, names in wanted.items():
            for node_id, partitions in self._led(metadata, names):
                for request in batches.list_offsets_requests(partitions, LATEST, read_committed=read_committed):
                    questions.ends[read_committed].append(self._send(node_id, request))
        questions.managed = self.memory.starts_wanted(managed, self.clock.monotonic())
        for node_id, partitions in self._led(metadata, sources | questions.managed):
            for request in batches.list_offsets_requests(partitions, EARLIEST):
                questions.starts.append(self._send(node_id, request))

    def _ask_settings(self, topics: Mapping[str, TopicObservation], questions: Questions) -> None:
        """Ask for the due settings of managed topics and their sources, spread over the brokers: any can answer."""
        wanted = {
            name
            for interest in self.interests.values()
            if interest.retry is not None
            for name in (*interest.topics, *interest.retry.flow, interest.failed_topic)
            if name in topics and not topics[name].error
        }
        requests = self.memory.settings.requests(wanted, self.clock.monotonic())
        for node_id, request in zip(cycle(sorted(self.client.brokers)), requests, strict=False):
            questions.settings.append(self._send(node_id, request))

    def _led(self, metadata: MetadataResponse, names: Iterable[str]) -> list[tuple[int, list[batches.Partition]]]:
        led = batches.leaders_of(metadata, names)
        return [(node_id, partitions) for node_id, partitions in led.items() if node_id in self.client.brokers]

    def _committed_topics(self, interest: GroupInterest) -> set[str]:
        """For a group whose topics come from a pattern: those it had commits for at the last look."""
        last = self._last_of(interest.group_id)
        return {topic for topic, _ in last.committed} if last and not interest.topics else set()

    def _search(self, metadata: MetadataResponse, flows: Mapping[str, Spans]) -> None:
        names = {name for spans in flows.values() for name, _ in spans}
        leaders = {partition: node_id for node_id, led in self._led(metadata, names) for partition in led}
        silent: set[int] = set()
        now_ms = int(self.clock.wall() * 1000)
        self.memory.search(flows.values(), now_ms, lambda times: self._offsets_for_times(times, leaders, silent))

    def _offsets_for_times(
        self, times: Mapping[batches.Partition, int], leaders: Mapping[batches.Partition, int], silent: set[int]
    ) -> dict[batches.Partition, Found | None]:
        """One round. A broker that fails once is not asked again in this look: each time it would cost its time-out."""
        by_leader: dict[int, dict[batches.Partition, int]] = defaultdict(dict)
        for partition, time_ms in times.items():
            if partition in leaders and leaders[partition] not in silent:
                by_leader[leaders[partition]][partition] = time_ms
        calls = [
            (node_id, self._send(node_id, request))
            for node_id, of in by_leader.items()
            for request in batches.offsets_for_times_requests(of)
        ]
        self._wait(call for _, call in calls)
        answers: dict[batches.Partition, Found | None] = {}
        for node_id, call in calls:
            if call.error is None:
                answers |= folding.found(call.response)
            else:
                silent.add(node_id)
        return answers

    def _wait(self, calls: Iterable[Call[Any]]) -> None:
        """Until every call has ended; each has its own time-out, so this ends too."""
        pending = list(calls)
        while pending := [call for call in pending if not call.done]:
            if self.stopping():
                raise LookAbandonedError
            self.client.poll(CALL_SECONDS)

    def _answers(
        self, questions: Questions, topics: Mapping[str, TopicObservation], facts: dict[str, GroupFacts]
    ) -> tuple[Counter[int], Offsets]:
        """Fill in the facts; returns how many groups each broker coordinates, and the ends of logs."""
        counts: Counter[int] = Counter()
        for node_id, listed in questions.listed.items():
            if listed.error is None and not listed.response.error_code:
                counts[node_id] = len(listed.response.groups)
                for found in listed.response.groups:
                    if found.group_id in facts and not folding.is_classic(found):
                        facts[found.group_id].error = facts[found.group_id].error or folding.NOT_CLASSIC
        for asked, described in questions.described:
            if _blame(described, asked, facts):
                for group in described.response.groups:
                    facts[group.group_id].described = group
        for asked, fetched in questions.fetched:
            if _blame(fetched, asked, facts):
                for group_id, positions in folding.positions(fetched.response).items():
                    if isinstance(positions, str):
                        facts[group_id].error = facts[group_id].error or positions
                    else:
                        facts[group_id].committed = positions
        starts, now = _merged(questions.starts), self.clock.monotonic()
        self.memory.take_starts(questions.managed, starts, now)
        self.memory.settings.take([call.response for call in questions.settings if call.error is None], now)
        starts |= self.memory.starts
        ends = {read_committed: _merged(calls) for read_committed, calls in questions.ends.items()}
        ends_by_topic = {read_committed: folding.by_topic(offsets) for read_committed, offsets in ends.items()}
        starts_by_topic = folding.by_topic(starts)
        for group_id, interest in self.interests.items():
            failed = topics.get(interest.failed_topic)
            partitions = failed.partitions if failed is not None else 0
            folding.take_offsets(facts[group_id], interest, starts_by_topic, ends_by_topic, partitions)
        if questions.configs:
            answers = tuple(call.response for call in questions.configs if call.error is None)
            self.configs.responses = answers or self.configs.responses
            self.configs.due_at = self.clock.monotonic() + CONFIGS_SECONDS
        for feature in questions.features:
            if feature.error is None:
                self.configs.metadata_version = folding.metadata_version(feature.response)
        return counts, ends[False]

    def _fold(
        self,
        metadata: MetadataResponse,
        topics: dict[str, TopicObservation],
        facts: Mapping[str, GroupFacts],
        counts: Counter[int],
        flows: Mapping[str, Spans],
    ) -> ClusterObservation:
        now = self.clock.wall()
        topics.pop(batches.OFFSETS_TOPIC, None)
        brokers = folding.brokers(metadata)
        since = self.last.reachable_since if self.last and self.last.reachable else None
        return ClusterObservation(
            observed_at=now,
            reachable=True,
            cluster_id=metadata.cluster_id,
            brokers=brokers,
            answered=tuple(sorted(f"{broker.host}:{broker.port}" for broker in brokers if broker.id in counts)),
            metadata_version=self.configs.metadata_version,
            offsets_topic=folding.offsets_topic(metadata, self.configs.responses),
            broker_offsets_partitions=folding.broker_offsets_partitions(self.configs.responses),
            offsets_retention_s=folding.offsets_retention_s(self.configs.responses),
            groups={g: self._fold_group(g, facts, topics, flows, now) for g in self.interests},
            topics=topics,
            group_count=counts.total(),
            groups_per_coordinator=dict(counts),
            last_good_at=now,
            reachable_since=since if since is not None else now,
        )

    def _fold_group(
        self,
        group_id: str,
        facts: Mapping[str, GroupFacts],
        topics: Mapping[str, TopicObservation],
        flows: Mapping[str, Spans],
        now: float,
    ) -> GroupObservation:
        """The main group, and beside it its flow: one of them may be known while the other is not."""
        folded = folding.fold_group(facts[group_id], self._last_of(group_id), now)
        interest = self.interests[group_id]
        if interest.retry is None:
            return replace(folded, retry=None) if folded.retry is not None else folded
        of_retry = facts[interest.retry.group_id]
        retry = self.memory.fold(interest, of_retry, topics, flows[group_id], now)
        return replace(folded, retry=replace(retry, found_delays=self.memory.found_delays.get(group_id)))

    def _last_of(self, group_id: str) -> GroupObservation | None:
        return self.last.groups.get(group_id) if self.last else None


def _resolved(
    interests: Mapping[str, GroupInterest], matches: Mapping[str, tuple[str, ...]]
) -> dict[str, GroupInterest]:
    return {
        group_id: interest
        if interest.pattern is None
        else replace(interest, topics=tuple(dict.fromkeys((*interest.topics, *matches[interest.pattern.text]))))
        for group_id, interest in interests.items()
    }


def _partitions(interest: GroupInterest | None, topics: Mapping[str, TopicObservation]) -> dict[str, int] | None:
    """The partitions whose commits matter; None, all of them, for a group whose topics come from a pattern, and for the
    groups of retry workers, which have no interest of their own."""
    if interest is None or not interest.topics:
        return None
    return {name: topics[name].partitions for name in interest.topics if name in topics and topics[name].partitions}


def _blame(call: Call[Any], asked: Iterable[str], facts: Mapping[str, GroupFacts]) -> bool:
    """True if a call was answered; if not, its groups get the error."""
    if call.error is None:
        return True
    for group_id in asked:
        facts[group_id].error = facts[group_id].error or call.error.reason
    return False


def _merged(calls: Sequence[Call[ListOffsetsResponse]]) -> Offsets:
    """The offsets of all calls that were answered."""
    merged: Offsets = {}
    for call in calls:
        if call.error is None:
            merged |= folding.offsets(call.response)
    return merged


def failure(error: NetError, last: ClusterObservation | None, now: float, *, proven: bool = True) -> ClusterObservation:
    """The observation after a look that failed altogether: the last good values, not reachable, and why.

    `proven` says that looks have failed for long enough. An answer that refuses us needs no second one, unless other
    brokers gave none: they may be restarting, as all of them do when their certificates are renewed.
    """
    base = last or ClusterObservation(observed_at=now, reachable=False)
    message = str(error)
    if isinstance(error, AllBrokersUnreachable):  # in the same order each time, whichever was asked first
        message = f"no broker answers: {'; '.join(sorted(str(failed) for failed in error.failures))}"
    # The classes and not their finer reasons: people read those in the message, and conditions keep to few words.
    causes = error.failures if isinstance(error, AllBrokersUnreachable) else (error,)
    refusals = [cause for cause in causes if isinstance(cause, AuthenticationFailed | TlsFailed)]
    refused_by_all = bool(refusals) and len(refusals) == len(causes)
    reason = "BrokerUnreachable"
    if refusals:
        of_login = any(isinstance(cause, AuthenticationFailed) for cause in refusals)
        reason = "AuthenticationFailed" if of_login else "TlsFailed"
    return replace(
        base,
        observed_at=now,
        reachable=False,
        reason=reason,
        message=message,
        doubtful=not proven and not refused_by_all and base.last_good_at is not None,
        reachable_since=None,
    )
