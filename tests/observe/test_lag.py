"""The lag that the operator shows, in every case in which the difference of two numbers is not the lag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.backfill.ranges import RangeQuestion
from fleet_operator.planning.lag import GroupLag, ResetPolicy, group_lag
from fleet_operator.planning.observation import HANGS_S, GroupObservation
from tests.broker.members import create_topic, delete_topic, grow_topic, produce, unique
from tests.observe.polls import Watcher, commit, cut, polling
from tests.support import group_tool
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

pytestmark = pytest.mark.together

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Lags:
    """The operator's view of one group; each call polls."""

    watcher: Watcher

    def poll(self) -> GroupObservation:
        subscription = self.watcher.subscription
        return self.watcher.poll().groups[subscription.group_id]

    def lag(self, reset: ResetPolicy = "Earliest") -> GroupLag:
        found = self.poll()
        seen, topics = self.watcher.last, self.watcher.subscription.topics
        assert seen is not None
        return group_lag(found, [(t, n) for t in topics for n in range(seen.topics[t].partitions)], reset)

    def wait(self, total: int | None, *, complete: bool = True, reset: ResetPolicy = "Earliest") -> GroupLag:
        """Wait until the lag is this one: offsets of a new topic take a moment."""

        def there() -> GroupLag:
            lag = self.lag(reset)
            assert (lag.total, lag.complete) == (total, complete), lag
            return lag

        return eventually(there, timeout_s=PATIENCE_S, what=f"a lag of {total}")


@contextmanager
def lags(broker: KafkaBroker, group: str, *topics: str, read_committed: bool = False) -> Iterator[Lags]:
    with polling(
        broker.bootstrap, GroupSubscription(group_id=group, topics=topics, read_committed=read_committed)
    ) as seen:
        yield Lags(seen)


def tool_lag(broker: KafkaBroker, group: str) -> dict[tuple[str, int], str]:
    rows = group_tool.describe(broker, group, "--offsets")
    return {(row["TOPIC"], int(row["PARTITION"])): row["LAG"] for row in rows}


def transaction(broker: KafkaBroker, topic: str) -> SureProducer:
    patient = {"transactional.id": unique("transaction"), "transaction.timeout.ms": 600_000}
    producer = SureProducer({"bootstrap.servers": broker.bootstrap, **patient})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, value=str(number).encode(), partition=0)
    assert producer.flush(60) == 0
    return producer


def test_open_transaction_is_lag_only_for_those_who_read_uncommitted_records(broker: KafkaBroker) -> None:
    """The end for ReadCommitted is the last stable offset. The marker of a transaction takes an offset of its own."""
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 5)
    commit(broker.bootstrap, group, {(topic, 0): 5})
    producer = transaction(broker, topic)
    with (
        lags(broker, group, topic, read_committed=True) as committed,
        lags(broker, group, topic) as uncommitted,
    ):
        committed.wait(0)
        uncommitted.wait(3)
        # A Backfill asks for both ends: only then an open transaction is told from a log that ends.
        question = RangeQuestion(topic=topic, read_committed=True)
        read = committed.watcher.admin.read_topic(question)
        assert (read.ends, read.highs) == ({0: 5}, {0: 8})
        producer.commit_transaction(60)
        committed.wait(4)
        uncommitted.wait(4)
        # Workers commit past the marker; a consumer that commits the last record plus one stays one behind it.
        commit(broker.bootstrap, group, {(topic, 0): 8})
        assert committed.wait(1).partitions == {(topic, 0): 1}
        assert tool_lag(broker, group) == {(topic, 0): "1"}
        commit(broker.bootstrap, group, {(topic, 0): 9})
        committed.wait(0)


def test_hung_transaction_is_named_though_the_lag_is_zero(broker: KafkaBroker) -> None:
    """Other producers' records wait behind it. The operator's clock goes ahead of the broker's."""
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, topic, 2, 5)
    producer = transaction(broker, topic)
    produce(broker.bootstrap, topic, 2, 20)
    commit(broker.bootstrap, group, {(topic, 0): 5, (topic, 1): 25})
    with (
        lags(broker, group, topic, read_committed=True) as committed,
        lags(broker, group, topic) as uncommitted,
    ):
        committed.wait(0)
        committed.watcher.clock.ahead_s = HANGS_S

        def hangs() -> GroupObservation:
            found = committed.poll()
            assert found.hanging, found.open_transactions
            return found

        found = eventually(hangs, timeout_s=PATIENCE_S, what="a transaction that hangs")
        opened = found.open_transactions[topic, 0]
        assert found.open_transactions == {(topic, 0): opened}
        assert (opened.offset, opened.end_offset) == (5, 28)
        assert committed.wait(0).complete
        assert uncommitted.poll().open_transactions == {}
        producer.abort_transaction(60)
        committed.wait(24)
        assert committed.poll().open_transactions == {}


def test_records_that_retention_has_deleted_are_no_lag(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 20)
    commit(broker.bootstrap, group, {(topic, 0): 4})
    with lags(broker, group, topic) as seen:
        seen.wait(16)
        cut(broker.bootstrap, topic, 0, 15)
        seen.wait(5)
        commit(broker.bootstrap, group, {(topic, 0): 20})
        seen.wait(0)


def test_group_without_commits_owes_what_its_reset_policy_says(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, topic, 2, 20)
    cut(broker.bootstrap, topic, 1, 5)
    with lags(broker, group, topic) as seen:
        seen.wait(35)
        seen.wait(0, reset="Latest")
        seen.wait(None, complete=False, reset="None")


def test_topic_that_was_created_again_is_no_lag_of_zero(broker: KafkaBroker) -> None:
    """Its commits go with the topic; one that a member makes afterwards, at its old place, is beyond the new log."""
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 20)
    commit(broker.bootstrap, group, {(topic, 0): 20})
    with lags(broker, group, topic) as seen:
        seen.wait(0)
        delete_topic(broker.bootstrap, topic)
        eventually(
            lambda: seen.watcher.poll().topics[topic].error == "TopicNotFound", timeout_s=PATIENCE_S, what="no topic"
        )
        create_topic(broker.bootstrap, 1, topic)
        produce(broker.bootstrap, topic, 1, 3)
        commit(broker.bootstrap, group, {(topic, 0): 20})
        seen.wait(None, complete=False)
        assert seen.poll().beyond_end == {(topic, 0)}
        with lags(broker, group, topic) as again:
            again.wait(None, complete=False)
            assert again.poll().beyond_end == {(topic, 0)}, "for an operator that has just begun, too"
        assert tool_lag(broker, group) == {(topic, 0): "-17"}
        commit(broker.bootstrap, group, {(topic, 0): 1})
        seen.wait(2)
        assert seen.poll().beyond_end == frozenset()


def test_partitions_that_are_added_count_and_topics_add_up(broker: KafkaBroker) -> None:
    one, two, group = create_topic(broker.bootstrap, 1), create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, one, 1, 10)
    produce(broker.bootstrap, two, 2, 7)
    commit(broker.bootstrap, group, {(one, 0): 4, (two, 0): 7, (two, 1): 5})
    with lags(broker, group, one, two) as seen:
        seen.wait(6 + 0 + 2)
        assert tool_lag(broker, group) == {(one, 0): "6", (two, 0): "0", (two, 1): "2"}
        grow_topic(broker.bootstrap, one, 2)
        produce(broker.bootstrap, one, 2, 10)
        seen.wait(16 + 10 + 0 + 2)
        # Whether workers have begun there, at the end, is not known: they read new partitions from the beginning.
        assert seen.wait(16 + 0 + 2, complete=False, reset="Latest").partitions[one, 1] is None
        commit(broker.bootstrap, group, {(one, 1): 10})
        seen.wait(16 + 0 + 0 + 2, reset="Latest")
