"""Merging conditions: transition times move only when a status flips."""

from __future__ import annotations

import re
from typing import Any

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.conditions import Condition, find_condition, with_conditions

EARLIER, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def merged(before: list[dict[str, Any]], new: list[Condition], now: str, generation: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = with_conditions({"conditions": before}, new, now, generation)["conditions"]
    return found


def test_transition_time_moves_only_when_the_status_flips() -> None:
    """A new reason or message alone is no transition."""
    first = merged([], [Condition("Ready", "False", "A", "a")], EARLIER, 1)
    same = merged(first, [Condition("Ready", "False", "B", "b")], NOW, 2)
    flipped = merged(same, [Condition("Ready", "True", "C", "c")], NOW, 2)
    assert [c["lastTransitionTime"] for c in (*first, *same, *flipped)] == [EARLIER, EARLIER, NOW]
    assert (same[0]["reason"], same[0]["message"], same[0]["observedGeneration"]) == ("B", "b", 2)


def test_merging_the_same_again_changes_nothing() -> None:
    found = [Condition(kind, "Unknown", "NotYetObserved", "") for kind in conditions.CONSUMER_GROUP_CONDITIONS]
    once = merged([], found, EARLIER, 1)
    assert merged(once, found, NOW, 1) == once


def test_conditions_of_others_are_dropped() -> None:
    """The list has one owner, so a type that left the vocabulary does not stay indefinitely."""
    unknown = {"type": "Old", "status": "True", "reason": "R", "message": "", "lastTransitionTime": EARLIER}
    found = merged([unknown], [Condition("Ready", "True", "R", "")], NOW, 1)
    assert [condition["type"] for condition in found] == ["Ready"]
    assert find_condition(found, "Old") is None


def test_long_foreign_text_is_cut() -> None:
    (found,) = merged([], [Condition("Ready", "False", "R", "x" * 5000)], NOW, 1)
    assert len(found["message"]) == conditions.MESSAGE_CHARACTERS_MAX
    assert found["message"].endswith("…")


def test_vocabulary_is_camel_case_and_unique() -> None:
    """Types and reasons are words for programs (API conventions)."""
    words = {name: value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)}
    assert words
    assert [word for word in words.values() if not re.fullmatch(r"[A-Z][A-Za-z]+", word)] == []
    assert len(set(words.values())) == len(words)
