"""Records that wait, records that are due and since when, against logs whose every record's time is known.

The model answers offsets by time as a broker does, from the list of append times; the expectation is counted from the
same list, record by record, without any search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.wire.groups import DescribedGroup
from fleet_operator.observe import due
from fleet_operator.observe import flow as flows
from fleet_operator.observe.aggregation import GroupFacts
from fleet_operator.observe.due import Found
from fleet_operator.observe.flow import FlowMemory
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.observation import Gap, RetryObservation, TopicObservation

TOPIC, REDRIVE, FAILED = "_fleet.g.retry.10s", "_fleet.g.redrive", "_fleet.g.failed"
DELAY_MS = 10_000
NOW_MS = 10_000_000
SUBSCRIPTION = GroupSubscription(
    group_id="g", topics=("orders",), failed_topic=FAILED, retry=retry_subscription("g", ["10s"])
)
EMPTY = DescribedGroup(
    error_code=0, group_id="g.retry", group_state="Empty", protocol_type="", protocol_data="", members=()
)
Partition = tuple[str, int]


@dataclass
class Log:
    """One partition: append times of the records from offset `start` on, and the committed offset."""

    times: list[int] = field(default_factory=list)
    start: int = 0
    committed: int | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.times)

    @property
    def position(self) -> int:
        return self.start if self.committed is None else max(self.committed, self.start)

    def first_at(self, time_ms: int) -> Found | None:
        return next((Found(self.start + i, t) for i, t in enumerate(self.times) if t >= time_ms), None)

    def waiting(self) -> list[int]:
        return self.times[self.position - self.start :]


@dataclass
class Cluster:
    """The partitions of one flow, polled as often as a test likes."""

    logs: dict[Partition, Log]
    memory: FlowMemory = field(default_factory=FlowMemory)
    silent: set[Partition] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    rounds: int = 0
    asked: int = 0

    def poll(self, now_ms: int, facts: GroupFacts | None = None) -> RetryObservation:
        facts = facts or GroupFacts("g.retry", 1, EMPTY)
        if facts.committed is None and facts.error is None:
            facts.committed = {key: log.committed for key, log in self.logs.items() if log.committed is not None}
        counts = Counter(name for name, _ in self.logs)
        topics = {name: TopicObservation(partitions=count) for name, count in counts.items()}
        for name in (TOPIC, REDRIVE):
            missing = "TopicNotFound" if name in self.gone else None
            topics.setdefault(name, TopicObservation(partitions=0, error=missing))
        starts = {topic: {key: log.start for key, log in self.logs.items() if key[0] == topic} for topic in topics}
        self.memory.take_starts(topics, starts, 0.0)
        ends = {key: log.end for key, log in self.logs.items()}
        assert SUBSCRIPTION.retry
        spans = self.memory.spans(SUBSCRIPTION.retry, facts, topics, ends)
        self.rounds = self.asked = 0
        self.memory.search([spans], now_ms, self._ask)
        return self.memory.aggregate(SUBSCRIPTION, facts, topics, spans, now_ms / 1000)

    def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        self.rounds += 1
        self.asked += len(times)
        return {key: self.logs[key].first_at(time_ms) for key, time_ms in times.items() if key not in self.silent}


def one(times: list[int], *, start: int = 0, committed: int | None = None) -> Cluster:
    return Cluster({(TOPIC, 0): Log(times, start, committed)})


def drained(seen: RetryObservation) -> set[str]:
    return {name for name, topic in seen.topics.items() if topic.waiting == 0}


def times_seen(seen: RetryObservation) -> tuple[int | None, int | None, float | None, float | None]:
    return seen.waiting, seen.due_lag, seen.oldest_due_at, seen.next_due_at


def test_empty_topic_has_nothing_waiting_and_asks_nothing() -> None:
    cluster = one([])
    assert times_seen(cluster.poll(NOW_MS)) == (0, 0, None, None)
    assert cluster.rounds == 0


def test_nothing_due_yet_reports_when_the_head_is() -> None:
    cluster = one([NOW_MS - 4_000, NOW_MS - 1_000])
    assert times_seen(cluster.poll(NOW_MS)) == (2, 0, None, (NOW_MS + 6_000) / 1000)
    assert cluster.rounds == 1


def test_record_is_due_at_its_time_plus_the_delay_and_not_a_millisecond_sooner() -> None:
    assert one([NOW_MS - DELAY_MS]).poll(NOW_MS).due_lag == 1
    assert one([NOW_MS - DELAY_MS + 1]).poll(NOW_MS).due_lag == 0


def test_next_due_time_is_early_rather_than_late_after_a_worker_with_a_fast_clock() -> None:
    seen = one([NOW_MS - 4_000, NOW_MS - 1_000], committed=1).poll(NOW_MS)
    assert times_seen(seen) == (1, 0, None, (NOW_MS + 6_000) / 1000)


def test_all_due_has_no_next_time() -> None:
    seen = one([NOW_MS - 60_000, NOW_MS - 50_000]).poll(NOW_MS)
    assert (seen.waiting, seen.due_lag, seen.next_due_at) == (2, 2, None)


def test_head_that_was_seen_waiting_needs_no_search_when_it_is_overdue() -> None:
    cluster = one([NOW_MS - 4_000, NOW_MS])
    cluster.poll(NOW_MS)
    seen = cluster.poll(NOW_MS + 7_000)
    assert times_seen(seen) == (2, 1, (NOW_MS + 6_000) / 1000, (NOW_MS + 10_000) / 1000)
    assert cluster.rounds == 1


def test_idle_flow_is_not_looked_up_again_until_a_record_is_due() -> None:
    cluster = one([NOW_MS - 4_000, NOW_MS])
    cluster.poll(NOW_MS)
    before = cluster.poll(NOW_MS + 5_000)
    assert (cluster.rounds, before.due_lag) == (0, 0)
    cluster.logs[TOPIC, 0].times.append(NOW_MS + 5_500)
    assert cluster.poll(NOW_MS + 5_900).waiting == 3
    assert cluster.rounds == 0


def test_commit_below_the_start_of_the_log_counts_from_the_start() -> None:
    seen = one([NOW_MS - 50_000, NOW_MS], start=100, committed=20).poll(NOW_MS)
    assert (seen.waiting, seen.due_lag) == (2, 1)


def test_records_that_were_deleted_before_they_were_handled_are_reported_until_workers_commit_past_them() -> None:
    cluster = one([NOW_MS - 50_000, NOW_MS], start=100, committed=20)
    assert cluster.poll(NOW_MS).expired == (Gap(TOPIC, 0, 20, 100),)
    cluster.logs[TOPIC, 0] = Log([], 102, 20)
    seen = cluster.poll(NOW_MS)
    assert (seen.waiting, seen.expired) == (0, (Gap(TOPIC, 0, 20, 102),))
    cluster.logs[TOPIC, 0] = Log([NOW_MS], 102, 102)
    assert cluster.poll(NOW_MS).expired == ()


def test_deleted_records_of_a_topic_that_nobody_ever_read_are_reported_from_where_it_began() -> None:
    cluster = one([NOW_MS - 50_000, NOW_MS], start=7)
    assert cluster.poll(NOW_MS).expired == (), "what went before the first poll may be of a group before"
    cluster.logs[TOPIC, 0] = Log([], 9)
    assert cluster.poll(NOW_MS).expired == (Gap(TOPIC, 0, 7, 9),)
    cluster.logs[TOPIC, 0] = Log([NOW_MS], 0)
    assert cluster.poll(NOW_MS).expired == (), "created again"


def test_records_deleted_after_they_were_handled_are_no_loss() -> None:
    assert one([NOW_MS], start=100, committed=100).poll(NOW_MS).expired == ()
    assert one([NOW_MS], start=100, committed=101).poll(NOW_MS).expired == ()


def test_oldest_waiting_record_has_its_append_time_due_or_not() -> None:
    assert one([NOW_MS - 4_000, NOW_MS]).poll(NOW_MS).topics[TOPIC].oldest_at == (NOW_MS - 4_000) / 1000
    assert one([]).poll(NOW_MS).topics[TOPIC].oldest_at is None
    cluster = Cluster({(TOPIC, 0): Log([NOW_MS - 900_000]), (TOPIC, 1): Log([NOW_MS - 4_000])})
    oldest_at = cluster.poll(NOW_MS).topics[TOPIC].oldest_at
    assert oldest_at is not None
    assert NOW_MS - 900_000 - 60_000 <= oldest_at * 1000 <= NOW_MS - 900_000
    cluster.silent.add((TOPIC, 1))
    cluster.logs[TOPIC, 1].times[:] = [NOW_MS - 3_000, NOW_MS + 2_000]
    assert cluster.poll(NOW_MS + 8_000).topics[TOPIC].oldest_at is None, "one does not answer"


def test_records_of_one_instant_are_all_due_at_it() -> None:
    cluster = one([NOW_MS - 70_000] * 5 + [NOW_MS] * 2, committed=3)
    for _ in range(20):
        seen = cluster.poll(NOW_MS)
    assert times_seen(seen) == (4, 2, (NOW_MS - 60_000) / 1000, (NOW_MS + 10_000) / 1000)


def test_redrive_topic_is_due_at_once() -> None:
    cluster = Cluster({(TOPIC, 0): Log(), (REDRIVE, 0): Log([NOW_MS - 2_000, NOW_MS - 1_000])})
    for _ in range(20):
        seen = cluster.poll(NOW_MS)
    assert times_seen(seen) == (2, 2, (NOW_MS - 2_000) / 1000, None)
    assert seen.topics[REDRIVE].waiting == 2
    assert drained(seen) == {TOPIC}


def test_partition_that_does_not_answer_makes_the_sums_unknown_and_not_less() -> None:
    cluster = Cluster({(TOPIC, 0): Log([NOW_MS - 50_000]), (TOPIC, 1): Log([NOW_MS - 50_000])}, silent={(TOPIC, 1)})
    seen = cluster.poll(NOW_MS)
    assert (seen.waiting, seen.due_lag, seen.counted) == (2, None, False)


def test_flow_of_an_unobservable_group_is_unknown() -> None:
    cluster = one([NOW_MS - 50_000])
    seen = cluster.poll(NOW_MS, GroupFacts("g.retry", error="CoordinatorLoadInProgress"))
    assert (seen.state, seen.error) == ("Unknown", "CoordinatorLoadInProgress")
    assert times_seen(seen) == (None, None, None, None)
    assert seen.topics[TOPIC].waiting is None
    assert drained(seen) == set()


def test_topic_that_is_missing_from_the_first_poll_on_holds_nothing_after_a_while() -> None:
    """Until then the broker that was asked may lag behind, and records wait that nobody would read any more."""
    cluster = one([])
    cluster.gone = {REDRIVE}
    for later_ms, waiting in ((0, None), (5_000, None), (61_000, 0)):
        seen = cluster.poll(NOW_MS + later_ms)
        assert (seen.topics[REDRIVE].waiting, seen.topics[REDRIVE].error) == (waiting, "TopicNotFound")
        assert seen.counted is (waiting is not None)
    assert seen.topics[FAILED].waiting is None


def test_missing_topic_is_not_considered_deleted_at_once() -> None:
    """One broker that lags behind must not make a whole flow seem drained."""
    cluster = one([NOW_MS - 1_000])
    assert cluster.poll(NOW_MS).waiting == 1
    log = cluster.logs.pop((TOPIC, 0))
    cluster.gone = {TOPIC}
    seen = cluster.poll(NOW_MS + 5_000)
    assert (seen.topics[TOPIC].waiting, seen.counted, TOPIC in drained(seen)) == (None, False, False)
    assert seen.topics[TOPIC].error == "TopicNotFound", "that it is missing is told all the same"
    assert cluster.poll(NOW_MS + 66_000).topics[TOPIC].waiting == 0
    held = GroupFacts("g.retry", 1, EMPTY, {(TOPIC, 0): 0})
    assert cluster.poll(NOW_MS + 70_000, held).topics[TOPIC].waiting is None, "commits go with their topic"
    cluster.logs[TOPIC, 0], cluster.gone = log, set()
    assert cluster.poll(NOW_MS + 75_000).waiting == 1


def test_topic_that_is_missing_from_the_first_poll_after_an_outage_is_not_considered_deleted() -> None:
    """Brokers that have just started lag behind the most, and no earlier poll has missed the topic."""
    cluster = one([NOW_MS - 1_000])
    assert cluster.poll(NOW_MS).waiting == 1
    log = cluster.logs.pop((TOPIC, 0))
    cluster.gone = {TOPIC}
    seen = cluster.poll(NOW_MS + 600_000)
    assert (seen.topics[TOPIC].waiting, seen.counted, TOPIC in drained(seen)) == (None, False, False)
    cluster.logs[TOPIC, 0], cluster.gone = log, set()
    assert cluster.poll(NOW_MS + 605_000).waiting == 1
    del cluster.logs[TOPIC, 0]
    cluster.gone = {TOPIC}
    assert cluster.poll(NOW_MS + 670_000).waiting is None, "another broker that lags behind"
    assert cluster.poll(NOW_MS + 730_000).waiting == 0


def test_change_of_our_own_does_not_make_a_missing_topic_a_deleted_one() -> None:
    """It may have lifted the topic's retention while records wait there."""
    cluster = one([NOW_MS - 1_000])
    cluster.poll(NOW_MS)
    del cluster.logs[TOPIC, 0]
    cluster.gone = {TOPIC}
    cluster.memory.invalidate_topics([TOPIC])
    assert cluster.poll(NOW_MS + 1_000).waiting is None
    assert cluster.poll(NOW_MS + 61_000).waiting == 0


def test_commit_beyond_the_end_of_the_log_counts_from_the_start_once_it_is_certain() -> None:
    """A topic created again, or a log that was cut: retry workers begin with the first record that is there."""
    cluster = one([NOW_MS - 50_000, NOW_MS], committed=900)
    first = cluster.poll(NOW_MS)
    assert (first.waiting, drained(first)) == (None, {REDRIVE})
    second = cluster.poll(NOW_MS + 5_000)
    assert (second.waiting, second.due_lag) == (2, 1)


@pytest.mark.parametrize(
    ("committed", "place"), [(None, 5), (3, 5), (5, 5), (7, 7), (9, 9), (10, 5)], ids=lambda value: str(value)
)
def test_workers_continue_at_their_commit_if_the_log_reaches_it(committed: int | None, place: int) -> None:
    assert due.position(committed, start=5, end=9) == place


def test_recreated_topic_is_unknown_until_its_start_is_known() -> None:
    cluster = one([NOW_MS], start=500, committed=500)
    cluster.poll(NOW_MS)
    assert SUBSCRIPTION.retry
    topics = {TOPIC: TopicObservation(partitions=1)}
    facts = GroupFacts("g.retry", 1, EMPTY, {(TOPIC, 0): 500})
    assert cluster.memory.starts_wanted({TOPIC}, 1.0) == set()
    assert cluster.memory.spans(SUBSCRIPTION.retry, facts, topics, {(TOPIC, 0): 3}) == {(TOPIC, 0): None}
    assert cluster.memory.starts_wanted({TOPIC}, 1.0) == {TOPIC}


def test_long_outage_is_dated_within_one_poll() -> None:
    """A record each 10 ms for an hour, none handled: a poll tells the age to a sixteenth, the next ones exactly."""
    first = NOW_MS - 3_600_000
    cluster = one(list(range(first, NOW_MS, 10)), start=1000)
    seen = cluster.poll(NOW_MS)
    truth = (first + DELAY_MS) / 1000
    assert seen.oldest_due_at
    assert truth <= seen.oldest_due_at <= truth + 3_600 / 16 + 1
    assert cluster.rounds <= 1 + flows.SEARCH_ROUNDS_MAX
    for _ in range(30):
        seen = cluster.poll(NOW_MS)
    assert seen.oldest_due_at == truth
    cluster.poll(NOW_MS)
    assert cluster.rounds == 0


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Up to forty records of the last hundred seconds, many of one instant, some deleted, some handled."""
    times = sorted(draw(st.lists(st.integers(NOW_MS - 100_000, NOW_MS), max_size=40)))
    grain = draw(st.sampled_from((1, 7_000)))
    times = [time - time % grain for time in times]
    start = draw(st.integers(0, 5))
    due = sum(1 for time in times if time + DELAY_MS <= NOW_MS)
    committed = draw(st.none() | st.integers(0, start + due))
    return Log(times, start, committed)


@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.lists(logs(), min_size=1, max_size=4), st.lists(st.integers(0, 8_000), min_size=1, max_size=6))
def test_counts_and_times_are_those_of_the_records(found: list[Log], pauses: list[int]) -> None:
    """Invariants over several polls while time goes on and workers handle what is due:

    counts are exact in every poll; the next time is exact; the oldest is never told to be older than it is, never due
    in the future, and exact once the search had its rounds.
    """
    cluster = Cluster({(TOPIC, index): log for index, log in enumerate(found)})
    now_ms = NOW_MS
    for pause in pauses:
        now_ms += pause
        _check(cluster, now_ms, exact=False)
        for log in cluster.logs.values():
            due = sum(1 for time in log.waiting() if time + DELAY_MS <= now_ms)
            log.committed = log.position + due // 2
    for _ in range(40):
        cluster.poll(now_ms)
    _check(cluster, now_ms, exact=True)


def _check(cluster: Cluster, now_ms: int, *, exact: bool) -> None:
    seen = cluster.poll(now_ms)
    due_at = [time + DELAY_MS for log in cluster.logs.values() for time in log.waiting()]
    overdue = [time for time in due_at if time <= now_ms]
    ahead = [time for time in due_at if time > now_ms]
    assert (seen.waiting, seen.due_lag) == (len(due_at), len(overdue))
    assert seen.next_due_at == (min(ahead) / 1000 if ahead else None)
    if not overdue:
        assert seen.oldest_due_at is None
        return
    assert seen.oldest_due_at is not None
    assert min(overdue) / 1000 <= seen.oldest_due_at <= now_ms / 1000
    if exact:
        assert seen.oldest_due_at == pytest.approx(min(overdue) / 1000, abs=1e-6)


def test_ten_thousand_idle_partitions_cost_no_request() -> None:
    cluster = Cluster({(TOPIC, index): Log([NOW_MS - 1_000]) for index in range(10_000)})
    cluster.poll(NOW_MS)
    assert (cluster.rounds, cluster.asked) == (1, 10_000)
    cluster.poll(NOW_MS + 5_000)
    assert cluster.rounds == 0
