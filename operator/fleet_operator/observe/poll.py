"""One poll of a Kafka cluster: a handful of requests to each broker, however many groups there are.

Runs on the observer's thread. All requests of a phase are under way at once; a broker that does not answer costs its
own groups and partitions, not the others'.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.net import BrokerAddress, Call, ConnectFailed, Coordinator, NetworkClient, RequestTimedOut
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import DescribedGroup, ListGroupsRequest
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.topics import EARLIEST, LATEST, ListOffsetsResponse, MetadataResponse
from fleet_operator.api.v1alpha1.conditions import AUTHORIZATION_FAILED, OFFSETS_TOPIC_ABSENT, TOPIC_NOT_FOUND
from fleet_operator.observe import aggregation, batches
from fleet_operator.observe.aggregation import DEAD, GroupFacts, Offsets, TopicLog
from fleet_operator.observe.calls import Questions, ResponseT, read, wait
from fleet_operator.observe.due import Found
from fleet_operator.observe.flow import Spans
from fleet_operator.observe.group_aggregation import observe_group
from fleet_operator.observe.interests import GroupInterest
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, TopicObservation

CALL_SECONDS: Final = 8.0
"""Patience with one phase of a poll. A broker that hangs may cost four of them, and is reported after half a minute."""
HANGING_CALL_SECONDS: Final = 1.0
HANGING_SECONDS: Final = 30.0
"""Patience with a broker that let a call time out, and for how long it is so short: there is a poll for each part, and
each would wait for that broker. Then it may be slow again."""
MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
REFUSED: Final = DescribedGroup(
    error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
    group_id="",
    group_state="",
    protocol_type="",
    protocol_data="",
    members=(),
)
"""The description of a group whose coordinator or commits the brokers keep from this login."""
SURVEYED: Final = (
    *("answered", "metadata_version", "offsets_topic", "offsets_topic_error", "broker_settings"),
    *("group_count", "groups_per_coordinator", "silent_brokers"),
)
"""Facts of the whole cluster, which only a survey asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """Inputs of one poll of a part of the groups.

    `interests` are by group id; `last` is the newest observation of the cluster; `survey` asks for the facts of the
    whole cluster too, which are those of `last` otherwise; `stopping` ends waits. With `awaits_offsets_topic` nobody is
    asked for a coordinator while `__consumer_offsets` does not exist: a broker would create it with its own settings.
    """

    client: NetworkClient
    clock: Clock
    interests: Mapping[str, GroupInterest]
    last: ClusterObservation | None
    cluster: ClusterMemory
    part: PartMemory
    stopping: Callable[[], bool]
    survey: bool = True
    awaits_offsets_topic: bool = False

    def take(self) -> ClusterObservation:
        """Ask the cluster; `groups`, `topics` and `matches` of the observation are those of this part.

        Raises NetError when not even Metadata can be had, or PollAbandonedError.
        """
        with self.client.one_cluster():
            metadata, topics, matches = self._topics()
            # From here on a pattern is the topics that it matches now.
            resolved = {group_id: interest.resolved(matches) for group_id, interest in self.interests.items()}
            seen = replace(self, interests=resolved)._take(metadata, topics)
        self.part.repeats.end_poll()
        return replace(seen, matches=matches)

    def _topics(self) -> tuple[MetadataResponse, dict[str, TopicObservation], Mapping[str, tuple[str, ...]]]:
        """The topics that matter, and by each pattern's text those that it matches.

        Patterns need the names of all topics; what nobody cares for is left out again.
        """
        named = {topic for interest in self.interests.values() for topic in interest.named_topics}
        patterns = {interest.pattern for interest in self.interests.values() if interest.pattern is not None}
        asked = (*sorted(named), *((batches.OFFSETS_TOPIC,) if self.survey else ()))
        metadata = self.client.metadata(None if patterns else asked, timeout_s=CALL_SECONDS)
        topics = aggregation.topics(metadata)
        matches = self.part.matches.update(patterns, topics)
        if patterns and self.survey and batches.OFFSETS_TOPIC not in topics:
            # A list leaves out what may not be described; asked by name, a broker says why.
            topics |= aggregation.topics(self.client.metadata((batches.OFFSETS_TOPIC,), timeout_s=CALL_SECONDS))
        if patterns:
            wanted = {*asked, *(topic for names in matches.values() for topic in names)}
            missing = dict.fromkeys(wanted - topics.keys(), TopicObservation(partitions=0, error=TOPIC_NOT_FOUND))
            topics = {name: topics[name] for name in topics if name in wanted} | missing
        return metadata, topics, matches

    def _take(self, metadata: MetadataResponse, topics: dict[str, TopicObservation]) -> ClusterObservation:
        self._discover()
        facts = self._coordinators(ask=not (self.awaits_offsets_topic and self._lacks_offsets_topic(topics)))
        questions = self._ask(metadata, topics, facts)
        wait(self.client, questions.calls(), self.stopping)
        self._list_gone(questions, facts)
        self._judge(questions.calls())
        counts, ends = self._answers(questions, topics, facts)
        now = self.clock.wall()
        flow = self.part.flow
        flows = {
            group_id: flow.spans(interest.retry, facts[interest.retry.group_id], topics, ends)
            for group_id, interest in self.interests.items()
            if interest.retry is not None
        }
        self._search(metadata, flows)
        groups = {
            group_id: observe_group(
                interest, self._last_of(group_id), facts, flow, topics, flows.get(group_id, {}), now
            )
            for group_id, interest in self.interests.items()
        }
        return self._observation(metadata, topics, groups, counts, now)

    def _discover(self) -> None:
        """Find the retry topics of groups that do not know theirs: once, as that takes the names of all topics."""
        wanted = {g for g, interest in self.interests.items() if interest.retry is not None and interest.retry.discover}
        known = {
            group_id: self.part.flow.found_delays[group_id] for group_id in wanted & self.part.flow.found_delays.keys()
        }
        if wanted - known.keys():
            found = aggregation.delays_by_group(self.client.metadata(None, timeout_s=CALL_SECONDS))
            known |= {group_id: found.get(group_id, ()) for group_id in wanted - known.keys()}
        self.part.flow.found_delays = known

    def _lacks_offsets_topic(self, topics: Mapping[str, TopicObservation]) -> bool:
        if self.survey:
            return topics[batches.OFFSETS_TOPIC].error == TOPIC_NOT_FOUND
        return self.last is None or self.last.lacks_offsets_topic

    def _coordinators(self, *, ask: bool) -> dict[str, GroupFacts]:
        """The coordinator of each group, those of the retry workers too; only unknown ones are looked up."""
        retry = (interest.retry.group_id for interest in self.interests.values() if interest.retry is not None)
        known = self.cluster.coordinators
        facts = {group_id: GroupFacts(group_id) for group_id in (*self.interests, *retry)}
        if not ask:
            return {group_id: replace(of, error=OFFSETS_TOPIC_ABSENT) for group_id, of in facts.items()}
        unknown = sorted(group_id for group_id in facts if known.get(group_id) not in self.client.brokers)
        if unknown:
            for group_id, coordinator in self.client.find_coordinators(unknown, timeout_s=CALL_SECONDS).items():
                if isinstance(coordinator, Coordinator):
                    known[group_id] = coordinator.node_id
                else:
                    known.pop(group_id, None)
                    facts[group_id].error = aggregation.reason_of(coordinator.code)
        for group in facts.values():
            group.coordinator_id = known.get(group.group_id)
        return facts

    def _send(self, node_id: int, request: Request[ResponseT]) -> Call[ResponseT]:
        repeated, address = self.part.repeats.of(node_id, request), self.client.brokers[node_id]
        hangs = self.clock.monotonic() < self.cluster.hanging.get(address, float("-inf"))
        return self.client.send(address, repeated, timeout_s=HANGING_CALL_SECONDS if hangs else CALL_SECONDS)

    def _ask(
        self, metadata: MetadataResponse, topics: Mapping[str, TopicObservation], facts: Mapping[str, GroupFacts]
    ) -> Questions:
        questions = Questions()
        for node_id in self.client.brokers if self.survey else ():
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
        if self.survey and self.client.brokers:
            self._ask_configs(topics, questions)
        return questions

    def _ask_configs(self, topics: Mapping[str, TopicObservation], questions: Questions) -> None:
        """Ask for `ConfigFacts`: brokers each for themselves, everything else any of them."""
        live, configs = self.client.brokers, self.cluster.configs
        due, one = configs.is_due(self.clock.monotonic()), min(live)
        for gone in configs.brokers.keys() - live.keys():
            del configs.brokers[gone]
        for node_id in sorted(live if due else live.keys() - configs.brokers.keys()):
            call = self._send(node_id, batches.broker_config_request(node_id))
            questions.ask(call, partial(configs.take_broker, node_id))
        if due:
            questions.ask(self._send(one, batches.features_request()), configs.take_features)
        if topics[batches.OFFSETS_TOPIC].error == TOPIC_NOT_FOUND:
            configs.topic = None
        elif due or configs.topic is None:  # at once for one that was just created
            questions.ask(self._send(one, batches.offsets_topic_config_request()), configs.take_topic)

    def _ask_offsets(self, metadata: MetadataResponse, questions: Questions) -> None:
        wanted: dict[bool, set[str]] = {False: set(), True: set()}
        managed: set[str] = set()
        for interest in self.interests.values():
            wanted[interest.read_committed] |= {*interest.topics, *self._committed_topics(interest)}
            managed |= {*(interest.retry.flow if interest.retry is not None else ()), interest.failed_topic}
        sources = wanted[False] | wanted[True]
        wanted[False] |= managed
        for read_committed, names in wanted.items():
            questions.ends[read_committed] = self._list(metadata, names, LATEST, read_committed=read_committed)
        compared = self.cluster.logs.due_comparisons(wanted[True], self.clock.monotonic())
        questions.highs = self._list(metadata, compared, LATEST)
        questions.managed = self.part.flow.starts_wanted(managed, self.clock.monotonic())
        questions.starts = self._list(metadata, sources | questions.managed, EARLIEST)

    def _list(
        self, metadata: MetadataResponse, names: Iterable[str], timestamp: int, *, read_committed: bool = False
    ) -> list[Call[ListOffsetsResponse]]:
        return [
            self._send(node_id, request)
            for node_id, partitions in self._led(metadata, names)
            for request in batches.list_offsets_requests(
                dict.fromkeys(partitions, timestamp), read_committed=read_committed
            )
        ]

    def _ask_settings(self, topics: Mapping[str, TopicObservation], questions: Questions) -> None:
        """Ask for the due settings of managed topics and their sources, spread over the brokers: any can answer."""
        wanted = {
            name
            for interest in self.interests.values()
            if interest.retry is not None
            for name in (*interest.topics, *interest.retry.flow, interest.failed_topic)
            if name in topics and not topics[name].error
        }
        settings = self.part.flow.settings
        requests = settings.requests(wanted, self.clock.monotonic())
        for node_id, request in zip(cycle(sorted(self.client.brokers)), requests, strict=False):
            questions.ask(self._send(node_id, request), lambda answer: settings.take(answer, self.clock.monotonic()))

    def _led(self, metadata: MetadataResponse, names: Iterable[str]) -> list[tuple[int, list[batches.Partition]]]:
        led = batches.leaders_of(metadata, names)
        return [(node_id, partitions) for node_id, partitions in led.items() if node_id in self.client.brokers]

    def _committed_topics(self, interest: GroupInterest) -> set[str]:
        """For a group whose topics come from a pattern: those it had commits for at the last poll."""
        last = self._last_of(interest.group_id)
        return {topic for topic, _ in last.committed} if last and not interest.topics else set()

    def _search(self, metadata: MetadataResponse, flows: Mapping[str, Spans]) -> None:
        names = {name for spans in flows.values() for name, _ in spans}
        leaders = {partition: node_id for node_id, led in self._led(metadata, names) for partition in led}
        silent: set[int] = set()
        now_ms = int(self.clock.wall() * 1000)
        self.part.flow.search(flows.values(), now_ms, lambda times: self._offsets_for_times(times, leaders, silent))

    def _offsets_for_times(
        self, times: Mapping[batches.Partition, int], leaders: Mapping[batches.Partition, int], silent: set[int]
    ) -> dict[batches.Partition, Found | None]:
        """One round. A broker that fails once is not asked again in this poll: each time it would cost its time-out."""
        by_leader: dict[int, dict[batches.Partition, int]] = defaultdict(dict)
        for partition, time_ms in times.items():
            if partition in leaders and leaders[partition] not in silent:
                by_leader[leaders[partition]][partition] = time_ms
        calls = [
            (node_id, self._send(node_id, request))
            for node_id, of in by_leader.items()
            for request in batches.list_offsets_requests(of)
        ]
        wait(self.client, (call for _, call in calls), self.stopping)
        answers: dict[batches.Partition, Found | None] = {}
        for node_id, call in calls:
            if call.error is None:
                answers |= aggregation.found(call.response)
            else:
                silent.add(node_id)
        return answers

    def _list_gone(self, questions: Questions, facts: Mapping[str, GroupFacts]) -> None:
        """Have the coordinators of groups that seem to be gone list their groups, if this poll does not anyway.

        Another protocol may have taken a group over, which DescribeGroups does not tell. Without the list nobody knows.
        What groups there are that polls have not seen yet, the last survey knows: thousands may be new, and not exist.
        """
        gone = [
            facts[group.group_id]
            for _, call in questions.described
            if call.error is None
            for group in call.response.groups
            if group.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
            if aggregation.state_of(group) == DEAD and group.group_id in self.interests
            if not self.cluster.is_other(group.group_id)
        ]
        gone = [group for group in gone if (last := self._last_of(group.group_id)) is not None and last.state != DEAD]
        nodes = {group.coordinator_id for group in gone if group.coordinator_id is not None}
        for node_id in sorted(nodes - questions.listed.keys()):
            questions.listed[node_id] = self._send(node_id, ListGroupsRequest())
        wait(self.client, questions.listed.values(), self.stopping)
        for group in gone:
            listed = questions.listed.get(group.coordinator_id) if group.coordinator_id is not None else None
            if listed is not None and listed.error is not None:
                group.error = listed.error.reason

    def _judge(self, calls: Iterable[Call[Any]]) -> None:
        """Note the brokers that do not answer in time, and forget those that do again."""
        hanging, answering = set[BrokerAddress](), set[BrokerAddress]()
        for call in calls:
            if call.error is None:
                answering.add(call.address)
            elif isinstance(call.error, RequestTimedOut | ConnectFailed):
                hanging.add(call.address)
        now, known, listed = self.clock.monotonic(), self.cluster.hanging, set(self.client.brokers.values())
        for address in known.keys() - hanging:
            if address in answering or address not in listed:
                del known[address]
        for address in hanging:
            if known.get(address, float("-inf")) <= now:
                known[address] = now + HANGING_SECONDS

    def _answers(
        self, questions: Questions, topics: Mapping[str, TopicObservation], facts: dict[str, GroupFacts]
    ) -> tuple[Counter[int], Offsets]:
        """Fill in the facts; returns how many groups each broker coordinates, and the ends of logs."""
        counts: Counter[int] = Counter()
        for node_id, listed in questions.listed.items():
            if listed.error is None and not listed.response.error_code:
                groups = listed.response.groups
                counts[node_id] = len(groups)
                others = frozenset(group.group_id for group in groups if not aggregation.is_classic(group))
                self.cluster.other_groups[node_id] = others
        if self.survey:  # brokers that have left do not list any more
            for gone in self.cluster.other_groups.keys() - self.client.brokers.keys():
                del self.cluster.other_groups[gone]
        for group_id, group in facts.items():
            if self.cluster.is_other(group_id):
                group.error = group.error or aggregation.NOT_CLASSIC
        questions.take_groups(facts)
        for group in facts.values():
            if group.error == AUTHORIZATION_FAILED:  # the requests take Describe, which Read implies
                group.described = replace(REFUSED, group_id=group.group_id)
            described = group.described
            if group.error is not None or described is None or described.error_code in MOVED:
                self.cluster.coordinators.pop(group.group_id, None)  # it is looked up again
        ends = self._take_logs(questions, topics, facts)
        for call, take in questions.others:
            if call.error is None:
                take(call.response)
        return counts, ends

    def _take_logs(
        self, questions: Questions, topics: Mapping[str, TopicObservation], facts: Mapping[str, GroupFacts]
    ) -> Offsets:
        """Give each group the offsets of its topics; returns the ends of all logs."""
        logs, now = self.cluster.logs, self.clock.wall()
        starts = read(questions.starts)
        self.part.flow.take_starts(questions.managed, starts, self.clock.monotonic())
        begun = starts | self.part.flow.starts
        logs.take_starts(begun)
        ends = {read_committed: read(calls) for read_committed, calls in questions.ends.items()}
        for read_committed, found in ends.items():
            logs.take_ends(read_committed, found, now)
        logs.compare(ends[True], read(questions.highs), now, self.clock.monotonic())

        @cache
        def log(read_committed: bool, names: tuple[str, ...]) -> TopicLog:
            return logs.log(read_committed, names, ends=ends[read_committed], starts=begun)

        for group_id, interest in self.interests.items():
            group = facts[group_id]
            sources = interest.topics or tuple(sorted({topic for topic, _ in group.committed or {}}))
            group.log = log(interest.read_committed, sources)
            if interest.failed_topic:
                group.failed = log(False, (interest.failed_topic,))
                failed = topics.get(interest.failed_topic)
                group.failed_partitions = failed.partitions if failed is not None else 0
        return {key: end for of in ends[False].values() for key, end in of.items()}

    def _observation(
        self,
        metadata: MetadataResponse,
        topics: dict[str, TopicObservation],
        groups: Mapping[str, GroupObservation],
        counts: Counter[int],
        now: float,
    ) -> ClusterObservation:
        last, configs = self.last, self.cluster.configs
        offsets_topic = topics.pop(batches.OFFSETS_TOPIC, None)
        since = last.reachable_since if last and last.reachable else None
        brokers = aggregation.brokers(metadata)
        seen = ClusterObservation(
            observed_at=now,
            reachable=True,
            cluster_id=metadata.cluster_id,
            brokers=brokers,
            groups=groups,
            topics=topics,
            last_good_at=now,
            reachable_since=since if since is not None else now,
        )
        if not self.survey and last is not None:
            kept = {name: getattr(last, name) for name in SURVEYED}
            return replace(seen, **kept)
        error = offsets_topic.error if offsets_topic is not None else None
        live = {broker.id for broker in brokers}
        carried = last.groups_per_coordinator if last is not None else {}
        kept_groups = {node: groups for node, groups in carried.items() if node in live - counts.keys()}
        return replace(
            seen,
            answered=tuple(sorted(f"{broker.host}:{broker.port}" for broker in brokers if broker.id in counts)),
            metadata_version=configs.metadata_version,
            offsets_topic=aggregation.offsets_topic(metadata, configs.topic),
            offsets_topic_error=None if error == TOPIC_NOT_FOUND else error,
            broker_settings=dict(configs.brokers),
            group_count=counts.total() if live <= counts.keys() else None,
            groups_per_coordinator=kept_groups | counts,
            silent_brokers=tuple(sorted(live - counts.keys())),
        )

    def _last_of(self, group_id: str) -> GroupObservation | None:
        return self.last.groups.get(group_id) if self.last else None


def _partitions(interest: GroupInterest | None, topics: Mapping[str, TopicObservation]) -> dict[str, int] | None:
    """The partitions whose commits matter; None, all of them, for a group whose topics come from a pattern, for the
    groups of retry workers, which have no interest of their own, and while a topic is unknown: Kafka answers a request
    for no partitions with no commits, which is not the same as a group without any."""
    if interest is None or not interest.topics:
        return None
    found = {name: topics[name].partitions for name in interest.topics if name in topics and topics[name].partitions}
    return found if len(found) == len(set(interest.topics)) else None
