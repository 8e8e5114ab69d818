"""Topics that match a group's pattern."""

from collections.abc import Iterable, Mapping

from fleet_consumer.contract.naming import pattern_matches
from fleet_consumer.contract.patterns import Pattern, PatternRefused, compile_pattern
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup


def group_pattern(group: ConsumerGroup) -> Pattern | None:
    """The pattern of a group; None without one. Raises PatternRefused."""
    text = group.spec.topic_pattern
    return None if text is None else compile_pattern(text)


def usable_pattern(group: ConsumerGroup) -> Pattern | None:
    """A group's usable pattern, or None. A refused pattern matches no topic, and a condition reports it."""
    try:
        return group_pattern(group)
    except PatternRefused:
        return None


class TopicMatches:
    """Cache of the topics of one cluster that match patterns. Used by one thread. Tenants choose patterns and topic
    names, so matching may be slow: an observation matches only the names that are new to a pattern."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._matching: dict[Pattern, frozenset[str]] = {}

    def update(self, patterns: Iterable[Pattern], topics: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """The matching names of `topics` for each pattern, sorted."""
        names = frozenset(topics)
        added = names - self._names
        matching: dict[Pattern, frozenset[str]] = {}
        for pattern in patterns:
            known = self._matching.get(pattern)
            fresh = frozenset(name for name in (names if known is None else added) if pattern_matches(pattern, name))
            matching[pattern] = fresh if known is None else (known & names) | fresh
        self._names, self._matching = names, matching
        return {pattern.text: tuple(sorted(each)) for pattern, each in matching.items()}
