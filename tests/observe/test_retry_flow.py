"""The operator's observation of a retry flow, against the records of a real broker.

The true values are read record by record with another client; the operator has only offsets by time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.planning.observation import Gap
from fleet_operator.planning.retry.topics import TopicsPlan
from tests.broker.members import create_topic, unique
from tests.observe.polls import Watcher, append_times, commit, cut, watching, write, write_together
from tests.support.kafka import KafkaBroker

pytestmark = pytest.mark.together

DELAYS = ("10s", "1m")
PARTITIONS = 3
POLLS_MAX = 40
"""Polls that the search for an old head may need until it is exact to the millisecond."""


@dataclass
class Flow:
    """A flow with its topics, and the positions that were committed for its retry workers.

    `records` caches the records of each topic; a test that changes a topic later removes it.
    """

    broker: KafkaBroker
    group_id: str
    watcher: Watcher
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    records: dict[str, dict[int, dict[int, int]]] = field(default_factory=dict)

    @property
    def topics(self) -> dict[str, int]:
        """Each topic with its delay in milliseconds."""
        assert self.watcher.subscription.retry
        return {name: delay * 1000 for name, delay in self.watcher.subscription.retry.flow.items()}

    def commit(self, topic: str, partition: int, offset: int) -> None:
        self.committed[topic, partition] = offset
        commit(self.broker.bootstrap, naming.retry_group(self.group_id), {(topic, partition): offset})

    def due_times(self, topics: Iterable[str]) -> list[int]:
        """The due times of the waiting records, in milliseconds, in order."""
        for topic in set(topics) - self.records.keys():
            self.records[topic] = append_times(self.broker.bootstrap, topic, PARTITIONS)
        return sorted(
            at + self.topics[topic]
            for topic in topics
            for partition, records in self.records[topic].items()
            for offset, at in records.items()
            if offset >= self.committed.get((topic, partition), 0)
        )


@pytest.fixture
def flow(broker: KafkaBroker) -> Iterator[Flow]:
    source, group_id = create_topic(broker.bootstrap, PARTITIONS), unique("group")
    with watching(broker.bootstrap, group_id, source, DELAYS) as watcher:
        assert watcher.subscription.retry
        configs = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}
        wanted = tuple(
            WantedTopic(name=name, partitions=PARTITIONS, configs=configs) for name in watcher.subscription.retry.flow
        )
        done = watcher.admin.change_topics(TopicsPlan(create=wanted), retry_group="unused")
        assert (sorted(done.made), done.refusals) == (sorted(topic.name for topic in wanted), [])
        watcher.await_topics([topic.name for topic in wanted])
        yield Flow(broker, group_id, watcher)


def check(flow: Flow, now_ms: int) -> None:
    """One poll at `now_ms` gives the counts and the next time; some more give the oldest time exactly."""
    due_at = flow.due_times(flow.topics)
    overdue, ahead = [at for at in due_at if at <= now_ms], [at for at in due_at if at > now_ms]
    seen = flow.watcher.known(now_ms)
    assert (seen.waiting, seen.due_lag) == (len(due_at), len(overdue))
    assert seen.next_due_at == (ahead[0] / 1000 if ahead else None)
    if not overdue:
        assert seen.oldest_due_at is None
        return
    for _ in range(POLLS_MAX):
        seen = flow.watcher.flow(now_ms)
        assert seen.oldest_due_at is not None
        assert overdue[0] / 1000 <= seen.oldest_due_at <= now_ms / 1000
    assert seen.oldest_due_at == overdue[0] / 1000


def test_flow_without_records_has_nothing_waiting(flow: Flow) -> None:
    seen = flow.watcher.known()
    assert (seen.waiting, seen.due_lag, seen.oldest_due_at, seen.next_due_at) == (0, 0, None, None)
    assert {name for name, topic in seen.topics.items() if topic.waiting == 0} == set(flow.topics)
    assert seen.state in ("Dead", "Empty")


def test_counts_and_times_are_those_of_the_records_at_every_moment(flow: Flow) -> None:
    """From before the first record is due until after the last is, over both delays, with records of one instant."""
    short, long = (naming.retry_topic(flow.group_id, delay) for delay in DELAYS)
    for partition in range(PARTITIONS - 1):  # one partition stays empty
        write(flow.broker.bootstrap, short, partition, 5)
        write_together(flow.broker.bootstrap, short, partition, 20)
        write(flow.broker.bootstrap, long, partition, 5)
    due_at = flow.due_times(flow.topics)
    moments = {due_at[0] - 1, due_at[0], due_at[7], due_at[len(due_at) // 2], due_at[-1] - 1, due_at[-1] + 3_600_000}
    for now_ms in sorted(moments):
        check(flow, now_ms)


def test_handled_records_do_not_wait_and_deleted_ones_neither(flow: Flow) -> None:
    short = naming.retry_topic(flow.group_id, DELAYS[0])
    write(flow.broker.bootstrap, short, 0, 20)
    write_together(flow.broker.bootstrap, short, 1, 20)
    flow.commit(short, 0, 7)
    flow.commit(short, 1, 5)
    last = flow.due_times([short])[-1]
    check(flow, last + 120_000)
    flow.commit(short, 0, 20)
    check(flow, last + 121_000)
    # Retention has overtaken the workers: deleted records are not counted, for any commit.
    cut(flow.broker.bootstrap, short, 1, 12)
    flow.watcher.part.flow.invalidate_topics([short])
    del flow.records[short]
    check(flow, last + 122_000)
    seen = flow.watcher.known(last + 122_000)
    assert (seen.waiting, seen.expired) == (8, (Gap(short, 1, 5, 12),))


def test_redriven_records_are_due_at_once(flow: Flow) -> None:
    redrive = naming.redrive_topic(flow.group_id)
    write(flow.broker.bootstrap, redrive, 2, 4)
    now_ms = flow.due_times([redrive])[-1]
    check(flow, now_ms + 5_000)
    seen = flow.watcher.known(now_ms + 5_000)
    assert (seen.due_lag, seen.next_due_at, seen.topics[redrive].waiting) == (4, None, 4)


def test_settings_of_managed_and_source_topics_are_known(flow: Flow) -> None:
    seen = flow.watcher.known()
    topic = seen.topics[naming.retry_topic(flow.group_id, DELAYS[0])]
    assert topic.configs is not None
    assert topic.configs["message.timestamp.type"] == "LogAppendTime"
    assert (topic.partitions, topic.error) == (PARTITIONS, None)
    assert seen.source_max_message_bytes == 1_048_588
    failed = seen.topics[naming.failed_topic(flow.group_id)]
    assert (failed.error, failed.waiting) == ("TopicNotFound", None)
