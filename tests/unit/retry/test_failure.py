"""Classification of handler errors: every object that can be raised gets an answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.policies import PolicyInvalid
from fleet_consumer.handlers.performing import Outputs, Performer
from fleet_consumer.record import Fatal, Record, RetryAfter, Skip
from fleet_consumer.retry.failure import (
    MESSAGE_BYTES_MAX,
    Drop,
    Failure,
    HttpStatus,
    OutputRefused,
    Retry,
    TimedOut,
    Undecodable,
    classify,
    cut,
    traceback_of,
)
from tests.unit.retry.policies import policy


class Unprintable(Exception):
    """An application's error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class QuotaTimedOut(TimedOut):
    """An application's error that derives from one of ours."""


@pytest.mark.parametrize(
    ("raised", "reason", "error_class"),
    [
        (ValueError("cancelled"), FailureReason.EXHAUSTED, "ValueError"),
        (SystemExit(3), FailureReason.EXHAUSTED, "SystemExit"),
        (RetryAfter(5), FailureReason.EXHAUSTED, "fleet_consumer.record.RetryAfter"),
        (Fatal("no such account"), FailureReason.FATAL, "fleet_consumer.record.Fatal"),
        (OutputRefused("topic x"), FailureReason.FATAL, "fleet_consumer.retry.failure.OutputRefused"),
        (Undecodable("value", "Json", "x"), FailureReason.UNDECODABLE, "fleet_consumer.retry.failure.Undecodable"),
        (QuotaTimedOut("5 s"), FailureReason.TIMEOUT, "Timeout"),
    ],
    ids=["any exception", "an exit", "a retry without retries", "fatal", "a bad answer", "undecodable", "derived"],
)
def test_exception_decides_the_reason(raised: BaseException, reason: FailureReason, error_class: str) -> None:
    verdict = classify(raised)
    assert isinstance(verdict, Failure)
    assert (verdict.reason, verdict.error_class) == (reason, error_class)


def test_skip_drops_the_record_with_its_reason() -> None:
    assert classify(Skip("a test order")) == Drop("a test order")


def test_unprintable_error_is_still_classified() -> None:
    verdict = classify(Unprintable())
    assert isinstance(verdict, Failure)
    assert "RuntimeError" in verdict.message


@given(st.text(st.characters(codec=None, min_codepoint=0, max_codepoint=0x10FFFF)), st.integers(0, 64))
def test_cut_text_fits_and_is_valid_utf8(text: str, limit: int) -> None:
    """Lone surrogates, which Python strings may hold and UTF-8 may not, are escaped; no character is cut in two."""
    short = cut(text, limit)
    assert len(short.encode("utf-8")) <= limit
    whole = text.encode("utf-8", "backslashreplace").decode()
    assert whole.startswith(short)
    assert len(whole.encode()) <= limit or len(short.encode()) > limit - 4


def test_long_message_is_cut_to_one_kibibyte() -> None:
    verdict = classify(ValueError("é" * 5000))
    assert isinstance(verdict, Failure)
    assert len(verdict.message.encode()) == MESSAGE_BYTES_MAX


def rule(then: str, **when: str) -> dict[str, object]:
    return {"when": when, "then": then}


class Declined(ValueError):
    """An application's error."""


QUALIFIED = f"{Declined.__module__}.Declined"


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (KeyError("x"), "retry exhausted KeyError"),
        (RetryAfter(5), "retry exhausted fleet_consumer.record.RetryAfter"),
        (Fatal("never"), "fatal fleet_consumer.record.Fatal"),
        (Skip("a test"), "drop a test"),
        (OutputRefused("x"), "fatal fleet_consumer.retry.failure.OutputRefused"),
        (Undecodable("value", "Json", "x"), "undecodable fleet_consumer.retry.failure.Undecodable"),
        (TimedOut("slow"), "retry timeout Timeout"),
        (HttpStatus(503, "503 Service Unavailable"), "retry exhausted HttpStatus"),
        (HttpStatus(429, "429 Too Many Requests"), "retry exhausted HttpStatus"),
        (HttpStatus(404, "404 Not Found"), "fatal HttpStatus"),
        (SystemExit(1), "retry exhausted SystemExit"),
    ],
)
def test_policy_without_rules_retries_transient_errors(raised: BaseException, becomes: str) -> None:
    assert short(classify(raised, policy("5s"))) == becomes


def short(verdict: Retry | Failure | Drop) -> str:
    if isinstance(verdict, Drop):
        return f"drop {verdict.message}"
    if isinstance(verdict, Retry):
        return f"retry {short(verdict.failure)}"
    return f"{verdict.reason.value} {verdict.error_class}"


@pytest.mark.parametrize("name", ["Declined", QUALIFIED, "ValueError", "builtins.ValueError", "Exception"])
def test_rule_knows_a_class_by_its_name_or_that_of_any_base(name: str) -> None:
    verdict = classify(Declined("no"), policy("5s", classify=[rule("Fail", exception=name)]))
    assert isinstance(verdict, Failure)
    assert (verdict.reason, verdict.rule) == (FailureReason.FATAL, f"exception={name}")


@pytest.mark.parametrize("name", ["declined", "Value", "KeyError", "failure.Declined"])
def test_rule_of_another_class_does_not_match(name: str) -> None:
    assert isinstance(classify(Declined("no"), policy("5s", classify=[rule("Fail", exception=name)])), Retry)


def test_first_rule_that_matches_wins() -> None:
    rules = [
        rule("Retry", messageRegex="for now"),
        rule("Fail", exception="ValueError"),
        rule("Drop", messageRegex="."),
    ]
    follows = policy("5s", classify=rules)
    assert short(classify(ValueError("not for now"), follows)).startswith("retry")
    assert short(classify(ValueError("never"), follows)).startswith("fatal")
    assert short(classify(KeyError("x"), follows)) == "drop messageRegex=.: 'x'"


@pytest.mark.parametrize(
    ("wanted", "status", "matches"), [("404", 404, True), ("4xx", 404, True), ("5xx", 404, False), ("403", 404, False)]
)
def test_rule_knows_a_status_or_its_hundred(wanted: str, status: int, matches: bool) -> None:
    verdict = classify(HttpStatus(status, f"{status}"), policy("5s", classify=[rule("Retry", httpStatus=wanted)]))
    assert isinstance(verdict, Retry) == matches


@pytest.mark.parametrize("said", [Fatal("x"), Skip("x"), RetryAfter(5), OutputRefused("x")])
def test_exceptions_of_the_library_win_over_rules(said: Exception) -> None:
    follows = policy("5s", classify=[rule("Fail", exception="RetryAfter"), rule("Retry", exception="Exception")])
    assert short(classify(said, follows)) == short(classify(said, policy("5s")))


@pytest.mark.parametrize(
    ("then", "begins"), [("Fail", "undecodable"), ("Retry", "retry undecodable"), ("Drop", "drop")]
)
def test_undecodable_record_is_decided_by_its_own_field_alone(then: str, begins: str) -> None:
    follows = policy("5s", undecodable=then, classify=[rule("Drop", exception="Exception")])
    assert short(classify(Undecodable("value", "Json", "x"), follows)).startswith(begins)


def test_rules_match_a_time_out_by_class_and_its_reason_stays() -> None:
    verdict = classify(TimedOut("slow"), policy("5s", classify=[rule("Fail", exception="Timeout")]))
    assert short(verdict) == "timeout Timeout"


def test_cause_of_retry_after_is_the_reported_error() -> None:
    try:
        raise RetryAfter(7) from HttpStatus(429, "429 Too Many Requests: busy")
    except RetryAfter as error:
        verdict = classify(error, policy("5s"))
    assert isinstance(verdict, Retry)
    assert verdict.after_s == 7
    assert (verdict.failure.error_class, verdict.failure.message) == ("HttpStatus", "429 Too Many Requests: busy")


@pytest.mark.parametrize(
    ("seconds", "waits"),
    [
        (-5, 0.0),
        (10**400, 1e9),
        (-(10**400), 0.0),
        (float("nan"), None),
        (float("inf"), 1e9),
        ("5", None),
        (None, None),
        (True, None),
    ],
)
def test_wait_that_makes_no_sense_is_left_to_the_policy(seconds: Any, waits: float | None) -> None:
    verdict = classify(RetryAfter(seconds), policy("5s"))
    assert isinstance(verdict, Retry)
    assert verdict.after_s == waits


@given(st.text(alphabet="ab.*+?|()[]{}1,\\", max_size=16))
@settings(deadline=None)
def test_message_is_searched_in_bounded_time_for_any_rule(pattern: str) -> None:
    try:
        follows = policy("5s", classify=[rule("Fail", messageRegex=pattern)])
    except PolicyInvalid:
        return
    before = time.process_time()
    for text in ("a" * 100_000, "ab" * 50_000, "a" * 255 + "!"):
        classify(ValueError(text), follows)
    assert time.process_time() - before < 30


def test_traceback_begins_at_the_application() -> None:
    """The worker's own calls above the one that matters say nothing."""

    def handle(record: Record) -> None:
        raise KeyError("customer")

    performer = Performer(handle, batch=False, decode_key=None, decode_value=None, outputs=Outputs([]), timeout_s=None)
    (result,) = performer.perform([Record("orders", 0, 0, -1, None, b"x")])
    assert result.error is not None
    text = traceback_of(result.error)
    assert "fleet_consumer" not in text
    assert "in handle" in text
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("KeyError: 'customer'"), "no blank line after it"
