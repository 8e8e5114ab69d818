"""Users' regular expressions, matched in linear time by RE2.

A short expression and a short text can block Python's own matcher for ever. Expressions come from every tenant and
texts (topic names, error messages, keys) from anybody; both are matched in workers' loops and in the operator, which
serves all tenants. RE2 needs time proportional to the text's length and the program's size, which is bounded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

PROGRAM_BYTES_MAX: Final = 64 * 1024
"""Memory of one compiled expression, which bounds the work: 9 ms for the worst expression found and a name of 249
characters, on a machine that takes 1.2 s for 20 million additions in a Python function; usually microseconds."""

SEARCHED_CHARACTERS_MAX: Final = 256
"""Characters of a text that are searched; topic names are always shorter."""


class PatternRefused(ValueError):
    """The expression cannot be used; the message is for its author."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled expression; equal to any other of the same text."""

    text: str
    compiled: Any = field(compare=False, repr=False)

    def fullmatch(self, text: str) -> object | None:
        """A true value if the whole text matches, else None."""
        found: object | None = self.compiled.fullmatch(_encoded(text))
        return found

    def found_in(self, text: str) -> bool:
        """True if the expression matches anywhere in the first SEARCHED_CHARACTERS_MAX characters of a text."""
        return self.compiled.search(_encoded(text[:SEARCHED_CHARACTERS_MAX])) is not None


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Pattern:
    """Compile an expression in RE2's syntax. Raises PatternRefused if it is invalid or too large."""
    # Not at the top: the library alone imports this module and is installed without RE2.
    import re2

    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    # RE2 would also write refused expressions to standard error.
    options.log_errors = False
    try:
        return Pattern(text, re2.compile(text, options))
    except UnicodeEncodeError as error:
        raise PatternRefused(f"{text!r} is no regular expression: {error}") from error
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise PatternRefused(
            f"{text!r} is no regular expression that can be used: {reason}; the syntax is RE2's, without look-around "
            "and references to groups, and a large bounded repetition may be too large"
        ) from error


def _encoded(text: str) -> bytes:
    # Python's decoding of foreign bytes may leave half of a surrogate pair.
    return text.encode("utf-8", "replace")
