"""Patterns of topic names: which ones the operator is willing to match, and what they match.

The workers match their pattern themselves; the operator does it once more for status and lag, on a thread that serves
everybody's groups. Python's matcher can be sent into work without end by a short pattern ("(a+)+"), so only patterns
whose work is bounded by the length of a topic's name are taken: few repetitions, and none inside another.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from functools import lru_cache
from re import _constants as opcode  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

from fleet_consumer.naming import pattern_matches
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup

REPETITIONS_MAX: Final = 3
"""Repetitions in one pattern: the work grows with the name's length to this power, and names have 249 characters."""
OPTIONS_MAX: Final = 8
"""Optional parts in one pattern: each doubles the work at most."""

REPEATS: Final = frozenset({opcode.MAX_REPEAT, opcode.MIN_REPEAT, opcode.POSSESSIVE_REPEAT})


class PatternRefused(ValueError):
    """The text is no pattern that can be used; the message is for its author."""


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern, if it is one and its work is bounded. Raises PatternRefused."""
    try:
        with warnings.catch_warnings():
            # "[[" and its like may mean something else in a later Python; today's meaning is what both sides match by.
            warnings.simplefilter("ignore", FutureWarning)
            pattern, parsed = re.compile(text), parser.parse(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternRefused(f"{text!r} is no regular expression: {error}") from error
    count = _Count()
    count.walk(parsed, repeated=False)
    if count.repetitions > REPETITIONS_MAX or count.options > OPTIONS_MAX:
        raise PatternRefused(
            f"{text!r} has {count.repetitions} repetitions and {count.options} optional parts; "
            f"at most {REPETITIONS_MAX} and {OPTIONS_MAX} are taken: say it with fewer, or list spec.topics"
        )
    return pattern


def group_pattern(group: ConsumerGroup) -> re.Pattern[str] | None:
    """The pattern of a group that has one. Raises PatternRefused."""
    text = group.spec.topic_pattern
    return None if text is None else compile_pattern(text)


def matched(pattern: re.Pattern[str], topics: Iterable[str]) -> tuple[str, ...]:
    """The topics that a subscription by this pattern takes in, sorted."""
    return tuple(sorted(topic for topic in topics if pattern_matches(pattern, topic)))


class _Count:
    """Counts what makes matching expensive, in the parser's tree: pairs of an operation and its argument."""

    def __init__(self) -> None:
        self.repetitions = 0
        self.options = 0

    def walk(self, parsed: Any, *, repeated: bool) -> None:
        for operation, argument in parsed:
            if operation is opcode.GROUPREF or operation is opcode.GROUPREF_EXISTS:
                raise PatternRefused("references to groups are not taken in topic patterns")
            if repeated and operation is opcode.BRANCH:
                raise PatternRefused("alternatives inside a repetition are not taken: repeat each, or list spec.topics")
            if operation in REPEATS:
                self._repeat(argument, repeated=repeated)
            else:
                for part in _parts(argument):
                    self.walk(part, repeated=repeated)

    def _repeat(self, argument: Any, *, repeated: bool) -> None:
        least, most, body = argument
        if repeated:
            raise PatternRefused("a repetition inside another is not taken in topic patterns: it may never end")
        if most == 1:
            self.options += 1
            self.walk(body, repeated=False)
            return
        # A fixed number of repetitions of plain characters is no choice for the matcher.
        self.repetitions += least != most
        self.walk(body, repeated=True)


def _parts(argument: Any) -> list[Any]:
    """The patterns inside an operation's argument, whatever its shape."""
    if isinstance(argument, parser.SubPattern):
        return [argument]
    if isinstance(argument, list | tuple):
        return [part for item in argument for part in _parts(item)]
    return []
