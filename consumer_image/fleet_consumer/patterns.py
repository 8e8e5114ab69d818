"""Regular expressions from users, matched against text from anybody: only those whose work is bounded are taken.

Python's matcher can be sent into work without end by a short pattern ("(a+)+"), in a worker's loop as well as on the
operator's threads. So few repetitions are taken, none inside another, and few choices beside them; whoever matches
bounds the text's length.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from re import _constants as opcode  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

REPETITIONS_MAX: Final = 3
"""Repetitions in one pattern: the work grows with the text's length to this power; to one more when it is searched."""
WAYS_MAX: Final = (256, 256, 64, 4)
"""Ways through one pattern, by how many repetitions it has: an optional part doubles them, and so the work at most,
n alternatives of which each may match multiply them by n."""

SEARCHED_CHARACTERS_MAX: Final = 256
"""How much of a text is searched: about a second for the worst pattern that is taken, measured; usually
microseconds. Names of topics are shorter than that by themselves."""

REPEATS: Final = frozenset({opcode.MAX_REPEAT, opcode.MIN_REPEAT, opcode.POSSESSIVE_REPEAT})


class PatternRefused(ValueError):
    """The text is no pattern that can be used; the message is for its author."""


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern, if it is one and its work is bounded. Raises PatternRefused."""
    try:
        with warnings.catch_warnings():
            # "[[" and its like may mean something else in a later Python; today's meaning is what all sides match by.
            warnings.simplefilter("ignore", FutureWarning)
            pattern, parsed = re.compile(text), parser.parse(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternRefused(f"{text!r} is no regular expression: {error}") from error
    count = _Count()
    count.walk(parsed, repeated=False)
    if count.repetitions > REPETITIONS_MAX:
        raise PatternRefused(
            f"{text!r} has {count.repetitions} repetitions; at most {REPETITIONS_MAX} are taken: say it with fewer"
        )
    most = WAYS_MAX[count.repetitions]
    if count.ways > most:
        raise PatternRefused(
            f"{text!r} has {count.ways} ways through its alternatives and optional parts; at most {most} are taken "
            f"beside {count.repetitions} repetitions: say it with fewer"
        )
    return pattern


def found(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the pattern is found anywhere in the first SEARCHED_CHARACTERS_MAX characters of a text."""
    return pattern.search(text[:SEARCHED_CHARACTERS_MAX]) is not None


class _Count:
    """Counts what makes matching expensive, in the parser's tree: pairs of an operation and its argument."""

    def __init__(self) -> None:
        self.repetitions = 0
        self.ways = 1

    def walk(self, parsed: Any, *, repeated: bool) -> None:
        for operation, argument in parsed:
            if operation is opcode.GROUPREF or operation is opcode.GROUPREF_EXISTS:
                raise PatternRefused("references to groups are not taken in patterns")
            if operation is opcode.BRANCH:
                if repeated:
                    raise PatternRefused("alternatives inside a repetition are not taken in patterns: repeat each")
                self.ways *= _at_once(argument[1])
            if operation in REPEATS:
                self._repeat(argument, repeated=repeated)
            else:
                for part in _parts(argument):
                    self.walk(part, repeated=repeated)

    def _repeat(self, argument: Any, *, repeated: bool) -> None:
        least, most, body = argument
        if repeated:
            raise PatternRefused("a repetition inside another is not taken in patterns: it may never end")
        if most == 1:
            self.ways *= 2
            self.walk(body, repeated=False)
            return
        # A fixed number of repetitions of plain characters is no choice for the matcher.
        self.repetitions += least != most
        self.walk(body, repeated=True)


def _at_once(alternatives: Any) -> int:
    """How many of these can match at one place, at most: those that begin with different words exclude each other."""
    heads = [_head(each) for each in alternatives]
    return max(sum(one.startswith(other) or other.startswith(one) for other in heads) for one in heads)


def _head(parsed: Any) -> str:
    """The plain characters that a pattern begins with, in lower case, for case may not count. Only ASCII has one lower
    case for all who ask."""
    head = ""
    for operation, argument in parsed:
        if operation is not opcode.LITERAL or argument > 127:
            break
        head += chr(argument).lower()
    return head


def _parts(argument: Any) -> list[Any]:
    """The patterns inside an operation's argument, whatever its shape."""
    if isinstance(argument, parser.SubPattern):
        return [argument]
    if isinstance(argument, list | tuple):
        return [part for item in argument for part in _parts(item)]
    return []
