"""A consumer that assigns its partitions itself, with and without a group, and its questions about topics."""

from __future__ import annotations

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from tests.broker.members import (
    Member,
    await_shares,
    committed,
    create_topic,
    iterate,
    produce,
    settings,
    unique,
)
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

pytestmark = pytest.mark.together


def lag_of(consumer: Consumer, part: TopicPartition, wanted: int) -> None:
    """Wait until this is the lag; polls return nothing meanwhile."""
    seen: list[int | None] = []

    def there() -> bool:
        consumer.poll(0.1, max_records=0)
        seen.append(consumer.lag(part))
        return seen[-1] == wanted

    eventually(there, what=f"a lag of {wanted}")
    assert None in seen or len(seen) == 1 or seen[0] != wanted


def test_assigned_partitions_are_read_without_a_group(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 3)
    produce(broker.bootstrap, topic, 3, 10)
    with Consumer(settings(broker.bootstrap, None)) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 2)])
        assert consumer.assignment() == {(topic, 0), (topic, 2)}
        seen = {(record.partition, record.offset) for record in iterate(consumer, 20)}
        assert seen == {(number, offset) for number in (0, 2) for offset in range(10)}
        assert consumer.holds_session()
        calls = (consumer.commit, consumer.commit_async, lambda: consumer.committed(None), consumer.group_metadata)
        for call in calls:
            with pytest.raises(errors.GroupIdMissing, match="group_id"):
                call()
        with pytest.raises(errors.GroupIdMissing):
            consumer.subscribe([topic])


def test_reassignment_keeps_positions_of_kept_partitions(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 2)
    produce(broker.bootstrap, topic, 2, 10)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(settings(broker.bootstrap, None)) as consumer:
        consumer.assign([zero])
        assert [record.offset for record in iterate(consumer, 10)] == list(range(10))
        consumer.assign([zero, one])
        assert consumer.position(zero) == 10
        assert {(record.partition, record.offset) for record in iterate(consumer, 10)} == {(1, n) for n in range(10)}
        consumer.assign([one])
        with pytest.raises(errors.NotAssigned):
            consumer.position(zero)
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        with pytest.raises(errors.NotSubscribed):
            consumer.poll(0)


def test_assigned_consumer_with_a_group_commits_and_resumes(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 10)
    part = TopicPartition(topic, 0)
    ended: list[Exception | None] = []
    with Consumer(settings(broker.bootstrap, group)) as first:
        first.assign([part])
        list(iterate(first, 1))
        first.commit({part: OffsetAndMetadata(4)}, 30)
        assert committed(broker.bootstrap, group, topic, 1) == {0: 4}
        first.commit_async({part: OffsetAndMetadata(6)}, lambda _offsets, error: ended.append(error))
        eventually(lambda: first.poll(0.1, max_records=0) or ended, what="the commit's end")
        assert ended == [None]
    with Consumer(settings(broker.bootstrap, group, auto_commit_interval_ms=60_000)) as second:
        second.assign([part])
        assert [record.offset for record in iterate(second, 4)] == [6, 7, 8, 9]
    assert committed(broker.bootstrap, group, topic, 1) == {0: 10}


def test_commit_into_a_group_that_has_members_is_refused(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    part = TopicPartition(topic, 0)
    with Member(settings(broker.bootstrap, group), [topic], commits=False) as member:
        await_shares([member], topic, 1)
        with Consumer(settings(broker.bootstrap, group)) as other:
            other.assign([part])
            with pytest.raises(errors.CommitFailed, match="the group has members"):
                other.commit({part: OffsetAndMetadata(4)}, 30)
    assert committed(broker.bootstrap, group, topic, 1) == {0: -1001}


def test_assign_and_subscribe_exclude_each_other_until_unsubscribe(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 3)
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(errors.SubscriptionConflict):
            consumer.subscribe([topic])
        consumer.unsubscribe()
        consumer.subscribe([topic])
        with pytest.raises(errors.SubscriptionConflict):
            consumer.assign([TopicPartition(topic, 0)])
        assert len(list(iterate(consumer, 3))) == 3
        consumer.unsubscribe()
        consumer.assign([TopicPartition(topic, 0)])
        assert len(list(iterate(consumer, 3))) == 3


def test_sought_ends_win_over_committed_offsets_and_policy(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, topic, 2, 10)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(settings(broker.bootstrap, group, auto_offset_reset="none")) as consumer:
        consumer.assign([zero, one])
        consumer.seek_to_end()
        consumer.seek_to_beginning([zero])
        assert [(record.partition, record.offset) for record in iterate(consumer, 10)] == [(0, n) for n in range(10)]
        eventually(lambda: consumer.poll(0.1, max_records=0) or consumer.position(one) == 10, what="the end")
        consumer.seek_to_beginning()
        assert len(list(iterate(consumer, 20))) == 20
        with pytest.raises(errors.NotAssigned):
            consumer.seek_to_end([TopicPartition("elsewhere", 0)])


def test_lag_is_unknown_at_first_and_follows_position_and_end(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 10)
    part = TopicPartition(topic, 0)
    with Consumer(settings(broker.bootstrap, None, max_poll_records=4)) as consumer:
        consumer.assign([part])
        assert consumer.lag(part) is None
        lag_of(consumer, part, 10)
        assert len(consumer.poll(30)) == 4
        assert consumer.lag(part) == 6
        produce(broker.bootstrap, topic, 1, 5)
        lag_of(consumer, part, 11)
        with pytest.raises(errors.NotAssigned):
            consumer.lag(TopicPartition(topic, 7))


def test_lag_under_read_committed_ends_where_an_open_transaction_begins(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 10)
    part = TopicPartition(topic, 0)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique("open")})
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(topic, value=b"open", partition=0)
    assert producer.flush(60) == 0
    for level, lag in (("read_committed", 10), ("read_uncommitted", 15)):
        with Consumer(settings(broker.bootstrap, None, isolation_level=level)) as consumer:
            consumer.assign([part])
            lag_of(consumer, part, lag)
    producer.abort_transaction(60)


def test_topics_and_partitions_are_listed_with_their_brokers(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 3)
    with Consumer(settings(broker.bootstrap, None)) as consumer:
        infos = eventually(lambda: consumer.partitions_for(topic), what="the new topic to be known")
        assert [(info.topic, info.partition) for info in infos] == [(topic, number) for number in range(3)]
        leader = infos[0].leader
        assert leader is not None
        assert f"{leader.host}:{leader.port}" == broker.bootstrap
        assert infos[0].replicas == infos[0].in_sync_replicas == (leader,)
        assert infos[0].offline_replicas == ()
        assert consumer.partitions_for("no-such-topic") == ()
        assert consumer.list_topics()[topic] == infos
        with pytest.raises(errors.MetadataLookupFailed, match="INVALID_TOPIC"):
            consumer.partitions_for("no such topic!")


def test_topics_of_brokers_that_are_away_are_given_up_in_time() -> None:
    with (
        Consumer(settings("127.0.0.1:9", None)) as consumer,
        pytest.raises(errors.MetadataLookupFailed, match=r"within 0\.5 s"),
    ):
        consumer.list_topics(0.5)
