"""The retry flows of all groups: what is remembered of them between polls, and what follows from it.

Does no I/O and has no clock: `poll` asks the questions that are made here and brings the answers. Belongs to the
observer's thread. What could not be asked stays unknown, for the partition and for every sum that it is part of.
"""

from __future__ import annotations

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
from fleet_operator.observe.batches import Partition, chunks
from fleet_operator.observe.due import Found, Frontier, Head
from fleet_operator.observe.interests import GroupInterest, RetryInterest
from fleet_operator.planning.observation import Gap, ManagedTopic, RetryObservation, TopicObservation
from fleet_operator.planning.retry.topics import ASKED_SETTINGS

FRESH_SECONDS: Final = 60.0
"""Time for which an answer counts; settings that we change are forgotten at once."""
TOPICS_PER_POLL_MAX: Final = 2_000
TOPICS_PER_REQUEST_MAX: Final = 250

Settings = Mapping[str, str]


@dataclass(slots=True)
class TopicConfigs:
    """Topic settings as last read, about once a minute. Times are monotonic seconds.

    A broker builds a topic's whole configuration to answer for one setting of it, so this is the costliest question of
    all: it is spread over the polls and over the brokers.
    """

    _known: dict[str, Settings] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def of(self, topic: str) -> Settings | None:
        """The settings that matter, by name; None while they have not been read or must not be."""
        return self._known.get(topic)

    def forget(self, topics: Iterable[str]) -> None:
        """Have these topics asked again at the next poll; what was known of them counts no more."""
        for topic in topics:
            self._known.pop(topic, None)
            self._due.pop(topic, None)

    def requests(self, wanted: Collection[str], now: float) -> list[admin.DescribeConfigsRequest]:
        """The requests of this poll: for topics never read first, then for those read longest ago."""
        for gone in self._due.keys() - wanted:
            self.forget((gone,))
        due = sorted((self._due.get(topic, 0.0), topic) for topic in wanted if self._due.get(topic, 0.0) <= now)
        names = sorted(topic for _, topic in due[:TOPICS_PER_POLL_MAX])
        return [
            admin.DescribeConfigsRequest(resources=tuple(_resource(name) for name in part))
            for part in chunks(names, TOPICS_PER_REQUEST_MAX)
        ]

    def take(self, response: admin.DescribeConfigsResponse, now: float) -> None:
        """Remember an answer. A topic that a broker has not heard of yet is asked again in the next poll."""
        for result in response.results:
            name = result.resource_name
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.forget((name,))
                continue
            self._due[name] = now + FRESH_SECONDS
            if result.error_code:
                self._known.pop(name, None)
            else:
                read = {entry.name: entry.value for entry in result.configs if entry.value is not None}
                if self._known.get(name) != read:  # the same object as long as nothing changes
                    self._known[name] = read


def _resource(topic: str) -> admin.DescribeConfigsResource:
    return admin.DescribeConfigsResource(
        resource_type=admin.TOPIC_RESOURCE, resource_name=topic, configuration_keys=ASKED_SETTINGS
    )


GONE_SECONDS: Final = 60.0
"""For how long a topic must have been missing before it is believed to be gone: the broker that was asked may lag
behind."""
STARTS_SECONDS: Final = 60.0
"""Interval at which the starts of managed topics' logs are read: only retention moves them, and only forward."""
SEARCH_ROUNDS_MAX: Final = 8
"""Rounds of one poll's search for overdue heads: two steps back and five halvings find most to a second."""
PROBES_PER_ROUND_MAX: Final = 20_000
"""Bound of the heads that are searched in one poll; those of the others are due at least since their topics' delay
ago."""


class Span(NamedTuple):
    """The records that wait for the retry workers in one partition: from `position` to before `end`. Those from
    `unread` to before `position` were deleted before they were handled."""

    unread: int
    position: int
    end: int
    delay_ms: int

    @property
    def waiting(self) -> int:
        return self.end - self.position


Spans = Mapping[Partition, Span | None]
"""Each partition of one group's flow; None where an offset could not be asked."""
Ask = Callable[[Mapping[Partition, int]], Mapping[Partition, Found | None]]
"""Asks for offsets by time. Partitions of brokers that do not answer are absent from what it returns."""


@dataclass(slots=True)
class FlowMemory:
    """Memory of polls for later ones. Times are monotonic seconds, those of records epoch milliseconds."""

    settings: TopicConfigs = field(default_factory=TopicConfigs)
    starts: dict[str, Offsets] = field(default_factory=dict)
    """First offsets of the managed topics' logs, by topic."""
    found_delays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Delays found on the cluster, by main group, for the groups that asked for them."""
    _starts_due: dict[str, float] = field(default_factory=dict)
    _frontiers: dict[Partition, Frontier] = field(default_factory=dict)
    _marks: dict[Partition, Frontier] = field(default_factory=dict)
    """The frontier before the last one: where a partition's head was found waiting, its time is known from then."""
    _heads: dict[Partition, Head] = field(default_factory=dict)
    _beyond: dict[Partition, int] = field(default_factory=dict)
    """Commits that lay beyond the end of the log at the last poll."""
    _uncommitted: dict[Partition, int] = field(default_factory=dict)
    """Starts of logs without a commit as first seen: what retention deletes from there on has waited."""
    _there: dict[str, float] = field(default_factory=dict)
    """Time at which each managed topic was last seen, or first missed (epoch seconds)."""

    def starts_wanted(self, topics: Collection[str], now: float) -> set[str]:
        """The managed topics whose starts should be asked for in this poll."""
        gone = {*self._starts_due, *self._there}.difference(topics)
        for topic in gone:
            self._starts_due.pop(topic, None)
            self._there.pop(topic, None)
            self.starts.pop(topic, None)
        for offsets in (self._beyond, self._uncommitted) if gone else ():
            for key in [key for key in offsets if key[0] in gone]:
                del offsets[key]
        return {topic for topic in topics if self._starts_due.get(topic, 0.0) <= now}

    def take_starts(self, topics: Iterable[str], answered: Mapping[str, Offsets], now: float) -> None:
        """Remember the starts that were read of these topics."""
        for topic in answered.keys() & topics:
            self.starts[topic] = self.starts.get(topic, {}) | answered[topic]
            self._starts_due[topic] = now + STARTS_SECONDS

    def ask_starts(self, topic: str) -> None:
        """Ask for the starts of a topic at the next poll: a partition did not answer, or its log begins again."""
        self._starts_due.pop(topic, None)

    def forget(self, topics: Iterable[str]) -> None:
        """Ask everything again about topics that were just changed."""
        names = frozenset(topics)
        self.settings.forget(names)
        for name in names:
            self._starts_due.pop(name, None)

    def spans(
        self, interest: RetryInterest, facts: GroupFacts, topics: Mapping[str, TopicObservation], ends: Offsets
    ) -> dict[Partition, Span | None]:
        """The position of the retry workers of one group in each partition of its flow."""
        found: dict[Partition, Span | None] = {}
        for name, delay_s in interest.flow.items():
            topic = topics.get(name)
            for index in range(topic.partitions if topic is not None else 0):
                found[name, index] = self._span((name, index), facts.committed, ends, delay_s * 1000)
        return found

    def _span(self, key: Partition, committed: Offsets | None, ends: Offsets, delay_ms: int) -> Span | None:
        """The records that are still to be read. A commit beyond the end is believed when it is there twice: when the
        end was asked before the commit, both may have moved on in between."""
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
        """Find out up to where each flow is due, and since when, in one round of questions or a few."""
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
        """The times to ask for, to learn up to where records are due: only where that can have changed."""
        asked = {}
        known: set[Partition] = set()
        for key, span in _waiting(flows):
            known.add(key)
            if span.delay_ms == 0:
                continue  # everything is due at once
            last = self._frontiers.get(key)
            if last is None or not last.holds(delay_ms=span.delay_ms, end=span.end, now_ms=now_ms):
                asked[key] = now_ms - span.delay_ms + 1  # records from then on are not due yet
        self._frontiers = {key: value for key, value in self._frontiers.items() if key in known}
        self._marks = {key: value for key, value in self._marks.items() if key in known}
        self._heads = {key: value for key, value in self._heads.items() if key in known}
        return asked

    def take_frontiers(
        self, asked: Collection[Partition], answers: Mapping[Partition, Found | None], flows: Iterable[Spans]
    ) -> None:
        """Remember the answers; what was not answered is not known any more."""
        ends = {key: span.end for key, span in _waiting(flows)}
        for key in asked:
            last = self._frontiers.pop(key, None)
            if last is not None and last.append_ms is not None:
                self._marks[key] = last
            if key in answers:
                found = answers[key]  # None when no record is that young
                self._frontiers[key] = Frontier(ends[key], None) if found is None else Frontier(*found)

    def find_heads(self, flows: Iterable[Spans], now_ms: int) -> None:
        """Begin, or go on with, the search for the heads of partitions in which something is due."""
        for key, span in _waiting(flows):
            if not self._due(key, span):
                self._heads.pop(key, None)
                continue
            latest = now_ms - span.delay_ms
            self._heads[key] = due.head(self._heads.get(key), self._marks.get(key), span.position, latest)

    def probes(self, flows: Iterable[Spans], now_ms: int, *, first: bool) -> dict[Partition, int]:
        """The next questions about heads. The first round takes each a step further, later ones only coarse ones."""
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
        """The number of waiting records that are due."""
        if span.delay_ms == 0 or span.waiting == 0:
            return span.waiting
        last = self._frontiers.get(key)
        return None if last is None else max(0, min(last.offset, span.end) - span.position)

    def aggregate(
        self,
        interest: GroupInterest,
        facts: GroupFacts,
        topics: Mapping[str, TopicObservation],
        spans: Spans,
        now: float,
    ) -> RetryObservation:
        """One group's flow as of this poll; `now` in epoch seconds."""
        retry = interest.retry
        assert retry is not None, "only groups with a flow are aggregated"
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
        due_counts = [None if span is None else self._due(key, span) for key, span in spans.items()]
        state, members = aggregation.mirror(described) if described is not None and not facts.error else ("Unknown", ())
        if interest.failed_topic:
            managed[interest.failed_topic] = self._topic(interest.failed_topic, topics.get(interest.failed_topic), None)
        return RetryObservation(
            observed_at=now,
            state=state,
            coordinator_id=facts.coordinator_id,
            members=members,
            waiting=counted,
            due_lag=_sum(due_counts) if counted is not None else None,
            oldest_due_at=self._oldest_due_at(spans),
            next_due_at=self._next_due_at(spans),
            topics=managed,
            expired=tuple(
                Gap(*key, span.unread, span.position)
                for key, span in spans.items()
                if span and span.unread < span.position
            ),
            source_max_message_bytes=self._source_max_message_bytes(interest.topics),
            found_delays=self.found_delays.get(interest.group_id),
            may_read=aggregation.may_read(described),
            error=error,
        )

    def _told(self, name: str, seen: TopicObservation | None, held: Collection[str], now: float) -> bool:
        """True if a poll has found enough of a topic to count with.

        A topic that is missing is not believed to be gone while the group has commits for it, which go with a topic, or
        before it was missing for a while: the broker that was asked may lag behind the others, also at the first poll
        and after a change of our own.
        """
        if seen is None or seen.error is None:
            self._there[name] = now
            return True
        return name not in held and now - self._there.setdefault(name, now) >= GONE_SECONDS

    def _topic(self, name: str, seen: TopicObservation | None, waiting: int | None) -> ManagedTopic:
        if seen is None or seen.error is not None:
            error = seen.error if seen is not None else NOT_OBSERVED
            nothing = waiting is not None and error == TOPIC_NOT_FOUND
            return ManagedTopic(waiting=0 if nothing else None, error=error)
        return ManagedTopic(partitions=seen.partitions, configs=self.settings.of(name), waiting=waiting)

    def _oldest_at(self, key: Partition) -> float | None:
        """The append time of a partition's first waiting record, or a little earlier; None while it is searched."""
        head, last = self._heads.get(key), self._frontiers.get(key)
        append_ms = head.low if head is not None else last.append_ms if last is not None else None
        return None if append_ms is None else append_ms / 1000

    def _oldest_due_at(self, spans: Spans) -> float | None:
        times = [self._heads[key].high + span.delay_ms for key, span in spans.items() if span and key in self._heads]
        return min(times) / 1000 if times else None

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
        sizes = [(self.settings.of(topic) or {}).get(SIZE, "") for topic in topics]
        return max(map(int, sizes)) if sizes and all(size.isdigit() for size in sizes) else None


def _waiting(flows: Iterable[Spans]) -> Iterator[tuple[Partition, Span]]:
    """The partitions in which something waits, as far as that is known."""
    for spans in flows:
        for key, span in spans.items():
            if span is not None and span.waiting > 0:
                yield key, span


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum; unknown as soon as one of them is."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))
