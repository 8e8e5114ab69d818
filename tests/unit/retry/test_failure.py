"""What a handler raises decides what becomes of its record; the answer must come for anything that can be raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.record import Fatal, RetryAfter, Skip
from fleet_consumer.retry.failure import (
    MESSAGE_BYTES_MAX,
    Drop,
    Failure,
    FailureReason,
    OutputRefused,
    Undecodable,
    classify,
    cut,
)


class Unprintable(Exception):
    """An application's error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("raised", "reason", "error_class"),
    [
        (ValueError("cancelled"), FailureReason.EXHAUSTED, "ValueError"),
        (SystemExit(3), FailureReason.EXHAUSTED, "SystemExit"),
        (RetryAfter(5), FailureReason.EXHAUSTED, "fleet_consumer.record.RetryAfter"),
        (Fatal("no such account"), FailureReason.FATAL, "fleet_consumer.record.Fatal"),
        (OutputRefused("topic x"), FailureReason.FATAL, "fleet_consumer.retry.failure.OutputRefused"),
        (Undecodable("value", "Json", "x"), FailureReason.UNDECODABLE, "fleet_consumer.retry.failure.Undecodable"),
    ],
    ids=["any exception", "an exit", "a retry without retries", "fatal", "a bad answer", "undecodable"],
)
def test_what_was_raised_decides_the_reason(raised: BaseException, reason: FailureReason, error_class: str) -> None:
    verdict = classify(raised)
    assert isinstance(verdict, Failure)
    assert (verdict.reason, verdict.error_class) == (reason, error_class)


def test_skip_drops_the_record_with_its_reason() -> None:
    assert classify(Skip("a test order")) == Drop("a test order")


def test_error_that_cannot_be_printed_is_classified_all_the_same() -> None:
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
