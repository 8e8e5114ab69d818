"""Reasons for the failed topic (dead letter queue, DLQ): their words in headers, and in objects of the API.

Headers, metrics and commands have them in lower case, objects in CamelCase as all enums there. This is the only place
that turns one into the other.
"""

from __future__ import annotations

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
    """The word in objects; also of a reason that this version does not know, for workers may be of another one."""
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", reason))


def from_api(word: str) -> FailureReason:
    """The reason behind the word of an object. Raises ValueError for a word that is none."""
    return FailureReason(word.lower())
