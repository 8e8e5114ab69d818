"""Users' regular expressions, matched in linear time by RE2.

In Python's `re`, even a short expression and a short string can block for an unlimited time. Every tenant writes
expressions, and strings (topic names, error messages, keys) come from anybody. Both the workers and the operator, which
serves all tenants, match expressions. RE2's time is proportional to the length of the string and the size of the
compiled expression; both are limited here.

Decision: docs/decisions/0027-linear-time-patterns.md.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

PROGRAM_BYTES_MAX: Final = 64 * 1024
"""Maximum memory of a compiled expression, which also limits the time of a match. Matching a name of 249 characters
takes 9 ms with the worst known expression, and microseconds with usual ones. These times are from a machine on which 20
million additions in Python take 1.2 s."""

SEARCHED_CHARACTERS_MAX: Final = 256
"""Maximum number of characters of a string that are searched; topic names are always shorter."""


class PatternRefused(ValueError):
    """An unusable expression. The message is for the expression's author."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled expression. Patterns with the same `text` are equal."""

    text: str
    compiled: Any = field(compare=False, repr=False)

    def fullmatch(self, text: str) -> object | None:
        found: object | None = self.compiled.fullmatch(_encoded(text))
        return found

    def found_in(self, text: str) -> bool:
        """True if the expression matches anywhere in the first SEARCHED_CHARACTERS_MAX characters of a string."""
        return self.compiled.search(_encoded(text[:SEARCHED_CHARACTERS_MAX])) is not None


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Pattern:
    """Compile an expression in RE2's syntax. Raises PatternRefused if it is invalid or too large."""
    # Imported here, because users of the library may import this module without having RE2.
    import re2

    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    # By default, RE2 also logs refused expressions to standard error.
    options.log_errors = False
    try:
        return Pattern(text, re2.compile(text, options))
    except UnicodeEncodeError as error:
        raise PatternRefused(f"{text!r} is not a regular expression: {error}") from error
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise PatternRefused(
            f"{text!r} is not a usable regular expression: {reason}; the syntax is RE2's, without look-around "
            "and backreferences, and a large bounded repetition may be too large"
        ) from error


def _encoded(text: str) -> bytes:
    # A string that Python has decoded from arbitrary bytes may contain half of a surrogate pair.
    return text.encode("utf-8", "replace")
