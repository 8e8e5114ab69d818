"""Comparison of two answers as what would be written, or as the failure."""

from __future__ import annotations

import json

import pytest

from fleet_consumer.backfill.comparing import (
    DIFFERENT,
    EQUAL,
    FAILED_CANDIDATE_ONLY,
    FAILED_LIVE_ONLY,
    Ignored,
    answer_of,
    compare,
    dumped,
    error_text,
    judged,
    result_text,
    sample_text,
)
from fleet_consumer.backfill.slices import TaskReport
from fleet_consumer.contract.backfill_ledger import SAMPLE_TEXT_MAX
from fleet_consumer.record import Fatal, Produce, Skip

Made = tuple[Produce, ...] | BaseException


def outputs(*produces: Produce) -> Made:
    return produces


def verdict(one: Made, other: Made, *ignored: str) -> str:
    live, candidate = answer_of(one, None), answer_of(other, None)
    may_differ = Ignored.from_paths(ignored)
    stored = compare(json.loads(dumped(live)), json.loads(dumped(candidate)), may_differ)
    assert stored == compare(live, candidate, may_differ), "stored answers compare alike"
    return stored


VALUE = Produce("t", b'{"a": 1, "at": 5}')
DEEP = b'{"a": ' * 100_000 + b"%s" + b"}" * 100_000
"""Deeper than Python reads."""


@pytest.mark.parametrize(
    ("one", "other", "ignored", "expected"),
    [
        (outputs(), outputs(), (), EQUAL),
        (outputs(VALUE), outputs(VALUE), (), EQUAL),
        (outputs(VALUE), outputs(), (), DIFFERENT),
        (outputs(VALUE), outputs(Produce("t", '{"at":5,"a":1}')), (), EQUAL),
        (outputs(VALUE), outputs(Produce("t", b'{"a": 1, "at": 6}')), (), DIFFERENT),
        (outputs(VALUE), outputs(Produce("t", b'{"a": 1, "at": 6}')), ("at",), EQUAL),
        (outputs(VALUE), outputs(Produce("t", b'{"a": 1}')), ("at",), EQUAL),
        (outputs(VALUE), outputs(Produce("u", VALUE.value)), ("at",), DIFFERENT),
        (outputs(Produce("t", b"[1]")), outputs(Produce("t", b"[ 1]")), (), DIFFERENT),
        (outputs(Produce("t", b'{"a": 1}')), outputs(Produce("t", b'{"a": true}')), (), DIFFERENT),
        (outputs(Produce("t", b'{"a": [0]}')), outputs(Produce("t", b'{"a": [false]}')), (), DIFFERENT),
        (outputs(Produce("t", b'{"a": 1}')), outputs(Produce("t", b'{"a": 1.0}')), (), DIFFERENT),
        (outputs(Produce("t", b'{"a": NaN}')), outputs(Produce("t", b'{"a":NaN}')), (), EQUAL),
        (
            outputs(Produce("t", b'{"a": {"b": 1, "c": 2}}')),
            outputs(Produce("t", b'{"a": {"c": 2, "b": 1}}')),
            (),
            EQUAL,
        ),
        (outputs(Produce("t", DEEP % b"1")), outputs(Produce("t", DEEP % b" 1")), (), DIFFERENT),
        (outputs(Produce("t", "x")), outputs(Produce("t", b"x")), (), EQUAL),
        (outputs(Produce("t", b"\xff")), outputs(Produce("t", b"\xfe")), (), DIFFERENT),
        (outputs(Produce("t", b"\xff")), outputs(Produce("t", b"\xff")), (), EQUAL),
        (outputs(Produce("t", None)), outputs(Produce("t", b"")), (), DIFFERENT),
        (outputs(Produce("t", b"x", "k")), outputs(Produce("t", b"x", "l")), (), DIFFERENT),
        (
            outputs(Produce("t", b"x", headers=[("a", b"1")])),
            outputs(Produce("t", b"x", headers=[("a", None)])),
            (),
            DIFFERENT,
        ),
        (ValueError("1"), ValueError("2"), (), EQUAL),
        (ValueError("1"), KeyError("1"), (), DIFFERENT),
        (ValueError("1"), Fatal("1"), (), DIFFERENT),
        (ValueError("1"), outputs(), (), FAILED_LIVE_ONLY),
        (outputs(), ValueError("1"), (), FAILED_CANDIDATE_ONLY),
        (Skip("a"), Skip("b"), (), EQUAL),
        (Skip("a"), outputs(), (), DIFFERENT),
        (Skip("a"), ValueError("b"), (), FAILED_CANDIDATE_ONLY),
    ],
)
def test_verdicts(one: Made, other: Made, ignored: tuple[str, ...], expected: str) -> None:
    assert verdict(one, other, *ignored) == expected


def test_texts_of_both_sides() -> None:
    failed = answer_of(ValueError("no id"), None)
    assert (error_text(failed), result_text(failed)) == ("Exhausted: ValueError: no id", None)
    done = answer_of(outputs(Produce("t", b"v")), None)
    assert error_text(done) is None
    assert result_text(done) == '{"outputs":[{"headers":[],"key":null,"topic":"t","value":"v"}]}'
    assert len(sample_text(answer_of(outputs(Produce("t", b"v" * 999)), None))) == SAMPLE_TEXT_MAX
    assert sample_text(None) == "no record"


def test_error_texts_may_stay_out() -> None:
    failed = answer_of(ValueError("secret"), None, error_text=False)
    assert "secret" not in dumped(failed)
    assert error_text(failed) == "Exhausted: ValueError"
    assert "secret" not in dumped(answer_of(Skip("secret"), None, error_text=False))


def test_stored_answers_are_judged() -> None:
    report = TaskReport()
    done = answer_of(outputs(VALUE), None)
    later = dumped(answer_of(outputs(Produce("t", b'{"a": 1, "at": 6}')), None))
    place = ("topic", 1, 7, 5, b"k")
    assert judged(place, dumped(done), dumped(done), Ignored(), report) == []
    assert judged(place, dumped(done), later, Ignored.from_paths(["at"]), report) == []
    assert judged(place, dumped(done), None, Ignored(), report) == [(*place, result_text(done), None, None, None)]
    assert report.compared == {"equal": 2, "different": 1}
    assert report.samples[0].candidate == "no record"


@pytest.mark.parametrize(
    ("path", "one", "other", "same"),
    [
        ("meta.at", '{"meta": {"at": 1, "by": 2}}', '{"meta": {"at": 9, "by": 2}}', True),
        ("meta.at", '{"meta": {"at": 1, "by": 2}}', '{"meta": {"at": 1, "by": 3}}', False),
        ("meta.at", '{"at": 1}', '{"at": 2}', False),
        ("items[].at", '{"items": [{"at": 1}, {"at": 2}]}', '{"items": [{"at": 3}, {}]}', True),
        ("items[].at", '{"items": [{"at": 1}]}', '{"items": [{"at": 1}, {"at": 2}]}', False),
        ("**.at", '{"a": [{"b": {"at": 1}}], "at": 2}', '{"a": [{"b": {}}]}', True),
        ("**.b.at", '{"a": {"b": {"at": 1}}}', '{"a": {"b": {"at": 2}}}', True),
        ("**.b.at", '{"a": {"at": 1}}', '{"a": {"at": 2}}', False),
        ("meta", '{"meta": [1]}', "{}", True),
    ],
)
def test_fields_are_ignored_by_their_paths(path: str, one: str, other: str, same: bool) -> None:
    assert verdict(outputs(Produce("t", one)), outputs(Produce("t", other)), path) == (EQUAL if same else DIFFERENT)


def test_headers_are_ignored_by_their_names() -> None:
    live, candidate = (
        answer_of(outputs(Produce("t", "x", headers=[("trace", trace), ("kind", b"a")])), None)
        for trace in (b"1", b"2")
    )
    assert compare(live, candidate, Ignored()) == DIFFERENT
    assert compare(live, candidate, Ignored.from_paths((), ["trace"])) == EQUAL
    other = answer_of(outputs(Produce("t", "x", headers=[("trace", b"1"), ("kind", b"b")])), None)
    assert compare(live, other, Ignored.from_paths((), ["trace"])) == DIFFERENT
