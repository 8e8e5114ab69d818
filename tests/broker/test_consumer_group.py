"""A real group on a real broker: shares, joins, leaves, deaths, commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group.errors import CommitFailed, FencedInstance
from fleet_consumer.group.membership import OffsetAndMetadata
from tests.broker.members import (
    Member,
    await_records,
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

MEMBER_PROCESS = Path(__file__).parent / "member_process.py"


def test_one_consumer_reads_everything_once_and_the_next_continues_after_it(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    written = produce(broker.bootstrap, topic, 4, 2_000)
    with Member(settings(broker.bootstrap, group), [topic]) as member:
        await_records([member], written)
    assert sorted(member.seen) == sorted(written)
    assert committed(broker.bootstrap, group, topic, 4) == dict.fromkeys(range(4), 2_000)
    later = produce(broker.bootstrap, topic, 4, 10, first=2_000)
    with Member(settings(broker.bootstrap, group), [topic]) as successor:
        await_records([successor], later)
    assert sorted(successor.seen) == sorted(later)
    assert [what for what, _ in successor.calls] == ["assigned", "revoked"]


def test_records_carry_every_written_field(broker: KafkaBroker) -> None:

    topic = create_topic(broker.bootstrap, 1)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, key=b"k", value=b"v", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)])
    producer.produce(topic, key=None, value=None, timestamp=1_700_000_000_124)
    assert producer.flush(60) == 0
    consumer = Consumer(settings(broker.bootstrap, unique("group")))
    try:
        consumer.subscribe([topic])
        first, second = iterate(consumer, 2)
    finally:
        consumer.close()
    assert (first.topic, first.partition, first.offset, first.timestamp) == (topic, 0, 0, 1_700_000_000_123)
    assert (first.key, first.value, list(first.headers)) == (b"k", b"v", [("a", b"1"), ("a", None)])
    assert (second.key, second.value, list(second.headers), second.leader_epoch) == (None, None, [], 0)


def test_members_share_when_one_joins_and_take_over_when_one_leaves(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 5), unique("group")
    written = produce(broker.bootstrap, topic, 5, 500)
    with Member(settings(broker.bootstrap, group), [topic]) as first:
        await_shares([first], topic, 5)
        with Member(settings(broker.bootstrap, group), [topic]) as second:
            await_shares([first, second], topic, 5)
            assert len(first.owned) + len(second.owned) == 5
            written |= produce(broker.bootstrap, topic, 5, 500, first=500)
            await_records([first, second], written)
        await_shares([first], topic, 5, timeout_s=20)  # sooner than a session timeout: it sent a LeaveGroup
        written |= produce(broker.bootstrap, topic, 5, 100, first=1_000)
        await_records([first, second], written)
    assert sorted(first.seen + second.seen) == sorted(written)


def test_killed_member_is_replaced_after_its_session_without_loss(broker: KafkaBroker, tmp_path: Path) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    log = tmp_path / "handed"
    process = subprocess.Popen([sys.executable, str(MEMBER_PROCESS), broker.bootstrap, group, topic, str(log)])
    try:
        eventually(lambda: log.exists() and "assigned" in log.read_text(), what="the process to join")
        with Member(settings(broker.bootstrap, group), [topic]) as member:
            eventually(lambda: len(member.owned) == 2, what="the two to share")
            written = produce(broker.bootstrap, topic, 4, 1_000)
            eventually(lambda: "records" in log.read_text(), what="the process to be given records")
            os.kill(process.pid, signal.SIGKILL)
            await_shares([member], topic, 4)
            await_records([member], written)
    finally:
        process.kill()
        process.wait()
    # The process committed nothing, so the survivor reads all of it, each record once.
    assert sorted(member.seen) == sorted(written)


def test_static_member_restarted_within_its_session_moves_nothing(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    with Member(settings(broker.bootstrap, group, group_instance_id="a"), [topic]) as other:
        restarted = Member(settings(broker.bootstrap, group, group_instance_id="b"), [topic])
        await_shares([other, restarted], topic, 4)
        generation, owned, member_id = other.membership.generation, restarted.owned, restarted.membership.member_id
        calls = len(other.calls)
        restarted.stop()
        with Member(settings(broker.bootstrap, group, group_instance_id="b"), [topic]) as again:
            await_shares([other, again], topic, 4)
            assert again.owned == owned
            assert again.membership.generation == other.membership.generation == generation
            assert again.membership.member_id != member_id
        assert len(other.calls) == calls


def test_static_leader_restarted_within_its_session_still_notices_new_partitions(broker: KafkaBroker) -> None:
    """KIP-814: the answer says to skip the assignment, yet the member leads and must watch the topic."""
    from tests.broker.members import grow_topic

    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    long_session = settings(broker.bootstrap, group, group_instance_id="a", session_timeout_ms=10_000)
    leader = Member(long_session, [topic])
    await_shares([leader], topic, 2)
    generation = leader.membership.generation
    leader.stop()
    with Member(long_session, [topic]) as again:
        await_shares([again], topic, 2)
        assert again.membership.generation == generation
        assert again.membership.leader
        grow_topic(broker.bootstrap, topic, 3)
        await_shares([again], topic, 3)
        assert again.membership.generation == generation + 1


def test_second_consumer_with_the_same_instance_id_fences_the_first(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    fenced = Member(settings(broker.bootstrap, group, group_instance_id="a"), [topic])
    await_shares([fenced], topic, 2)
    with Member(settings(broker.bootstrap, group, group_instance_id="a"), [topic]) as usurper:
        eventually(lambda: fenced.error, what="the first to be fenced")
        assert isinstance(fenced.error, FencedInstance)
        assert fenced.membership.state in ("Failed", "Left")
        await_shares([usurper], topic, 2)
    fenced.stop()
    assert [what for what, _ in fenced.calls] == ["assigned", "lost"]


def test_commit_of_a_member_that_was_replaced_is_refused(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 100)
    hung = Consumer(settings(broker.bootstrap, group, max_poll_interval_ms=1_500))
    try:
        hung.subscribe([topic])
        records = list(iterate(hung, 100))
        # It polls no more, so it gives up its place; another one takes it and commits.
        eventually(lambda: hung.membership().state == "Unjoined", what="the poll timer to end")
        assert not hung.holds_session()
        with Member(settings(broker.bootstrap, group), [topic]) as successor:
            await_records([successor], {(0, number) for number in range(100)})
        with pytest.raises(CommitFailed):
            hung.commit({TopicPartition(topic, 0): OffsetAndMetadata(records[10].offset)}, 5)
    finally:
        hung.close()
    assert committed(broker.bootstrap, group, topic, 1) == {0: 100}
