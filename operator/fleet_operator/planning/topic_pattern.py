"""The topics that a group's pattern takes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet_consumer.contract.naming import pattern_matches
from fleet_consumer.contract.patterns import Pattern, PatternRefused, compile_pattern
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup

__all__ = ["PatternRefused", "TopicMatches", "compile_pattern", "group_pattern"]


def group_pattern(group: ConsumerGroup) -> Pattern | None:
    """The pattern of a group that has one. Raises PatternRefused."""
    text = group.spec.topic_pattern
    return None if text is None else compile_pattern(text)


class TopicMatches:
    """The topics of one cluster that patterns match, remembered from look to look.

    A tenant chooses the pattern and another the names, so what matching costs must not come back with every look: only
    names that are new to a pattern are matched. One thread uses it.
    """

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._matching: dict[Pattern, frozenset[str]] = {}

    def update(self, patterns: Iterable[Pattern], topics: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """For each pattern, by its text, the names among `topics` that a subscription by it takes in, sorted."""
        names = frozenset(topics)
        added = names - self._names
        matching: dict[Pattern, frozenset[str]] = {}
        for pattern in patterns:
            known = self._matching.get(pattern)
            fresh = frozenset(name for name in (names if known is None else added) if pattern_matches(pattern, name))
            matching[pattern] = fresh if known is None else (known & names) | fresh
        self._names, self._matching = names, matching
        return {pattern.text: tuple(sorted(each)) for pattern, each in matching.items()}
