"""Errors around a consumer: unreachable brokers, wrong passwords, missing topics. It stays, reports, and recovers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleet_consumer import Consumer, ConsumerSettings
from fleet_consumer.group import errors
from fleet_consumer.net import ConnectionSettings, SaslSettings
from tests.broker.conftest import SHORT_SESSIONS
from tests.broker.members import Member, await_records, await_shares, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(properties=SHORT_SESSIONS, sasl_users={"alice": "alice-secret"}) as running:
        yield running


@pytest.fixture
def fragile(own_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker that tests may stop and pause; a test that fails leaves it running for the next."""
    yield own_broker
    if own_broker.running:
        own_broker.resume()
    else:
        own_broker.start()


def reason(member: Member) -> str | None:
    error = member.membership.error
    return getattr(error, "reason", None)


@pytest.mark.together
def test_missing_topic_is_reported_and_consumed_when_it_appears(broker: KafkaBroker) -> None:
    topic = unique("later")
    with Member(settings(broker.bootstrap, unique("group")), [topic]) as member:
        eventually(lambda: reason(member) == "TopicMissing", what="the missing topic to be reported")
        assert topic in str(member.membership.error)
        eventually(lambda: member.membership.state == "Stable", what="the member to join all the same")
        create_topic(broker.bootstrap, 2, name=topic)
        await_shares([member], topic, 2)
        await_records([member], produce(broker.bootstrap, topic, 2, 10))
        eventually(lambda: not reason(member), what="the error to go away")


def test_broker_restart_costs_neither_members_nor_records(fragile: KafkaBroker) -> None:
    topic, group = create_topic(fragile.bootstrap, 4), unique("group")
    written = produce(fragile.bootstrap, topic, 4, 500)
    long_session = settings(fragile.bootstrap, group, session_timeout_ms=20_000)
    with Member(long_session, [topic]) as first, Member(long_session, [topic]) as second:
        await_records([first, second], written)
        await_shares([first, second], topic, 4)
        fragile.stop()
        eventually(lambda: reason(first) and reason(second), what="both to report that the broker is away")
        fragile.start()
        written |= produce(fragile.bootstrap, topic, 4, 500, first=500)
        await_records([first, second], written)
        await_shares([first, second], topic, 4)
        eventually(lambda: not reason(first) and not reason(second), what="the error to go away")
    seen = first.seen + second.seen
    assert sorted(set(seen)) == sorted(written)


def test_consumer_that_starts_before_its_broker_waits_for_it(fragile: KafkaBroker) -> None:
    topic = create_topic(fragile.bootstrap, 1)
    written = produce(fragile.bootstrap, topic, 1, 10)
    fragile.stop()
    with Member(settings(fragile.bootstrap, unique("group")), [topic]) as member:
        # The data plane may be the first to report; the membership's own error takes precedence.
        eventually(lambda: reason(member) == "ConnectFailed", what="the absence to be reported")
        fragile.start()
        await_records([member], written)
        eventually(lambda: not reason(member), what="the error to go away")


def test_member_of_a_hanging_broker_delivers_nothing_after_its_session(fragile: KafkaBroker) -> None:
    """Others may have the partitions by then; this member cannot know."""
    topic, group = create_topic(fragile.bootstrap, 1), unique("group")
    written = produce(fragile.bootstrap, topic, 1, 3_000)
    with Member(settings(fragile.bootstrap, group, session_timeout_ms=1_500, max_poll_records=10), [topic]) as member:
        eventually(lambda: member.seen, what="the first records")
        member.hang()
        fragile.pause()
        try:
            eventually(lambda: not member.consumer.holds_session(), what="the session to run out")
            handed = len(member.seen)
            member.wake()
            # Much was prefetched, and still nothing is delivered.
            eventually(lambda: reason(member), what="the hanging broker to be reported")
            assert len(member.seen) <= handed + 10  # the batch that `hang` caught inside poll
        finally:
            fragile.resume()
        await_records([member], written, timeout_s=240)


def wrong_password(broker: KafkaBroker, **changes: Any) -> ConsumerSettings:
    connection = ConnectionSettings(
        bootstrap_servers=(broker.sasl_bootstrap,),
        client_id="test",
        sasl=SaslSettings(mechanism="PLAIN", username="alice", password="wrong"),
    )
    return settings(broker.bootstrap, unique("group"), connection=connection, **changes)


def test_wrong_password_ends_a_consumer_as_in_java(fragile: KafkaBroker) -> None:
    with Consumer(wrong_password(fragile)) as consumer:
        consumer.subscribe(["any"])
        with pytest.raises(errors.AuthenticationFailed, match="alice") as raised:
            eventually(lambda: consumer.poll(0.5), what="the refusal to be raised")
        assert isinstance(raised.value, errors.FatalConsumerError)
        assert "wrong" not in str(raised.value)
        with pytest.raises(errors.AuthenticationFailed):
            consumer.poll(0.5)


def test_wrong_password_ends_a_question_without_a_subscription(fragile: KafkaBroker) -> None:
    with Consumer(wrong_password(fragile)) as consumer, pytest.raises(errors.AuthenticationFailed):
        consumer.committed(None, 60)


def test_retriable_wrong_password_is_reported(fragile: KafkaBroker) -> None:
    with Member(wrong_password(fragile, retry_authentication=True), ["any"]) as member:
        eventually(lambda: reason(member), what="the refusal to be reported")
        assert reason(member) == "AuthenticationFailed"
        assert "alice" in str(member.membership.error)
        assert "wrong" not in str(member.membership.error)
        assert member.error is None


def test_right_password_works_for_group_and_data(fragile: KafkaBroker) -> None:
    topic = create_topic(fragile.bootstrap, 1)
    written = produce(fragile.bootstrap, topic, 1, 10)
    connection = ConnectionSettings(
        bootstrap_servers=(fragile.sasl_bootstrap,),
        client_id="test",
        sasl=SaslSettings(mechanism="SCRAM-SHA-256", username="alice", password="alice-secret"),
    )
    with Member(settings(fragile.bootstrap, unique("group"), connection=connection), [topic]) as member:
        await_records([member], written)
