"""The topics that patterns take in, and what a poll costs that finds nothing new."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fleet_consumer.contract.patterns import Pattern, compile_pattern
from fleet_operator.planning.topic_pattern import TopicMatches

TOPICS = ("orders", "orders.eu", "orders.us", "payments", "__consumer_offsets", "_fleet.orders.failed")


class CountingExpression:
    """Counts the names that it is asked to match; matches those that begin with o."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fullmatch(self, text: bytes) -> object | None:
        self.asked.append(text.decode())
        return True if text.startswith(b"o") else None


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
def test_pattern_matches_whole_names_but_no_internal_or_managed_topics(pattern: str, topics: tuple[str, ...]) -> None:
    assert TopicMatches().update([compile_pattern(pattern)], TOPICS) == {pattern: topics}


def test_only_new_names_are_matched_again() -> None:
    expression = CountingExpression()
    pattern = Pattern("o.*", cast(Any, expression))
    matches = TopicMatches()
    assert matches.update([pattern], ["orders", "payments"]) == {"o.*": ("orders",)}
    assert matches.update([pattern], ["orders", "payments", "offers"]) == {"o.*": ("offers", "orders")}
    assert matches.update([pattern], ["payments", "offers"]) == {"o.*": ("offers",)}
    assert sorted(expression.asked) == ["offers", "orders", "payments"]


def test_topic_name_that_reappears_is_matched_again() -> None:
    matches = TopicMatches()
    pattern = compile_pattern("o.*")
    matches.update([pattern], ["orders"])
    assert matches.update([pattern], []) == {"o.*": ()}
    assert matches.update([pattern], ["orders"]) == {"o.*": ("orders",)}


def test_pattern_that_comes_later_is_matched_against_all_names() -> None:
    matches = TopicMatches()
    first, second = compile_pattern("o.*"), compile_pattern("p.*")
    matches.update([first], ["orders", "payments"])
    assert matches.update([first, second], ["orders", "payments"]) == {"o.*": ("orders",), "p.*": ("payments",)}
    assert matches.update([second], ["orders", "payments"]) == {"p.*": ("payments",)}
