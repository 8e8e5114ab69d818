"""Keeps the state of all retry flows between polls, and makes observations from this state.

This module has no I/O and no clock: `poll` sends the requests that are built here, and passes the answers back. Used by
the observer's thread. If there is no answer for a partition, its numbers are unknown, and so are all sums with these
numbers.

DescribeConfigs is the costliest request, because a broker builds a topic's whole configuration even for one setting.
Therefore settings are read only about once a minute.

Decision: docs/decisions/0016-due-lag.md.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet_consumer.contract.managed_topics import SIZE
from fleet_consumer.wire import admin
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.api.v1alpha1.conditions import TOPIC_NOT_FOUND
from fleet_operator.observe import aggregation, due
from fleet_operator.observe.aggregation import NOT_OBSERVED, GroupFacts, Offsets
from fleet_operator.observe.batches import Partition, chunks, config_request
from fleet_operator.observe.due import Found, Frontier, Head
from fleet_operator.observe.subscriptions import GroupSubscription, RetrySubscription
from fleet_operator.planning.observation import Gap, ManagedTopic, RetryObservation, TopicObservation
from fleet_operator.planning.retry.topics import ASKED_SETTINGS

FRESH_SECONDS: Final = 60.0
"""Seconds after which settings are read again. Settings that the operator has changed are read again by the next
poll."""
TOPICS_PER_POLL_MAX: Final = 2_000
TOPICS_PER_REQUEST_MAX: Final = 250

Settings = Mapping[str, str]


@dataclass(slots=True)
class TopicConfigs:
    """Settings of topics, which are read about once a minute. The requests are spread over polls and brokers. Times are
    monotonic seconds."""

    _known: dict[str, Settings] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def known(self, topic: str) -> Settings | None:
        """A topic's settings, keyed by setting name; None if they have not been read yet, or if a broker refuses to
        return them."""
        return self._known.get(topic)

    def invalidate(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._known.pop(topic, None)
            self._due.pop(topic, None)

    def requests(self, wanted: Collection[str], now: float) -> list[admin.DescribeConfigsRequest]:
        """Build this poll's requests: first for topics whose settings were never read, then for those read longest
        ago."""
        for gone in self._due.keys() - wanted:
            self.invalidate((gone,))
        due = sorted((self._due.get(topic, 0.0), topic) for topic in wanted if self._due.get(topic, 0.0) <= now)
        names = sorted(topic for _, topic in due[:TOPICS_PER_POLL_MAX])
        parts = chunks(names, TOPICS_PER_REQUEST_MAX)
        return [config_request(admin.TOPIC_RESOURCE, part, ASKED_SETTINGS) for part in parts]

    def record_response(self, response: admin.DescribeConfigsResponse, now: float) -> None:
        """Record a response. Topics that the broker does not know yet are requested again by the next poll."""
        for result in response.results:
            name = result.resource_name
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.invalidate((name,))
                continue
            self._due[name] = now + FRESH_SECONDS
            if result.error_code:
                self._known.pop(name, None)
            else:
                read = {entry.name: entry.value for entry in result.configs if entry.value is not None}
                if self._known.get(name) != read:  # keep the same object while the settings are equal
                    self._known[name] = read


GONE_SECONDS: Final = 60.0
"""Time for which polls must miss a topic before the topic counts as deleted, because a broker's metadata may be
outdated."""
STARTS_SECONDS: Final = 60.0
"""Interval at which the log start offsets of managed topics are read. It is long, because only retention raises
them."""
SEARCH_ROUNDS_MAX: Final = 8
"""Largest number of rounds in one poll's search for overdue heads. Two steps back and five bisections find most append
times to within a second."""
PROBES_PER_ROUND_MAX: Final = 20_000
"""Largest number of heads that are probed in one round. The other heads keep their upper bounds, so they seem to be
overdue for a shorter time than they are."""


class Span(NamedTuple):
    """Offsets of a partition. Records from `position` up to, but not including, `end` wait for the retry workers.
    Records from `unread` up to, but not including, `position` were deleted before they were handled."""

    unread: int
    position: int
    end: int
    delay_ms: int

    @property
    def waiting(self) -> int:
        return self.end - self.position


Spans = Mapping[Partition, Span | None]
"""For each partition of one group's flow, its span; None if one of the partition's offsets is unknown."""
Ask = Callable[[Mapping[Partition, int]], Mapping[Partition, Found | None]]
"""A function that requests offsets for times (ListOffsets). The result omits partitions whose broker does not
answer."""


@dataclass(slots=True)
class FlowMemory:
    """State of the retry flows between polls. Times are monotonic seconds; times of records are epoch milliseconds."""

    settings: TopicConfigs = field(default_factory=TopicConfigs)
    starts: dict[str, Offsets] = field(default_factory=dict)
    """Log start offsets of managed topics, keyed by topic."""
    found_delays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Delays of existing retry topics, keyed by main group, for groups whose subscription has `discover`."""
    _starts_due: dict[str, float] = field(default_factory=dict)
    _frontiers: dict[Partition, Frontier] = field(default_factory=dict)
    _earlier_frontiers: dict[Partition, Frontier] = field(default_factory=dict)
    """The previous frontiers. When such a frontier becomes the partition's head, the head's append time is already
    known."""
    _heads: dict[Partition, Head] = field(default_factory=dict)
    _beyond: dict[Partition, int] = field(default_factory=dict)
    """Committed offsets that were beyond the log end offset at the last poll."""
    _uncommitted: dict[Partition, int] = field(default_factory=dict)
    """For each partition without a commit, its log start offset at the first read. All records from this offset on were
    waiting, including records that have been deleted since."""
    _missed: dict[str, float] = field(default_factory=dict)
    """Managed topics that were missing in the last poll, each with the time since which it has been missing (epoch
    seconds)."""

    def starts_wanted(self, topics: Collection[str], now: float) -> set[str]:
        gone = {*self._starts_due, *self._missed, *self.starts}.difference(topics)
        for topic in gone:
            self._starts_due.pop(topic, None)
            self._missed.pop(topic, None)
            self.starts.pop(topic, None)
        for offsets in (self._beyond, self._uncommitted) if gone else ():
            for key in [key for key in offsets if key[0] in gone]:
                del offsets[key]
        return {topic for topic in topics if self._starts_due.get(topic, 0.0) <= now}

    def take_starts(self, topics: Iterable[str], answered: Mapping[str, Offsets], now: float) -> None:
        for topic in answered.keys() & topics:
            self.starts[topic] = self.starts.get(topic, {}) | answered[topic]
            self._starts_due[topic] = now + STARTS_SECONDS

    def ask_starts(self, topic: str) -> None:
        """Make the next poll read a topic's log start offsets, because an offset is unknown, or the topic was
        recreated."""
        self._starts_due.pop(topic, None)

    def invalidate_topics(self, topics: Iterable[str]) -> None:
        """Make the next poll read the settings and log starts of changed topics again."""
        names = frozenset(topics)
        self.settings.invalidate(names)
        for name in names:
            self._starts_due.pop(name, None)

    def spans(
        self, subscription: RetrySubscription, facts: GroupFacts, topics: Mapping[str, TopicObservation], ends: Offsets
    ) -> dict[Partition, Span | None]:
        """The spans of one group's retry flow, keyed by partition; None for a partition with an unknown offset."""
        found: dict[Partition, Span | None] = {}
        for name, delay_s in subscription.flow.items():
            topic = topics.get(name)
            for index in range(topic.partitions if topic is not None else 0):
                found[name, index] = self._span((name, index), facts.committed, ends, delay_s * 1000)
        return found

    def _span(self, key: Partition, committed: Offsets | None, ends: Offsets, delay_ms: int) -> Span | None:
        """The span of one partition. A commit beyond the log end counts only if two consecutive polls observe it: the
        commit and the log end are read by two requests, and may change in between."""
        end, start = ends.get(key), self.starts.get(key[0], {}).get(key)
        if end is None or committed is None:
            return None
        if start is None or end < start:  # a new partition, or a recreated topic
            self.ask_starts(key[0])
            return None
        place = committed.get(key)
        if place is not None and place > end and self._beyond.get(key) != place:
            self._beyond[key] = place
            return None
        position = due.position(place, start, end)
        if place is None:
            self._uncommitted[key] = unread = min(self._uncommitted.get(key, start), start)
        else:
            self._uncommitted.pop(key, None)
            unread = place
        return Span(min(unread, position), position, end, delay_ms)

    def search(self, flows: Collection[Spans], now_ms: int, ask: Ask) -> None:
        """Find the frontiers and overdue heads of all flows in at most 1 + SEARCH_ROUNDS_MAX rounds of requests."""
        asked = self.questions(flows, now_ms)
        self.take_frontiers(asked, ask(asked) if asked else {}, flows)
        self.find_heads(flows, now_ms)
        for number in range(SEARCH_ROUNDS_MAX):
            asked = self.probes(flows, now_ms, first=number == 0)
            if not asked:
                return
            for key, found in ask(asked).items():
                self._heads[key] = due.learn(self._heads[key], asked[key], found)

    def questions(self, flows: Iterable[Spans], now_ms: int) -> dict[Partition, int]:
        """The request times (ListOffsets) that find the frontiers, only for partitions whose frontier may have
        changed."""
        asked = {}
        known: set[Partition] = set()
        for key, span in _waiting(flows):
            known.add(key)
            if span.delay_ms == 0:
                continue  # without a delay, all records are due immediately
            last = self._frontiers.get(key)
            if last is None or not last.holds(delay_ms=span.delay_ms, end=span.end, now_ms=now_ms):
                asked[key] = now_ms - span.delay_ms + 1  # records appended at this time or later are not due yet
        self._frontiers = {key: value for key, value in self._frontiers.items() if key in known}
        self._earlier_frontiers = {key: value for key, value in self._earlier_frontiers.items() if key in known}
        self._heads = {key: value for key, value in self._heads.items() if key in known}
        return asked

    def take_frontiers(
        self, asked: Collection[Partition], answers: Mapping[Partition, Found | None], flows: Iterable[Spans]
    ) -> None:
        """Record the frontiers that were found. The frontier of a requested partition without an answer becomes
        unknown."""
        ends = {key: span.end for key, span in _waiting(flows)}
        for key in asked:
            last = self._frontiers.pop(key, None)
            if last is not None and last.append_ms is not None:
                self._earlier_frontiers[key] = last
            if key in answers:
                found = answers[key]  # None if all records are older
                self._frontiers[key] = Frontier(ends[key], None) if found is None else Frontier(*found)

    def find_heads(self, flows: Iterable[Spans], now_ms: int) -> None:
        for key, span in _waiting(flows):
            if not self._due(key, span):
                self._heads.pop(key, None)
                continue
            latest = now_ms - span.delay_ms
            self._heads[key] = due.head(self._heads.get(key), self._earlier_frontiers.get(key), span.position, latest)

    def probes(self, flows: Iterable[Spans], now_ms: int, *, first: bool) -> dict[Partition, int]:
        """The request times (ListOffsets) of the next round. The first round probes all heads that `due.searched`
        returns; later rounds probe only those whose bounds are still `coarse`."""
        asked: dict[Partition, int] = {}
        for spans in flows:
            heads = {
                key: (self._heads[key], span.delay_ms) for key, span in spans.items() if span and key in self._heads
            }
            for key, head in due.searched(heads).items():
                overdue_ms = now_ms - heads[key][1] - head.high
                if (first or head.coarse(overdue_ms)) and len(asked) < PROBES_PER_ROUND_MAX:
                    asked[key] = due.probe(head)
        return asked

    def _due(self, key: Partition, span: Span) -> int | None:
        """The number of due records in one partition; None if unknown."""
        if span.delay_ms == 0 or span.waiting == 0:
            return span.waiting
        last = self._frontiers.get(key)
        return None if last is None else max(0, min(last.offset, span.end) - span.position)

    def aggregate(
        self,
        subscription: GroupSubscription,
        facts: GroupFacts,
        topics: Mapping[str, TopicObservation],
        spans: Spans,
        now: float,
    ) -> RetryObservation:
        """Aggregate the observation of one group's retry flow; `now` is in epoch seconds."""
        retry = subscription.retry
        assert retry is not None, "only groups with a retry flow are aggregated"
        error, described = facts.failure, facts.described
        waiting: dict[str, list[int | None]] = defaultdict(list)
        oldest: dict[str, list[float | None]] = defaultdict(list)
        for key, span in spans.items():
            waiting[key[0]].append(None if span is None else span.waiting)
            if span is not None and span.waiting:
                oldest[key[0]].append(self._oldest_at(key))
        known = facts.committed is not None
        held = {topic for topic, _ in facts.committed or ()}
        managed = {}
        for name in retry.flow:
            count = _sum(waiting[name]) if known and self._told(name, topics.get(name), held, now) else None
            appended = [at for at in oldest[name] if at is not None]
            oldest_at = min(appended) if count and len(appended) == len(oldest[name]) else None
            managed[name] = replace(self._topic(name, topics.get(name), count), oldest_at=oldest_at)
        counted = _sum(topic.waiting for topic in managed.values())
        if error is None and (described is None or counted is None):
            error = next((topic.error for topic in managed.values() if topic.waiting is None and topic.error), None)
            error = error or NOT_OBSERVED
        heads = self._heads
        due_times = [heads[key].high + span.delay_ms for key, span in spans.items() if span and key in heads]
        due_counts = [None if span is None else self._due(key, span) for key, span in spans.items()]
        state, members = aggregation.mirror(described) if described is not None and not facts.error else ("Unknown", ())
        if subscription.failed_topic:
            managed[subscription.failed_topic] = self._topic(
                subscription.failed_topic, topics.get(subscription.failed_topic), None
            )
        return RetryObservation(
            observed_at=now,
            state=state,
            coordinator_id=facts.coordinator_id,
            members=members,
            waiting=counted,
            due_lag=_sum(due_counts) if counted is not None else None,
            oldest_due_at=min(due_times) / 1000 if due_times else None,
            next_due_at=self._next_due_at(spans),
            topics=managed,
            expired=tuple(
                Gap(*key, span.unread, span.position)
                for key, span in spans.items()
                if span and span.unread < span.position
            ),
            source_max_message_bytes=self._source_max_message_bytes(subscription.topics),
            found_delays=self.found_delays.get(subscription.group_id),
            may_read=aggregation.may_read(described),
            error=error,
        )

    def _told(self, name: str, seen: TopicObservation | None, held: Collection[str], now: float) -> bool:
        """True if a topic is known to exist, or is known to be deleted.

        A missing topic counts as deleted under two conditions. The group has no commits for the topic; Kafka deletes
        these commits with the topic. And polls have missed the topic for GONE_SECONDS, because a broker's metadata may
        be outdated. This time must also pass at the first poll, after an outage, and after a change by the operator.
        """
        if seen is None or seen.error is None:
            self._missed.pop(name, None)
            return True
        return name not in held and now - self._missed.setdefault(name, now) >= GONE_SECONDS

    def _topic(self, name: str, seen: TopicObservation | None, waiting: int | None) -> ManagedTopic:
        if seen is None or seen.error is not None:
            error = seen.error if seen is not None else NOT_OBSERVED
            nothing = waiting is not None and error == TOPIC_NOT_FOUND
            return ManagedTopic(waiting=0 if nothing else None, error=error)
        return ManagedTopic(partitions=seen.partitions, configs=self.settings.known(name), waiting=waiting)

    def _oldest_at(self, key: Partition) -> float | None:
        """Append time (epoch seconds) of a partition's first waiting record. If only bounds of this time are known, the
        lower bound; None if that is unknown too."""
        head, last = self._heads.get(key), self._frontiers.get(key)
        append_ms = head.low if head is not None else last.append_ms if last is not None else None
        return None if append_ms is None else append_ms / 1000

    def _next_due_at(self, spans: Spans) -> float | None:
        times = [
            last.append_ms + span.delay_ms
            for key, span in spans.items()
            if span is not None
            and span.delay_ms
            and (last := self._frontiers.get(key)) is not None
            and last.append_ms is not None
        ]
        return min(times) / 1000 if times else None

    def _source_max_message_bytes(self, topics: Collection[str]) -> int | None:
        sizes = [(self.settings.known(topic) or {}).get(SIZE, "") for topic in topics]
        return max(map(int, sizes)) if sizes and all(size.isdigit() for size in sizes) else None


def _waiting(flows: Iterable[Spans]) -> Iterator[tuple[Partition, Span]]:
    """Yield the partitions that are known to have waiting records."""
    for spans in flows:
        for key, span in spans.items():
            if span is not None and span.waiting > 0:
                yield key, span


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(filter(None, known))
