"""Patterns of topic names: which ones the operator is willing to match, and what they match.

The workers match their pattern themselves; the operator does it once more for status and lag, on a thread that serves
everybody's groups. So only patterns whose work is bounded by the length of a topic's name are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleet_consumer.naming import pattern_matches
from fleet_consumer.patterns import PatternRefused, compile_pattern
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup

__all__ = ["PatternRefused", "compile_pattern", "group_pattern", "matched"]


def group_pattern(group: ConsumerGroup) -> re.Pattern[str] | None:
    """The pattern of a group that has one. Raises PatternRefused."""
    text = group.spec.topic_pattern
    return None if text is None else compile_pattern(text)


def matched(pattern: re.Pattern[str], topics: Iterable[str]) -> tuple[str, ...]:
    """The topics that a subscription by this pattern takes in, sorted."""
    return tuple(sorted(topic for topic in topics if pattern_matches(pattern, topic)))
