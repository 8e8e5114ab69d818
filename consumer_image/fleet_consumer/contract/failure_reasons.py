"""Reasons why records are in the failed topic (dead letter queue, DLQ). Reasons are lower case in headers, metrics and
commands, but CamelCase in API objects, like all enums there. Only this module converts between the two forms."""

import re
from enum import StrEnum


class FailureReason(StrEnum):
    EXHAUSTED = "exhausted"
    FATAL = "fatal"
    TIMEOUT = "timeout"
    UNDECODABLE = "undecodable"
    BREAKER = "breaker"
    POISON = "poison"
    SKIPPED = "skipped"
    MANUAL = "manual"


def to_api(reason: str) -> str:
    """Convert a reason to its CamelCase form. Also accepts reasons that only another worker version knows."""
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", reason))


def from_api(word: str) -> FailureReason:
    """Convert a CamelCase form to its reason. Raises ValueError if the form is unknown."""
    return FailureReason(word.lower())
