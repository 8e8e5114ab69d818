"""Destination of a failed record, attempt by attempt, for every shape of the sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.naming import canonical_delay, retry_topic
from fleet_consumer.contract.policies import Policies, Policy
from fleet_consumer.record import Fatal, Record, RetryAfter, Skip
from fleet_consumer.retry.failure import Drop, Failure, Retry, TimedOut, classify
from fleet_consumer.retry.headers import Origin, RetryHistory, clamped, read
from fleet_consumer.retry.routing import ToFailed, ToRetry, next_delay, partition_of, retried, route
from tests.unit.retry.policies import OTHER, UNKNOWN, policies, policy

NOW = 1_700_000_000_000
GROUP = "orders"
FAILURE = Failure(FailureReason.EXHAUSTED, "ValueError", "no")
AGAIN = Retry(None, FAILURE)


def source_record() -> Record:
    return Record("flights", 3, 42, 1_357_034_400_000, b"k", b"v", (("traceparent", b"00-ab"),))


def delivered(publish: ToRetry, policies: Policies, *, now_ms: int = NOW, offset: int = 7) -> Record:
    """The record as a retry worker hands it out: written by a retry publish, read from its topic, told by its
    headers."""
    read_record = Record(publish.topic, 1, offset, now_ms, b"k", b"v", publish.headers)
    return retried(read_record, clamped(read(read_record, now_ms=now_ms), policies))


def life(found: Policies, error: BaseException) -> tuple[list[Record], list[str], ToRetry | ToFailed | Drop]:
    """All deliveries of a record whose handler always raises `error`, the topics that it waited in, and its end."""
    deliveries = [source_record()]
    topics: list[str] = []
    while True:
        follows, _ = found.find_revision(_revision(deliveries[-1]))
        outcome = route(deliveries[-1], classify(error, follows), follows, group_id=GROUP, now_ms=NOW)
        if not isinstance(outcome, ToRetry):
            return deliveries, topics, outcome
        topics.append(outcome.topic)
        deliveries.append(delivered(outcome, found))
        assert len(deliveries) <= 101, "it goes round indefinitely"


def _revision(record: Record) -> str | None:
    return getattr(record, "history", RetryHistory(Origin("", 0, 0, 0))).policy


def test_six_delays_are_seven_deliveries_over_three_topics_and_end_in_the_failed_one() -> None:
    found = policies("5s", "5s", "30s", "30s", "30s", "60s")
    deliveries, topics, end = life(found, ValueError("no"))
    short, middle, long = (retry_topic(GROUP, delay) for delay in ("5s", "30s", "1m"))
    assert topics == [short, short, middle, middle, middle, long]
    assert [record.attempt for record in deliveries] == [0, 1, 2, 3, 4, 5, 6]
    assert isinstance(end, ToFailed)
    assert end.topic == "_fleet.orders.failed"
    told = dict(end.headers)
    assert (told["kr-attempt"], told["kr-reason"]) == (b"6", b"exhausted")


def test_every_delivery_shows_the_origin_and_where_it_was_read() -> None:
    deliveries, topics, _ = life(policies("5s", "1h", "30s"), ValueError("no"))
    first = source_record()
    for record, topic in zip(deliveries[1:], topics, strict=True):
        assert (record.topic, record.partition, record.offset) == (first.topic, first.partition, first.offset)
        assert (record.timestamp, record.key, record.value) == (first.timestamp, first.key, first.value)
        assert list(record.headers) == list(first.headers)
        assert record.first_failed_at == NOW
        assert (record.delivery.topic, record.delivery.partition, record.delivery.offset) == (topic, 1, 7)
        assert record.delivery.attempt == record.attempt


@given(st.lists(st.integers(1, 604_800), min_size=1, max_size=16))
def test_any_sequence_rising_or_falling_is_followed_in_its_order(delays: list[int]) -> None:
    found = policies(*(f"{delay}s" for delay in delays))
    deliveries, topics, end = life(found, ValueError("no"))
    assert topics == [retry_topic(GROUP, canonical_delay(delay)) for delay in delays]
    assert len(deliveries) == len(delays) + 1
    assert isinstance(end, ToFailed)


@pytest.mark.parametrize("error", [Fatal("no such account"), TimeoutError("x")])
def test_permanent_error_goes_to_the_failed_topic_at_once(error: Exception) -> None:
    """Said by the handler, or by the policy's rules."""
    rules = [{"when": {"exception": "TimeoutError"}, "then": "Fail"}]
    deliveries, topics, end = life(policies("5s", "5s", classify=rules), error)
    assert (len(deliveries), topics) == (1, [])
    assert isinstance(end, ToFailed)
    assert (dict(end.headers)["kr-attempt"], dict(end.headers)["kr-reason"]) == (b"0", b"fatal")


def test_dropped_record_is_written_nowhere() -> None:
    assert life(policies("5s"), Skip("a test order"))[2] == Drop("a test order")


def test_record_that_always_timed_out_has_reason_timeout() -> None:
    deliveries, _, end = life(policies("5s"), TimedOut("too slow"))
    assert len(deliveries) == 2
    assert isinstance(end, ToFailed)
    assert end.failure.reason is FailureReason.TIMEOUT


@pytest.mark.parametrize(
    ("seconds", "delay"),
    [(0, 5), (5, 5), (5.01, 30), (30, 30), (31, 3600), (1e9, 3600), (float("inf"), 3600)],
)
def test_wait_that_the_application_asks_for_is_rounded_up_to_a_topic_that_is_there(seconds: float, delay: int) -> None:
    found = policies("1h", "5s", "30s")
    outcome = route(
        source_record(), classify(RetryAfter(seconds), found.newest), found.newest, group_id=GROUP, now_ms=NOW
    )
    assert isinstance(outcome, ToRetry)
    assert (outcome.delay_s, outcome.attempt) == (delay, 1)


def test_wait_that_the_application_asks_for_uses_up_attempts() -> None:
    deliveries, topics, end = life(policies("5s", "30s", "1h"), RetryAfter(6))
    assert len(deliveries) == 4
    assert topics == [retry_topic(GROUP, "30s")] * 3
    assert isinstance(end, ToFailed)


def test_retry_publish_carries_its_due_time_and_error() -> None:
    outcome = route(source_record(), AGAIN, policy("30s"), group_id=GROUP, now_ms=NOW)
    assert isinstance(outcome, ToRetry)
    told = dict(outcome.headers)
    assert told["kr-not-before"] == str(NOW + 30_000).encode()
    assert told["kr-delay-ms"] == b"30000"
    assert told["kr-policy"] == b"standard@a1b2c3d4e5"
    assert (told["kr-error-class"], told["kr-error-message"]) == (b"ValueError", b"no")
    assert "kr-reason" not in told


def test_total_time_ends_the_attempts_and_a_redrive_begins_it_again() -> None:
    follows = policy("5s", "5s", "5s", maxTotalSeconds=100)
    origin = Origin("flights", 0, 1, 0)
    assert next_delay(follows, RetryHistory(origin, 1, first_failed_at=NOW - 99_999), None, NOW) == 5
    assert next_delay(follows, RetryHistory(origin, 1, first_failed_at=NOW - 100_000), None, NOW) is None
    late = RetryHistory(origin, 1, first_failed_at=NOW - 10**9, redrive_count=1, redriven_at=NOW - 1_000)
    assert next_delay(follows, late, None, NOW) == 5
    assert next_delay(follows, RetryHistory(origin), None, NOW) == 5


def test_records_in_flight_follow_the_revision_they_failed_under() -> None:
    """Two edits of a policy while a record waits: it goes on by the one that it names; new failures use the newest."""
    before = policies("5s", "1h")
    publish = route(source_record(), AGAIN, before.newest, group_id=GROUP, now_ms=NOW)
    assert isinstance(publish, ToRetry)
    second_edit = Policy(name="standard", revision=UNKNOWN, sequence=(30, 30, 30, 30))
    kept = {
        before.current: before.newest,
        OTHER: Policy(name="standard", revision=OTHER, sequence=(60,)),
        UNKNOWN: second_edit,
    }
    edited = Policies("standard", UNKNOWN, kept, ("5s", "30s", "1m", "1h"), 12, 1_000_000)
    record = delivered(publish, edited)
    follows, known = edited.find_revision(_revision(record))
    second = route(record, AGAIN, follows, group_id=GROUP, now_ms=NOW)
    assert known
    assert isinstance(second, ToRetry)
    assert (second.delay_s, second.attempt) == (3600, 2)
    fresh = route(source_record(), AGAIN, edited.newest, group_id=GROUP, now_ms=NOW)
    assert isinstance(fresh, ToRetry)
    assert (fresh.delay_s, dict(fresh.headers)["kr-policy"]) == (30, f"standard@{UNKNOWN}".encode())


def test_record_of_an_unknown_revision_continues_by_the_newest_from_its_attempt() -> None:
    before = policies("5s", "1h", "1h", "1h")
    publish = route(source_record(), AGAIN, before.newest, group_id=GROUP, now_ms=NOW)
    assert isinstance(publish, ToRetry)
    latest = Policy(name="standard", revision=OTHER, sequence=(30, 60))
    forgot = Policies("standard", OTHER, {OTHER: latest}, ("30s", "1m"), 12, 1_000_000)
    record = delivered(publish, forgot)
    follows, known = forgot.find_revision(_revision(record))
    second = route(record, AGAIN, follows, group_id=GROUP, now_ms=NOW)
    assert not known
    assert isinstance(second, ToRetry)
    assert (second.delay_s, second.attempt) == (60, 2)


def test_no_header_of_a_record_names_its_target() -> None:
    told = {"kr-origin-topic": "payments", "kr-origin-partition": "0", "kr-origin-offset": "0"}
    told |= {"kr-origin-timestamp": "0", "kr-group": "payments", "kr-attempt": "1", "kr-delay-ms": "1"}
    headers = [(name, value.encode()) for name, value in told.items()]
    forged = Record("_fleet.orders.retry.5s", 0, 1, NOW, b"k", b"v", headers)
    found = policies("5s", "30s")
    record = retried(forged, clamped(read(forged, now_ms=NOW), found))
    publish = route(record, AGAIN, found.newest, group_id=GROUP, now_ms=NOW)
    assert isinstance(publish, ToRetry)
    assert publish.topic == retry_topic(GROUP, "30s")
    end = route(record, FAILURE, found.newest, group_id=GROUP, now_ms=NOW)
    assert isinstance(end, ToFailed)
    assert (end.topic, dict(end.headers)["kr-group"]) == ("_fleet.orders.failed", b"orders")


@given(st.text(max_size=20), st.integers(0, 1000), st.integers(0, 2**63 - 1), st.integers(1, 500))
def test_record_without_a_key_always_lands_in_the_same_partition(
    topic: str, partition: int, offset: int, partitions: int
) -> None:
    origin = Origin(topic, partition, offset, 1)
    chosen = partition_of(None, origin, partitions)
    assert chosen is not None
    assert 0 <= chosen < partitions
    assert partition_of(None, Origin(topic, partition, offset, 2), partitions) == chosen
    assert partition_of(b"", origin, partitions) is None
