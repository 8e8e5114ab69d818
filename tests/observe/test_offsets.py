"""Committed offsets of a group, read and set on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.contract import naming
from fleet_consumer.net import ConnectionSettings, KafkaError, NetworkClient
from fleet_operator.observe.kafka_admin import KafkaAdmin
from tests.broker.members import Member, create_topic, produce, settings, unique
from tests.observe.polls import PATIENCE_S
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

EACH = 20
MARKER = "fleet-reset=a"


@pytest.fixture
def admin(broker: KafkaBroker) -> Iterator[KafkaAdmin]:
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="operator"))
    made = KafkaAdmin(client)

    def answers() -> bool:
        # A fresh broker is still creating the offsets topic.
        try:
            return bool(made.read_offsets("nobody", (), None, read_committed=False).state)
        except KafkaError as error:
            raise AssertionError(str(error)) from error

    eventually(answers, what="the coordinator to answer")
    yield made
    client.close()


def metadata(broker: KafkaBroker, group: str, topic: str) -> dict[int, tuple[int, str]]:
    """Committed offsets with their metadata."""
    with Consumer(settings(broker.bootstrap, group)) as reader:
        found = reader.committed([TopicPartition(topic, number) for number in range(2)], PATIENCE_S)
    return {part.partition: (entry.offset, entry.metadata) for part, entry in found.items() if entry is not None}


def at(topic: str, *offsets: int) -> dict[tuple[str, int], int]:
    """Offsets of a topic's first partitions."""
    return {(topic, number): offset for number, offset in enumerate(offsets)}


def test_offsets_are_read_and_set_with_a_marker_for_an_empty_group(broker: KafkaBroker, admin: KafkaAdmin) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("reset")
    produce(broker.bootstrap, topic, 2, EACH)
    before = admin.read_offsets(group, (topic,), None, read_committed=False)
    assert (before.state, before.members, before.committed) == ("Dead", (), {})
    assert before.counts == {topic: 2}
    assert before.starts == {(topic, 0): 0, (topic, 1): 0}
    assert before.ends == {(topic, 0): EACH, (topic, 1): EACH}
    done = admin.set_offsets(group, at(topic, 5, 7), marker=MARKER)
    assert (done.refusals, done.before, done.after) == ({}, {}, at(topic, 5, 7))
    again = admin.set_offsets(group, at(topic, 5, 7), marker=MARKER)
    assert again.before == again.after == done.after, "the same commit may be repeated"
    after = admin.read_offsets(group, (topic,), None, read_committed=True)
    assert (after.state, after.committed) == ("Empty", done.after)
    assert metadata(broker, group, topic) == {0: (5, MARKER), 1: (7, MARKER)}


def test_times_find_the_first_record_from_then_on_or_none(broker: KafkaBroker, admin: KafkaAdmin) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("reset")
    produce(broker.bootstrap, topic, 1, EACH)
    early = admin.read_offsets(group, (topic,), 0, read_committed=False)
    assert early.found == {(topic, 0): 0, (topic, 1): None}
    late = admin.read_offsets(group, (topic,), 4_000_000_000_000, read_committed=False)
    assert late.found == {(topic, 0): None, (topic, 1): None}


def test_coordinator_refuses_offsets_while_the_group_has_members(broker: KafkaBroker, admin: KafkaAdmin) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("reset")
    produce(broker.bootstrap, topic, 2, EACH)
    with Member(settings(broker.bootstrap, group), [topic]) as member:
        eventually(lambda: len(set(member.seen)) == 2 * EACH, what="the member to have all records")

        def refused() -> bool:
            done = admin.set_offsets(group, at(topic, 5, 7), marker=MARKER)
            assert set(done.refusals) == {(topic, 0), (topic, 1)}
            assert done.before == done.after
            return True

        eventually(refused, what="the offsets to be refused")
        seen = admin.read_offsets(group, (topic,), None, read_committed=False)
        assert [each.client_id for each in seen.members] == ["test"]


def test_offsets_that_another_program_committed_since_they_were_read_are_left(
    broker: KafkaBroker, admin: KafkaAdmin
) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("reset")
    produce(broker.bootstrap, topic, 2, EACH)
    admin.set_offsets(group, at(topic, 5, 7), marker=MARKER)
    late = admin.set_offsets(group, at(topic, 1, 1), at(topic, 4, 7), marker=MARKER)
    assert (late.outdated, late.after) == (True, at(topic, 5, 7))
    done = admin.set_offsets(group, at(topic, 1, 1), at(topic, 5, 7), marker="fleet-reset=b")
    assert (done.outdated, done.after) == (False, at(topic, 1, 1))
    again = admin.set_offsets(group, at(topic, 1, 2), at(topic, 5, 7), marker="fleet-reset=b")
    assert (again.outdated, again.after) == (False, at(topic, 1, 2)), "it was begun: it is finished"
    other = admin.set_offsets(group, at(topic, 1, 3), at(topic, 5, 7), marker="fleet-reset=c")
    assert other.outdated, "the wanted offset of one partition is there, and this reset did not set it"


def test_offsets_of_a_topic_that_was_made_again_are_not_set(broker: KafkaBroker, admin: KafkaAdmin) -> None:
    """Kafka deletes the commits together with a topic, so that nothing else tells."""
    topic, group = create_topic(broker.bootstrap, 2), unique("reset")
    produce(broker.bootstrap, topic, 2, EACH)
    ids = admin.read_offsets(group, (topic,), None, read_committed=False).topic_ids
    assert ids.keys() == {topic}
    admin.delete_topics([topic])
    eventually(lambda: topic_of(admin, group, topic) is None, what="the topic to be gone")
    create_topic(broker.bootstrap, 2, name=topic)
    eventually(lambda: topic_of(admin, group, topic) is not None, what="the topic to be there")
    late = admin.set_offsets(group, at(topic, 5, 7), {}, marker=MARKER, topic_ids=ids)
    assert (late.outdated, late.after) == (True, {})
    ids = admin.read_offsets(group, (topic,), None, read_committed=False).topic_ids
    assert admin.set_offsets(group, at(topic, 0, 0), {}, marker=MARKER, topic_ids=ids).after == at(topic, 0, 0)


def topic_of(admin: KafkaAdmin, group: str, topic: str) -> str | None:
    return admin.read_offsets(group, (topic,), None, read_committed=False).topic_ids.get(topic)


def test_group_of_the_new_protocol_is_not_taken_for_an_empty_one(broker: KafkaBroker, admin: KafkaAdmin) -> None:
    """DescribeGroups says Dead of it, as of a group that does not exist."""
    topic, group = create_topic(broker.bootstrap, 1), unique("reset")
    produce(broker.bootstrap, topic, 1, EACH)
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    member.subscribe([topic])
    try:
        eventually(lambda: member.poll(1.0) is not None, what="the member to have a record")
        seen = admin.read_offsets(group, (topic,), None, read_committed=False)
        assert (seen.state, seen.group_type, seen.members) == ("Stable", "consumer", ())
    finally:
        member.close()

    def empty() -> bool:
        left = admin.read_offsets(group, (topic,), None, read_committed=False)
        return (left.state, left.group_type) == ("Empty", "consumer")

    eventually(empty, what="the group to be empty")
    assert admin.set_offsets(group, at(topic, 5), marker=MARKER).after == at(topic, 5)


def test_missing_topic_is_absent_and_its_offsets_are_refused(broker: KafkaBroker, admin: KafkaAdmin) -> None:
    group, missing = unique("reset"), naming.failed_topic(unique("nobody"))
    assert admin.read_offsets(group, (missing,), None, read_committed=False).counts == {}
    assert admin.set_offsets(group, at(missing, 5), marker=MARKER).refusals == {(missing, 0): "TopicNotFound"}
