"""Topics that match a group's pattern."""

from collections.abc import Iterable, Mapping

from fleet_consumer.contract.naming import pattern_matches
from fleet_consumer.contract.patterns import Pattern, PatternRefused, compile_pattern
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup


def group_pattern(group: ConsumerGroup) -> Pattern | None:
    """The topic pattern of a group; None if the spec has none. Raises PatternRefused if the pattern is refused."""
    text = group.spec.topic_pattern
    return None if text is None else compile_pattern(text)


def usable_pattern(group: ConsumerGroup) -> Pattern | None:
    """A group's topic pattern; None if the group has none or the pattern is refused. A condition reports the
    refusal."""
    try:
        return group_pattern(group)
    except PatternRefused:
        return None


class TopicMatches:
    """Cache of the topics of one cluster that match patterns. Only one thread uses it.

    Tenants choose patterns and topic names, so matching may be slow. So each pair of a pattern and a topic name is
    tested only once."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._matching: dict[Pattern, frozenset[str]] = {}

    def update(self, patterns: Iterable[Pattern], topics: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the sorted names of `topics` that match each pattern, keyed by the pattern's text."""
        names = frozenset(topics)
        added = names - self._names
        matching: dict[Pattern, frozenset[str]] = {}
        for pattern in patterns:
            known = self._matching.get(pattern)
            fresh = frozenset(name for name in (names if known is None else added) if pattern_matches(pattern, name))
            matching[pattern] = fresh if known is None else (known & names) | fresh
        self._names, self._matching = names, matching
        return {pattern.text: tuple(sorted(each)) for pattern, each in matching.items()}
