"""Polls a Kafka cluster once, with a few requests to each broker, however many groups there are.

Runs on the observer's thread. All requests of a phase are in flight together. A broker that does not answer affects
only its own groups and partitions.
"""

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
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.subscriptions import GroupSubscription, RetrySubscription
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, TopicObservation

CALL_SECONDS: Final = 8.0
"""Timeout in seconds of one phase of a poll. A poll has up to four phases in which a hanging broker may cause a
timeout. So such a broker is reported after about half a minute."""
HANGING_CALL_SECONDS: Final = 1.0
HANGING_SECONDS: Final = 30.0
"""Time in seconds for which calls to a broker that has timed out get the shorter timeout HANGING_CALL_SECONDS. With the
full timeout, the polls of all group parts would wait for that broker."""
MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
REFUSED: Final = DescribedGroup(
    error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
    group_id="",
    group_state="",
    protocol_type="",
    protocol_data="",
    members=(),
)
"""Stands for the description of a group if the operator's login may not describe the group or read its commits."""
SURVEYED: Final = (
    *("answered", "metadata_version", "offsets_topic", "offsets_topic_error", "broker_settings"),
    *("group_count", "groups_per_coordinator", "silent_brokers"),
)
"""Fields about the whole cluster. Polls without `survey` copy these fields from the last observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """Inputs of one poll of a group part.

    `subscriptions` is keyed by group id. `last`: newest observation of the cluster. With `survey`, the poll also reads
    the facts about the whole cluster; otherwise it copies them from `last`. The poll ends early if `stopping` returns
    True. With `awaits_offsets_topic`, no coordinator is looked up while `__consumer_offsets` does not exist: a lookup
    would make a broker create this topic with the broker's own settings.
    """

    client: NetworkClient
    clock: Clock
    subscriptions: Mapping[str, GroupSubscription]
    last: ClusterObservation | None
    cluster: ClusterMemory
    part: PartMemory
    stopping: Callable[[], bool]
    survey: bool = True
    awaits_offsets_topic: bool = False

    def run(self) -> ClusterObservation:
        """Poll the cluster. The observation has the `groups`, `topics` and `matches` of this part. Raises NetError if
        the Metadata request fails, and PollAbandonedError if the observer is stopped."""
        with self.client.one_cluster():
            metadata, topics, matches = self._topics()
            # From here on, subscriptions also include the topics that their patterns match.
            resolved = {group_id: each.resolved(matches) for group_id, each in self.subscriptions.items()}
            seen = replace(self, subscriptions=resolved)._observe_part(metadata, topics)
        self.part.repeats.end_poll()
        return replace(seen, matches=matches)

    @property
    def _retries(self) -> dict[str, RetrySubscription]:
        return {group_id: each.retry for group_id, each in self.subscriptions.items() if each.retry is not None}

    def _topics(self) -> tuple[MetadataResponse, dict[str, TopicObservation], Mapping[str, tuple[str, ...]]]:
        """Read the metadata. Return it, the observed topics, and the topics that each pattern matches, keyed by the
        text of the pattern. Patterns need the metadata of all topics; topics without a subscription are then
        dropped."""
        named = {topic for subscription in self.subscriptions.values() for topic in subscription.named_topics}
        patterns = {each.pattern for each in self.subscriptions.values() if each.pattern is not None}
        asked = (*sorted(named), *((batches.OFFSETS_TOPIC,) if self.survey else ()))
        metadata = self.client.metadata(None if patterns else asked, timeout_s=CALL_SECONDS)
        topics = aggregation.topics(metadata)
        matches = self.part.matches.update(patterns, topics)
        if patterns and self.survey and batches.OFFSETS_TOPIC not in topics:
            # A request for all topics omits topics that the login may not describe. A request by name returns the
            # error.
            topics |= aggregation.topics(self.client.metadata((batches.OFFSETS_TOPIC,), timeout_s=CALL_SECONDS))
        if patterns:
            wanted = {*asked, *(topic for names in matches.values() for topic in names)}
            missing = dict.fromkeys(wanted - topics.keys(), TopicObservation(partitions=0, error=TOPIC_NOT_FOUND))
            topics = {name: topics[name] for name in topics if name in wanted} | missing
        return metadata, topics, matches

    def _observe_part(self, metadata: MetadataResponse, topics: dict[str, TopicObservation]) -> ClusterObservation:
        self._discover()
        lacks = self.last is None or self.last.lacks_offsets_topic
        if self.survey:
            lacks = topics[batches.OFFSETS_TOPIC].error == TOPIC_NOT_FOUND
        facts = self._coordinators(ask=not (self.awaits_offsets_topic and lacks))
        questions = self._ask(metadata, topics, facts)
        wait(self.client, questions.calls(), self.stopping)
        self._list_gone(questions, facts)
        self._judge(questions.calls())
        counts, ends = self._answers(questions, topics, facts)
        now = self.clock.wall()
        flow = self.part.flow
        flows = {
            group_id: flow.spans(retry, facts[retry.group_id], topics, ends)
            for group_id, retry in self._retries.items()
        }
        self._search(metadata, flows)
        groups = {
            group_id: observe_group(
                subscription, self._last_of(group_id), facts, flow, topics, flows.get(group_id, {}), now
            )
            for group_id, subscription in self.subscriptions.items()
        }
        return self._observation(metadata, topics, groups, counts, now)

    def _discover(self) -> None:
        """Find the delays of existing retry topics for groups with `discover`, only once per group, because this needs
        the names of all topics."""
        wanted = {group_id for group_id, retry in self._retries.items() if retry.discover}
        known = {
            group_id: self.part.flow.found_delays[group_id] for group_id in wanted & self.part.flow.found_delays.keys()
        }
        if wanted - known.keys():
            found = aggregation.delays_by_group(self.client.metadata(None, timeout_s=CALL_SECONDS))
            known |= {group_id: found.get(group_id, ()) for group_id in wanted - known.keys()}
        self.part.flow.found_delays = known

    def _coordinators(self, *, ask: bool) -> dict[str, GroupFacts]:
        """Create each main and retry group's facts with its coordinator. Only unknown coordinators are looked up."""
        retry = (flow.group_id for flow in self._retries.values())
        known = self.cluster.coordinators
        facts = {group_id: GroupFacts(group_id) for group_id in (*self.subscriptions, *retry)}
        if not ask:
            return {group_id: replace(group, error=OFFSETS_TOPIC_ABSENT) for group_id, group in facts.items()}
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
        repeated, address = self.part.repeats.reuse(node_id, request), self.client.brokers[node_id]
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
            for fetch in batches.offset_fetch_requests(
                {g: _partitions(self.subscriptions.get(g), topics) for g in groups}
            ):
                questions.fetched.append((tuple(g.group_id for g in fetch.groups), self._send(node_id, fetch)))
        self._ask_offsets(metadata, questions)
        self._ask_settings(topics, questions)
        if self.survey and self.client.brokers:
            self._ask_configs(topics, questions)
        return questions

    def _ask_configs(self, topics: Mapping[str, TopicObservation], questions: Questions) -> None:
        """Request `ConfigFacts`: each broker's own settings, and all other settings from one broker."""
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
        elif due or configs.topic is None:  # the settings of a new topic are read without delay
            questions.ask(self._send(one, batches.offsets_topic_config_request()), configs.take_topic)

    def _ask_offsets(self, metadata: MetadataResponse, questions: Questions) -> None:
        wanted: dict[bool, set[str]] = {False: set(), True: set()}
        managed: set[str] = set()
        for subscription in self.subscriptions.values():
            wanted[subscription.read_committed] |= {*subscription.topics, *self._committed_topics(subscription)}
            managed |= {*(subscription.retry.flow if subscription.retry is not None else ()), subscription.failed_topic}
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
        """Request those settings of managed topics and their source topics that are due to be read. The requests are
        spread over the brokers, because any broker can answer."""
        wanted = {
            name
            for subscription in self.subscriptions.values()
            if subscription.retry is not None
            for name in (*subscription.topics, *subscription.retry.flow, subscription.failed_topic)
            if name in topics and not topics[name].error
        }
        settings = self.part.flow.settings
        requests = settings.requests(wanted, self.clock.monotonic())
        for node_id, request in zip(cycle(sorted(self.client.brokers)), requests, strict=False):
            questions.ask(
                self._send(node_id, request), lambda answer: settings.record_response(answer, self.clock.monotonic())
            )

    def _led(self, metadata: MetadataResponse, names: Iterable[str]) -> list[tuple[int, list[batches.Partition]]]:
        led = batches.leaders_of(metadata, names)
        return [(node_id, partitions) for node_id, partitions in led.items() if node_id in self.client.brokers]

    def _committed_topics(self, subscription: GroupSubscription) -> set[str]:
        """The topics with commits at the last poll, for a group whose subscription lists no source topics."""
        last = self._last_of(subscription.group_id)
        return {topic for topic, _ in last.committed} if last and not subscription.topics else set()

    def _search(self, metadata: MetadataResponse, flows: Mapping[str, Spans]) -> None:
        names = {name for spans in flows.values() for name, _ in spans}
        leaders = {partition: node_id for node_id, led in self._led(metadata, names) for partition in led}
        silent: set[int] = set()
        now_ms = int(self.clock.wall() * 1000)
        self.part.flow.search(flows.values(), now_ms, lambda times: self._offsets_for_times(times, leaders, silent))

    def _offsets_for_times(
        self, times: Mapping[batches.Partition, int], leaders: Mapping[batches.Partition, int], silent: set[int]
    ) -> dict[batches.Partition, Found | None]:
        """Send one round of requests of the search. A broker whose call fails gets no further requests of the search in
        this poll, to avoid more timeouts."""
        by_leader: dict[int, dict[batches.Partition, int]] = defaultdict(dict)
        for partition, time_ms in times.items():
            if partition in leaders and leaders[partition] not in silent:
                by_leader[leaders[partition]][partition] = time_ms
        calls = [
            (node_id, self._send(node_id, request))
            for node_id, led in by_leader.items()
            for request in batches.list_offsets_requests(led)
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
        """Send ListGroups to the coordinators of groups that seem to be missing, once per coordinator and poll.

        DescribeGroups describes a group that changed to another protocol like a missing group; only ListGroups shows
        the difference. If ListGroups fails, its error becomes the group's error. Groups that were Dead or unobserved
        before wait for the next poll with `survey`, because there may be thousands of new groups that do not exist yet.
        """
        gone = [
            facts[group.group_id]
            for _, call in questions.described
            if call.error is None
            for group in call.response.groups
            if group.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
            if aggregation.state_of(group) == DEAD and group.group_id in self.subscriptions
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
        """Record the brokers whose calls timed out, and drop the brokers that answer again."""
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
        """Fill in the facts of the groups. Return the number of groups per coordinator, and the log end offsets."""
        counts: Counter[int] = Counter()
        for node_id, listed in questions.listed.items():
            if listed.error is None and not listed.response.error_code:
                groups = listed.response.groups
                counts[node_id] = len(groups)
                others = frozenset(group.group_id for group in groups if not aggregation.is_classic(group))
                self.cluster.other_groups[node_id] = others
        if self.survey:  # drop the lists of brokers that have left the cluster
            for gone in self.cluster.other_groups.keys() - self.client.brokers.keys():
                del self.cluster.other_groups[gone]
        for group_id, group in facts.items():
            if self.cluster.is_other(group_id):
                group.error = group.error or aggregation.NOT_CLASSIC
        questions.take_groups(facts)
        for group in facts.values():
            if group.error == AUTHORIZATION_FAILED:  # a login without Describe also lacks Read
                group.described = replace(REFUSED, group_id=group.group_id)
            described = group.described
            if group.error is not None or described is None or described.error_code in MOVED:
                self.cluster.coordinators.pop(group.group_id, None)  # the next poll looks up the coordinator
        ends = self._take_logs(questions, topics, facts)
        for call, take in questions.others:
            if call.error is None:
                take(call.response)
        return counts, ends

    def _take_logs(
        self, questions: Questions, topics: Mapping[str, TopicObservation], facts: Mapping[str, GroupFacts]
    ) -> Offsets:
        """Record the offsets of each group's topics. Return the log end offsets that are high watermarks."""
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

        for group_id, subscription in self.subscriptions.items():
            group = facts[group_id]
            sources = subscription.topics or tuple(sorted({topic for topic, _ in group.committed or {}}))
            group.log = log(subscription.read_committed, sources)
            if subscription.failed_topic:
                group.failed = log(False, (subscription.failed_topic,))
                failed = topics.get(subscription.failed_topic)
                group.failed_partitions = failed.partitions if failed is not None else 0
        return {key: end for offsets in ends[False].values() for key, end in offsets.items()}

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


def _partitions(
    subscription: GroupSubscription | None, topics: Mapping[str, TopicObservation]
) -> dict[str, int] | None:
    """Partition counts of the topics whose commits are requested; None requests all commits. All are requested for
    retry groups (which have no subscription), for subscriptions without source topics, and while a topic is unknown.
    The result is never empty, because an empty mapping would request no commits."""
    if subscription is None or not subscription.topics:
        return None
    found = {
        name: topics[name].partitions for name in subscription.topics if name in topics and topics[name].partitions
    }
    return found if len(found) == len(set(subscription.topics)) else None
