"""Which patterns the operator matches, and that no pattern it takes can keep it busy."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_operator.planning.topic_pattern import PatternRefused, compile_pattern, matched

TOPICS = ("orders", "orders.eu", "orders.us", "payments", "__consumer_offsets", "_fleet.orders.failed")


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", ("orders",)),
        (r"^orders\..*", ("orders.eu", "orders.us")),
        (".*", ("orders", "orders.eu", "orders.us", "payments")),
        (r"(orders|payments)(\.eu)?", ("orders", "orders.eu", "payments")),
        ("[a-z]{6}", ("orders",)),
        ("(?i)ORDERS", ("orders",)),
    ],
)
def test_whole_names_match_and_neither_internal_nor_managed_topics(pattern: str, topics: tuple[str, ...]) -> None:
    assert matched(compile_pattern(pattern), TOPICS) == topics


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|a)*",
        "(a?a?)+",
        "((ab)*)*",
        ".*.*.*.*",
        "a{1,9}b{1,9}c{1,9}d{1,9}",
        "(?:a*)*",
        "(?=(a+)+)a",
        "a?" * 30 + "a" * 30,
        r"(.)\1",
        "(",
        "a" * 10 + "{1,99999999999}",
    ],
)
def test_pattern_whose_work_is_not_bounded_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        compile_pattern(pattern)


WORST = ["a" * 249, "a" * 248 + "!", "ab" * 124, "." * 249]


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab.*+?|(){}[]^$\\-,123!", max_size=24))
def test_whatever_is_taken_is_matched_quickly(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternRefused:
        return
    assert isinstance(compiled, re.Pattern)
    before = time.process_time()
    matched(compiled, WORST)
    assert time.process_time() - before < 5
