"""Users' expressions: RE2's syntax, linear time, and a bounded part of the text."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.contract.patterns import SEARCHED_CHARACTERS_MAX, Pattern, PatternRefused, compile_pattern

NAME_CHARACTERS = 249
WORST_TEXTS = ["a" * NAME_CHARACTERS, "a" * (NAME_CHARACTERS - 1) + "!", "ab" * 124, "." * NAME_CHARACTERS]


def seconds_over_worst_texts(text: str) -> float:
    """Processor time that matching all of them takes; none for an expression that is refused."""
    try:
        pattern = compile_pattern(text)
    except PatternRefused:
        return 0.0
    before = time.process_time()
    for name in WORST_TEXTS:
        pattern.fullmatch(name)
    return time.process_time() - before


def test_match_is_found_anywhere_in_the_searched_part_and_not_behind_it() -> None:
    pattern = compile_pattern("needle")
    assert pattern.found_in("x" * (SEARCHED_CHARACTERS_MAX - 6) + "needle")
    assert not pattern.found_in("x" * (SEARCHED_CHARACTERS_MAX - 5) + "needle")


@pytest.mark.parametrize(
    "text",
    ["(", r"(a)\1", "(?=a)a", "(?<!a)b", "a++", r"a\Z", "(a{99}){99}", r"[\p{L}]{1,100}", "x\ud800"],
)
def test_expression_that_re2_does_not_take_is_refused_by_name(text: str) -> None:
    with pytest.raises(PatternRefused) as refused:
        compile_pattern(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "^(?:Connection|Read) (?:timed out|refused|reset by peer)",
        ".*(?:duplicate|unique) key.*",
        r"(?:orders|payments|billing|users|carts|audit)\..*\..*\..*",
        r"^(?:EU|US|CA|MX)-[0-9]+-[a-z]+$",
        "|".join(f"E[0-9]{n}" for n in range(100)),
        "colou?r [a-z]* [0-9]* [a-z]*",
        "(a+)+",
        r"[\p{L}\p{N}._-]+",
        "[a-z0-9._-]{3,249}",
    ],
)
def test_expressions_that_people_write_are_taken(text: str) -> None:
    compile_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        "a?a?[a-z0-9]*[a-z0-9]*[a-z0-9]*!",
        "(a+)+!",
        "((a|aa)*.?){244}!",
        "([a-z]?){492}[0-9]!",
        ".*.*.*.*.*.*.*.*!",
    ],
)
def test_hostile_expression_over_a_hostile_name_takes_milliseconds(text: str) -> None:
    # Each took 180 ms and more under a backtracking matcher, the second one indefinitely.
    assert seconds_over_worst_texts(text) < 0.5


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab.*+?|(){}[]^$\\-,123!", max_size=24))
def test_every_accepted_expression_is_matched_quickly(text: str) -> None:
    assert seconds_over_worst_texts(text) < 0.5


@settings(deadline=None)
@given(st.text(alphabet="ab.*+?|()", max_size=12), st.text(alphabet="ab.", max_size=8))
def test_plain_expressions_mean_what_they_mean_to_python(text: str, name: str) -> None:
    """A library user's `re.compile` and a group's `topicPattern` take in the same topics."""
    try:
        ours, python = compile_pattern(text), re.compile(text)
    except (PatternRefused, re.error):
        return
    assert (ours.fullmatch(name) is not None) == (python.fullmatch(name) is not None)


def test_half_a_surrogate_pair_in_a_text_is_searched_like_any_other() -> None:
    assert compile_pattern("timed out").found_in("peer \udcff timed out")


def test_patterns_of_the_same_text_are_equal() -> None:
    compile_pattern.cache_clear()
    first = compile_pattern("a.*")
    compile_pattern.cache_clear()
    assert (first, hash(first)) == (compile_pattern("a.*"), hash(compile_pattern("a.*")))
    assert first != compile_pattern("b.*")
    assert isinstance(first, Pattern)


def test_both_kinds_of_patterns_serve_a_subscription() -> None:
    assert isinstance(compile_pattern("a"), TopicPattern)
    assert isinstance(re.compile("a"), TopicPattern)
    assert not isinstance("a", TopicPattern)
