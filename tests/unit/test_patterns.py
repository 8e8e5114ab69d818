"""A user's expression is searched in a bounded part of a text, and refused when even that may take for ever."""

from __future__ import annotations

import pytest

from fleet_consumer.patterns import SEARCHED_CHARACTERS_MAX, PatternRefused, compile_pattern, found


def test_match_is_found_anywhere_in_the_searched_part_and_not_behind_it() -> None:
    pattern = compile_pattern("needle")
    assert found(pattern, "x" * (SEARCHED_CHARACTERS_MAX - 6) + "needle")
    assert not found(pattern, "x" * (SEARCHED_CHARACTERS_MAX - 5) + "needle")


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "(a+)+",
        "a*b*c*d*",
        r"(a)\1",
        "(?:ab|cd)*",
        "(?:a|aa)" * 20 + "b",
        "(?i:ab|AB)" * 20,
        "a?" * 9 + "b",
        "a?a?a?a*a*a*b",
    ],
)
def test_expression_that_is_none_or_has_no_bound_is_refused_by_name(text: str) -> None:
    with pytest.raises(PatternRefused) as refused:
        compile_pattern(text)
    assert "patterns" in str(refused.value) or repr(text) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "^(?:Connection|Read) (?:timed out|refused|reset by peer)",
        ".*(?:duplicate|unique) key.*",
        r"(?:orders|payments|billing|users|carts|audit)\..*\..*\..*",
        r"^(?:EU|US|CA|MX)-[0-9]+-[a-z]+$",
        "|".join(f"E[0-9]{n}" for n in range(100)),
        "colou?r [a-z]* [0-9]* [a-z]*",
    ],
)
def test_what_people_write_is_taken(text: str) -> None:
    compile_pattern(text)
