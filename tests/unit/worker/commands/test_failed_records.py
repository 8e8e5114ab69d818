"""Failed records for people and programs, whatever their headers hold."""

from __future__ import annotations

import json

from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.headers import read
from fleet_consumer.worker.commands.failed_records import (
    NAMES_MAX,
    OTHERS,
    Counts,
    FailedRecord,
    escaped,
    instant,
)

NOW_MS = 1_800_000_000_000
AT_MS = 1_700_000_000_000
WHOLE: dict[str, str] = {
    "kr-attempt": "6",
    "kr-origin-topic": "orders",
    "kr-origin-partition": "2",
    "kr-origin-offset": "17",
    "kr-origin-timestamp": str(AT_MS - 5),
    "kr-first-failed-at": str(AT_MS - 4),
    "kr-error-class": "shop.errors.Throttled",
    "kr-error-message": "too many",
    "kr-reason": "exhausted",
}


def failed(
    changes: dict[str, str | bytes | None] | None = None,
    *,
    offset: int = 5,
    at_ms: int = AT_MS,
    more: Headers = (),
    key: bytes | None = b"k",
    value: bytes | None = b"v",
) -> FailedRecord:
    told: dict[str, str | bytes | None] = {**WHOLE, **(changes or {})}
    headers = [
        (name, text.encode() if isinstance(text, str) else text) for name, text in told.items() if text is not None
    ]
    record = Record("_fleet.orders.failed", 3, offset, at_ms, key, value, (*more, *headers))
    return FailedRecord(record, read(record, now_ms=NOW_MS))


def test_line_has_place_time_origin_reason_class_and_message() -> None:
    assert failed().line() == ("3:5  2023-11-14T22:13:20Z  orders:2:17  exhausted  shop.errors.Throttled  too many")


def test_damaged_headers_are_reported_and_hide_nothing_else() -> None:
    damaged = failed({"kr-origin-offset": "seventeen", "kr-error-class": b"\xff\xfe"})
    assert damaged.line().endswith("-  exhausted  \ufffd\ufffd  too many  (damaged headers)")
    assert damaged.summary()["origin"] is None
    record = Record("f", 0, 1, -1, None, None, ())
    bare = FailedRecord(record, read(record, now_ms=NOW_MS))
    assert bare.line() == "0:1  -  -  -  -  -  (damaged headers)"
    assert json.loads(json.dumps(bare.summary()))["damagedHeaders"] is True


def test_shown_text_cannot_control_a_terminal() -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e\r\n"
    hostile = failed(
        {"kr-error-message": evil, "kr-error-class": evil}, key=evil.encode(), more=[(evil, evil.encode())]
    )
    for line in (hostile.line(), *hostile.page()):
        assert line.isprintable(), repr(line)
    assert json.dumps(hostile.whole()).isprintable()
    assert escaped("plain ü €") == "plain ü €"


def test_page_shows_every_header_in_words_and_a_traceback_line_by_line() -> None:
    traceback = "Traceback (most recent call last):\n  File \"handler.py\", line 3, in handle\nKeyError: 'x'"
    page = list(failed({"kr-error-traceback": traceback}, more=[("traceparent", b"00-1"), ("flag", None)]).page())
    assert page[0] == "record    _fleet.orders.failed 3:5"
    assert "  kr-first-failed-at: 1699999999996  (2023-11-14T22:13:19Z)" in page
    at = page.index("  kr-error-traceback:")
    assert page[at + 1 : at + 4] == [
        "    Traceback (most recent call last):",
        '      File "handler.py", line 3, in handle',
        "    KeyError: 'x'",
    ]
    assert page[page.index("headers") :] == [
        "headers",
        "  traceparent: 00-1",
        "  flag",
        "key       1 bytes",
        "  k",
        "value     1 bytes",
        "  v",
    ]


def test_shown_record_keeps_bytes_that_are_not_text() -> None:
    whole = failed(key=None, value=b"\xff\x00", more=[("flag", None)]).whole()
    assert (whole["key"], whole["value"]) == (None, {"base64": "/wA="})
    assert whole["headers"][0] == {"name": "flag", "text": None}
    assert whole["headers"][1] == {"name": "kr-attempt", "text": "6"}


def test_counts_put_the_largest_first_and_hours_in_order() -> None:
    counts = Counts(("reason", "class"))
    for changes in ({}, {"kr-reason": "fatal"}, {"kr-reason": "fatal"}):
        counts.add(failed({**changes}))
    assert [counts.line(*row) for row in counts.rows()] == [
        "        2  fatal  shop.errors.Throttled",
        "        1  exhausted  shop.errors.Throttled",
    ]
    assert next(counts.row(*row) for row in counts.rows()) == {
        "reason": "fatal",
        "class": "shop.errors.Throttled",
        "count": 2,
    }
    hours = Counts(("hour",))
    for hour in (3, 1, 3, 2, 3):
        hours.add(failed(at_ms=hour * 3_600_000 + 5))
    assert list(hours.rows()) == [
        (("1970-01-01T01:00:00Z",), 1),
        (("1970-01-01T02:00:00Z",), 1),
        (("1970-01-01T03:00:00Z",), 3),
    ]


def test_counts_keep_a_bounded_number_of_names() -> None:
    counts = Counts(("class",))
    for number in range(NAMES_MAX + 50):
        counts.add(failed({"kr-error-class": f"Error{number}"}))
    rows = dict(counts.rows())
    assert len(rows) == NAMES_MAX + 1
    assert rows[(OTHERS,)] == 50
    assert counts.total == NAMES_MAX + 50


def test_time_that_no_calendar_has_is_shown_as_its_number() -> None:
    assert instant(2**62) == str(2**62)
