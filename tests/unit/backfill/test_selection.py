"""The filter: keys, headers and times."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_consumer.backfill.work import Selection
from fleet_consumer.contract.backfill_config import BackfillFilter
from fleet_consumer.contract.patterns import compile_pattern


def selection(key: str | None = None, **changes: Any) -> Selection:
    return Selection(BackfillFilter(**{"key": compile_pattern(key) if key else None, "headers": {}, **changes}))


def test_no_filter_takes_all() -> None:
    assert selection().takes_all
    assert selection().takes(-1, None, ())
    assert not selection(from_ms=0).takes_all


@pytest.mark.parametrize(
    ("key", "taken"),
    [(b"order-17", True), (b"x order-17", True), (b"order-", False), (None, False), (b"\xff order-1", True)],
)
def test_key_is_searched(key: bytes | None, taken: bool) -> None:
    assert selection("order-[0-9]").takes(0, key, ()) is taken


def test_all_headers_are_needed_with_their_values() -> None:
    chosen = selection(headers={"a": "1", "b": "é"})
    assert chosen.takes(0, None, (("b", "é".encode()), ("a", b"2"), ("a", b"1")))
    assert not chosen.takes(0, None, (("a", b"1"), ("b", None)))
    assert not chosen.takes(0, None, ())


def test_times_begin_with_the_first_and_end_before_the_second() -> None:
    chosen = selection(from_ms=10, to_ms=20)
    assert [time for time in (9, 10, 19, 20) if chosen.takes(time, None, ())] == [10, 19]
