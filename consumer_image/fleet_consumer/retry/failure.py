"""From what a handler raised to what happens to its record.

There is one classifier, so that the main flow, retries and reprocessing runs cannot judge the same error differently.
This version knows no retry policy: whatever would be tried again has no attempt left, and so ends in the failed topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet_consumer.record import Fatal, Skip

MESSAGE_BYTES_MAX: Final = 1024
"""Limit of an error's text in a header: enough for a cause, small beside any topic's `max.message.bytes`."""


TIMEOUT_CLASS: Final = "Timeout"
"""The error class of a handler that took too long, as rules and headers know it."""


HTTP_STATUS_CLASS: Final = "HttpStatus"
"""The error class of an HTTP handler's answer; the status is the first word of its text."""


class FailureReason(StrEnum):
    """Why a record is in the failed topic: the values of the header `kr-reason`."""

    EXHAUSTED = "exhausted"
    FATAL = "fatal"
    UNDECODABLE = "undecodable"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Failure:
    """The record goes to the failed topic. `error_class` is qualified by its module unless it is a builtin."""

    reason: FailureReason
    error_class: str
    message: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The record is dropped because its handler said so; counted, never written anywhere."""

    message: str


class Undecodable(Exception):
    """A record's bytes are not what `handler.decode` promises.

    `field` is "key" or "value"; `format_name` is the promised format. The bytes themselves are never in the message:
    they may be personal data, and they stay whole in the failed record.
    """

    def __init__(self, field: str, format_name: str, seen: str) -> None:
        super().__init__(
            f"the {field} is not {format_name}: {seen}; correct the sender, or set `handler.decode.{field}`"
        )
        self.field = field
        self.format_name = format_name


class OutputRefused(Exception):
    """A handler answered with something that may not be written. Trying again cannot help, so the record fails."""


class TimedOut(Exception):
    """The handler's time-out ended its call: the record is failed as `Timeout`, whatever the handler did meanwhile."""


class HttpStatus(Exception):
    """An HTTP handler answered with a status that is no success; 5xx and 429 may pass, all others are final."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def final(self) -> bool:
        return self.status < 500 and self.status != 429


def classify(error: BaseException) -> Failure | Drop:
    """Decide what happens to the record whose handler raised `error`; never raises itself."""
    if isinstance(error, Skip):
        return Drop(cut(error.reason))
    if isinstance(error, TimedOut):
        return Failure(FailureReason.TIMEOUT, TIMEOUT_CLASS, error_text(error))
    if isinstance(error, HttpStatus):
        reason = FailureReason.FATAL if error.final else FailureReason.EXHAUSTED
        return Failure(reason, HTTP_STATUS_CLASS, error_text(error))
    if isinstance(error, Undecodable):
        reason = FailureReason.UNDECODABLE
    elif isinstance(error, Fatal | OutputRefused):
        reason = FailureReason.FATAL
    else:
        reason = FailureReason.EXHAUSTED
    return Failure(reason, class_name(type(error)), error_text(error))


def class_name(kind: type[BaseException]) -> str:
    """`ValueError` for a builtin, `shop.orders.OutOfStock` for anything else."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """The error's own words, cut to MESSAGE_BYTES_MAX; an error that cannot even be printed says so."""
    try:
        text = str(error)
    except Exception as broken:  # a user's __str__ may raise anything
        text = f"(its text cannot be had: {type(broken).__name__})"
    return cut(text)


def cut(text: str, limit: int = MESSAGE_BYTES_MAX) -> str:
    """`text` in at most `limit` bytes of UTF-8, cut between characters; lone surrogates are escaped."""
    raw = text.encode("utf-8", "backslashreplace")
    return raw.decode() if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
