"""A failed record tells where it came from and why it failed, and is otherwise what it was."""

from __future__ import annotations

import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.failure import Failure
from fleet_consumer.retry.headers import (
    SKEW_MS,
    FailedDelivery,
    Origin,
    RetryHistory,
    clamped,
    failed_headers,
    first_history,
    read,
    redriven_headers,
    retry_headers,
    without_details,
)
from tests.unit.retry.policies import REVISION, UNKNOWN, policies, policy

FAILURE = Failure(FailureReason.EXHAUSTED, "ValueError", "cancelled: UA 1545")


def record(*headers: tuple[str, bytes | None], first_failed_at: int | None = None) -> Record:
    return Record("flights", 3, 42, 1_357_034_400_000, b"k", b"v", headers, first_failed_at=first_failed_at)


def source_failure(record: Record, group_id: str, now_ms: int) -> FailedDelivery:
    return FailedDelivery(record, FAILURE, group_id, now_ms, first_history(record))


def test_failed_record_names_its_origin_and_its_error() -> None:
    told = dict(failed_headers(source_failure(record(), "orders", 1700000000123)))
    assert told == {
        "kr-attempt": b"0",
        "kr-first-failed-at": b"1700000000123",
        "kr-failed-at": b"1700000000123",
        "kr-group": b"orders",
        "kr-origin-topic": b"flights",
        "kr-origin-partition": b"3",
        "kr-origin-offset": b"42",
        "kr-origin-timestamp": b"1357034400000",
        "kr-error-class": b"ValueError",
        "kr-error-message": b"cancelled: UA 1545",
        "kr-reason": b"exhausted",
    }


def test_headers_of_others_pass_unchanged_and_in_order_duplicates_included() -> None:
    given = (("traceparent", b"00-ab"), ("tag", b"1"), ("tag", None), ("krypton", b"\xff"))
    assert failed_headers(source_failure(record(*given), "g", 1))[:4] == list(given)


def test_forged_headers_are_replaced() -> None:
    """Whoever may write to the source topic must not decide what a redrive later reads as the origin."""
    forged = (("kr-origin-topic", b"payments"), ("kr-reason", b"manual"), ("kr-anything", b"x"))
    told = failed_headers(source_failure(record(*forged), "g", 1))
    assert [value for name, value in told if name == "kr-origin-topic"] == [b"flights"]
    assert [value for name, value in told if name == "kr-reason"] == [b"exhausted"]
    assert "kr-anything" not in dict(told)


def test_time_of_the_first_failure_stays() -> None:
    told = dict(failed_headers(source_failure(record(first_failed_at=7), "g", 9)))
    assert (told["kr-first-failed-at"], told["kr-failed-at"]) == (b"7", b"9")


def test_details_can_be_left_out_when_the_record_would_be_too_large() -> None:
    told = dict(without_details(failed_headers(source_failure(record(("a", b"b")), "g", 1))))
    assert "kr-error-message" not in told
    assert (told["kr-reason"], told["a"]) == (b"exhausted", b"b")


NOW = 1_700_000_000_000
TOPIC = "_fleet.orders.retry.5s"
ORIGIN = Origin("flights", 3, 42, 1_357_034_400_000)
TOLD = {
    "kr-attempt": b"2",
    "kr-first-failed-at": b"1699999990000",
    "kr-policy": b"standard@" + REVISION.encode(),
    "kr-origin-topic": b"flights",
    "kr-origin-partition": b"3",
    "kr-origin-offset": b"42",
    "kr-origin-timestamp": b"1357034400000",
    "kr-redrive-id": b"0f6c2f3e-8f0e",
    "kr-redrive-count": b"1",
    "kr-redriven-at": b"1699999995000",
}
FOUND = policies("5s", "30s", "1h")


def waiting(*headers: tuple[str, bytes | None]) -> Record:
    return Record(TOPIC, 1, 7, NOW, b"k", b"v", headers)


def history(**changed: bytes | None) -> RetryHistory:
    """The retry history of a whole record whose headers were changed; names have underscores and no prefix."""
    told: dict[str, bytes | None] = {**TOLD, **{f"kr-{name.replace('_', '-')}": v for name, v in changed.items()}}
    return clamped(read(waiting(*told.items()), now_ms=NOW), FOUND)


def test_every_retry_header_is_read() -> None:
    assert history() == RetryHistory(ORIGIN, 2, NOW - 10_000, REVISION, "0f6c2f3e-8f0e", 1, NOW - 5_000, damaged=False)


def test_story_survives_a_retry_publish() -> None:
    told = retry_headers(FailedDelivery(waiting(), FAILURE, "orders", NOW, history()), FOUND.newest, delay_s=3600)
    again = clamped(read(waiting(*told), now_ms=NOW), FOUND)
    assert again == RetryHistory(ORIGIN, 3, NOW - 10_000, REVISION, "0f6c2f3e-8f0e", 1, NOW - 5_000)


def test_headers_do_not_grow_from_retry_publish_to_retry_publish() -> None:
    record = waiting(("traceparent", b"00-ab"))
    for attempt in range(50):
        known = RetryHistory(ORIGIN, attempt, NOW, REVISION)
        headers = retry_headers(FailedDelivery(record, FAILURE, "orders", NOW, known), FOUND.newest, delay_s=5)
        record = waiting(*headers)
    assert len(record.headers) == len(dict(record.headers)) == 14


def test_last_of_several_values_counts() -> None:
    record = waiting(*TOLD.items(), ("kr-attempt", b"1"))
    assert read(record, now_ms=NOW).attempt == 1


@pytest.mark.parametrize(
    "value", [None, b"", b"x", b"-1", b"+1", b"1.0", b" 1", b"01", b"1_0", "٣".encode(), b"\xff" * 9]
)
def test_attempt_that_is_not_a_number_is_absent_and_reported(value: bytes | None) -> None:
    found = history(attempt=value)
    assert (found.attempt, found.damaged, found.origin) == (0, True, ORIGIN)


@pytest.mark.parametrize("value", [b"4", b"1000000000", b"9" * 19])
def test_attempt_beyond_the_sequence_is_its_last_and_reported(value: bytes) -> None:
    assert (history(attempt=value).attempt, history(attempt=value).damaged) == (3, True)


def test_attempt_beyond_a_shorter_newest_sequence_is_no_damage_when_its_own_is_forgotten() -> None:
    found = history(attempt=b"9", policy=b"standard@" + UNKNOWN.encode())
    assert (found.attempt, found.policy, found.damaged) == (3, UNKNOWN, False)


def test_time_a_century_ahead_is_now_and_reported() -> None:
    found = history(first_failed_at=str(NOW + 100 * 365 * 86_400_000).encode())
    assert (found.first_failed_at, found.damaged) == (NOW, True)


@pytest.mark.parametrize("timestamp", [-(2**63), -5, -1, 0, 2**63 - 1])
def test_any_time_that_a_record_can_have_is_the_same_in_its_retries(timestamp: int) -> None:
    found = history(origin_timestamp=str(timestamp).encode())
    assert (found.origin.timestamp, found.damaged) == (timestamp, False)


@pytest.mark.parametrize("value", [b"-0", b"--5", str(2**63).encode(), str(-(2**63) - 1).encode()])
def test_impossible_time_is_reported(value: bytes) -> None:
    found = history(origin_timestamp=value)
    assert (found.origin.offset, found.damaged) == (42, True)


def test_clocks_that_disagree_a_little_are_no_damage() -> None:
    found = history(first_failed_at=str(NOW + SKEW_MS).encode())
    assert (found.first_failed_at, found.damaged) == (NOW, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("origin_topic", b""),
        ("origin_topic", b"../etc/passwd"),
        ("origin_topic", b"t" * 250),
        ("origin_topic", b"flights\n"),
        ("origin_partition", b"-1"),
        ("origin_offset", b"x"),
        ("origin_offset", None),
    ],
)
def test_half_an_origin_is_none(name: str, value: bytes | None) -> None:
    """Then it is where the record was read: coordinates that exist, and are its own."""
    found = history(**{name: value})
    assert (found.origin, found.damaged) == (Origin(TOPIC, 1, 7, NOW), True)


@pytest.mark.parametrize(
    "value", [b"standard", b"standard@", b"@" + REVISION.encode(), b"standard@A1B2C3D4E5", b"\xff@"]
)
def test_policy_without_a_revision_is_absent_and_reported(value: bytes) -> None:
    assert (history(policy=value).policy, history(policy=value).damaged) == (None, True)


def test_record_without_any_of_our_headers_begins_where_it_is() -> None:
    """Somebody wrote it into the retry topic; it is handled like any record, from its first attempt on."""
    found = read(waiting(("a", b"b")), now_ms=NOW)
    assert found == RetryHistory(Origin(TOPIC, 1, 7, NOW), damaged=True)


NAMES = st.sampled_from([*TOLD, "kr-", "kr-anything", "KR-ATTEMPT", "traceparent", ""]) | st.text(max_size=12)
VALUES = (
    st.none()
    | st.binary(max_size=40)
    | st.integers(-(2**70), 2**70).map(lambda number: str(number).encode())
    | st.sampled_from([*TOLD.values()])
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=30), st.booleans())
def test_any_headers_at_all_are_read_within_bounds(headers: Headers, with_policies: bool) -> None:
    record = waiting(*headers)
    found = read(record, now_ms=NOW)
    if with_policies:
        found = clamped(found, FOUND)
    assert 0 <= found.attempt <= (3 if with_policies else 2**63 - 1)
    assert found.first_failed_at is None or 0 <= found.first_failed_at <= NOW
    assert found.redriven_at is None or 0 <= found.redriven_at <= NOW
    assert 0 <= found.redrive_count <= 1_000
    assert found.origin.partition >= 0
    assert found.origin.offset >= 0
    assert len(found.origin.topic) <= 249
    assume(found.attempt < 2**63 - 1)  # a worker never adds to it: it limits attempts to the policy's delays
    written = retry_headers(FailedDelivery(record, FAILURE, "orders", NOW, found), FOUND.newest, delay_s=5)
    again = read(waiting(*written), now_ms=NOW)
    assert (again.origin, again.attempt, again.redrive_count) == (found.origin, found.attempt + 1, found.redrive_count)
    assert not again.damaged
    foreign = [pair for pair in headers if not pair[0].startswith("kr-")]
    assert written[: len(foreign)] == foreign


def test_spring_profile_adds_its_names_and_encodings_to_the_failed_record_only() -> None:
    follows = policy("5s", headerProfile="Spring")
    told = dict(failed_headers(FailedDelivery(waiting(), FAILURE, "orders", NOW, history()), follows))
    assert told["kafka_dlt-original-topic"] == b"flights"
    assert told["kafka_dlt-original-partition"] == struct.pack(">i", 3)
    assert told["kafka_dlt-original-offset"] == struct.pack(">q", 42)
    assert told["kafka_dlt-original-timestamp"] == struct.pack(">q", ORIGIN.timestamp)
    assert told["kafka_dlt-original-consumer-group"] == b"orders"
    assert told["kafka_dlt-exception-fqcn"] == b"ValueError"
    assert told["kafka_dlt-exception-message"] == b"cancelled: UA 1545"
    assert told["kr-policy"] == f"standard@{REVISION}".encode()
    written = retry_headers(FailedDelivery(waiting(), FAILURE, "orders", NOW, history()), follows, delay_s=5)
    assert not [name for name, _ in written if name.startswith("kafka_dlt-")]


def test_spring_headers_of_an_earlier_failure_are_replaced() -> None:
    follows = policy("5s", headerProfile="Spring")
    given = waiting(("kafka_dlt-original-topic", b"older"), ("kafka_dlt-other", b"stays"))
    told = failed_headers(FailedDelivery(given, FAILURE, "orders", NOW, history()), follows)
    assert [value for name, value in told if name == "kafka_dlt-original-topic"] == [b"flights"]
    assert dict(told)["kafka_dlt-other"] == b"stays"


def test_details_that_are_left_out_include_those_of_the_spring_profile() -> None:
    follows = policy("5s", headerProfile="Spring")
    told = failed_headers(FailedDelivery(waiting(), FAILURE, "orders", NOW, history()), follows)
    names = set(dict(told)) - set(dict(without_details(told)))
    assert names == {"kr-error-class", "kr-error-message", "kafka_dlt-exception-fqcn", "kafka_dlt-exception-message"}


def test_redriven_record_begins_again_and_remembers() -> None:
    failed = failed_headers(
        FailedDelivery(waiting(("traceparent", b"00-ab")), FAILURE, "orders", NOW, history()), FOUND.newest
    )
    told = redriven_headers(failed, history(), redrive_id="11112222-3333", source="4:17", now_ms=NOW + 1)
    assert dict(told) == {
        "traceparent": b"00-ab",
        "kr-group": b"orders",
        "kr-attempt": b"0",
        "kr-first-failed-at": b"1699999990000",
        "kr-origin-topic": b"flights",
        "kr-origin-partition": b"3",
        "kr-origin-offset": b"42",
        "kr-origin-timestamp": b"1357034400000",
        "kr-redrive-id": b"11112222-3333",
        "kr-redrive-count": b"2",
        "kr-redriven-at": str(NOW + 1).encode(),
        "kr-redrive-source": b"4:17",
    }
    again = read(waiting(*told), now_ms=NOW + 1)
    assert (again.attempt, again.policy, again.redrive_count, again.damaged) == (0, None, 2, False)


def test_redriven_record_loses_the_names_of_the_spring_profile_and_keeps_those_of_others() -> None:
    """Handlers see the headers of the first delivery again."""
    follows = policy("5s", headerProfile="Spring")
    given = waiting(("kafka_dlt-other", b"stays"), ("a", b"b"))
    failed = failed_headers(FailedDelivery(given, FAILURE, "orders", NOW, history()), follows)
    told = redriven_headers(
        [*failed, ("kafka_dlt-original-topic", b"another")], history(), redrive_id="x", source="4:17", now_ms=NOW
    )
    foreign = [header for header in told if not header[0].startswith("kr-")]
    assert foreign == [("kafka_dlt-other", b"stays"), ("a", b"b"), ("kafka_dlt-original-topic", b"another")]
