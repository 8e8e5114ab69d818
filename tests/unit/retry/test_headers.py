"""A failed record tells where it came from and why it failed, and is otherwise what it was."""

from __future__ import annotations

from fleet_consumer.record import Record
from fleet_consumer.retry.failure import Failure, FailureReason
from fleet_consumer.retry.headers import failed_headers, without_details

FAILURE = Failure(FailureReason.EXHAUSTED, "ValueError", "cancelled: UA 1545")


def record(*headers: tuple[str, bytes | None], first_failed_at: int | None = None) -> Record:
    return Record("flights", 3, 42, 1_357_034_400_000, b"k", b"v", headers, first_failed_at=first_failed_at)


def test_failed_record_names_its_origin_and_its_error() -> None:
    told = dict(failed_headers(record(), FAILURE, group_id="orders", now_ms=1_700_000_000_123))
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
    assert failed_headers(record(*given), FAILURE, group_id="g", now_ms=1)[:4] == list(given)


def test_forged_headers_are_replaced_not_believed() -> None:
    """Whoever may write to the source topic must not decide what a redrive later reads as the origin."""
    forged = (("kr-origin-topic", b"payments"), ("kr-reason", b"manual"), ("kr-anything", b"x"))
    told = failed_headers(record(*forged), FAILURE, group_id="g", now_ms=1)
    assert [value for name, value in told if name == "kr-origin-topic"] == [b"flights"]
    assert [value for name, value in told if name == "kr-reason"] == [b"exhausted"]
    assert "kr-anything" not in dict(told)


def test_time_of_the_first_failure_stays() -> None:
    told = dict(failed_headers(record(first_failed_at=7), FAILURE, group_id="g", now_ms=9))
    assert (told["kr-first-failed-at"], told["kr-failed-at"]) == (b"7", b"9")


def test_details_can_be_left_out_when_the_record_would_be_too_large() -> None:
    told = dict(without_details(failed_headers(record(("a", b"b")), FAILURE, group_id="g", now_ms=1)))
    assert "kr-error-message" not in told
    assert (told["kr-reason"], told["a"]) == (b"exhausted", b"b")
