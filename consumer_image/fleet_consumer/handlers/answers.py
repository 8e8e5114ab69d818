"""Conversion of a handler's result into records to be written.

The whole result is checked before anything is sent, so that a partly invalid one writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fleet_consumer.record import Produce
from fleet_consumer.retry.failure import OutputRefused


class Outputs:
    """The topics that a handler may produce to (`handler.outputs`)."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = frozenset(topics)

    def of(self, answer: object) -> tuple[Produce, ...]:
        """The records in a handler's result: None, one Produce, or any iterable of them.

        Raises OutputRefused for anything else and for topics that are not listed. A generator runs here, so errors of
        the handler's code pass through.
        """
        if answer is None:
            return ()
        if isinstance(answer, Produce):
            return (self._checked(answer),)
        if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
            _close(answer)
            raise OutputRefused(f"the handler returned {_kind(answer)}; return None, a Produce, or several of them")
        return tuple(self._checked(item) for item in answer)

    def _checked(self, item: object) -> Produce:
        if not isinstance(item, Produce):
            raise OutputRefused(f"the handler returned {_kind(item)} among its outputs; each must be a Produce")
        if item.topic not in self._topics:
            listed = ", ".join(sorted(self._topics)) or "none are"
            raise OutputRefused(
                f"topic {item.topic!r} is not among the listed outputs ({listed}); add it to `handler.outputs`"
            )
        for field in ("key", "value"):
            if not isinstance(getattr(item, field), bytes | str | None):
                raise OutputRefused(
                    f"the {field} of an output is {_kind(getattr(item, field))}; use bytes, str or None"
                )
        for header in item.headers:
            if not _is_header(header):
                raise OutputRefused("each header of an output must be a pair of a str and bytes (or None)")
        return item


def _is_header(header: object) -> bool:
    return (
        isinstance(header, tuple | list)
        and len(header) == 2
        and isinstance(header[0], str)
        and isinstance(header[1], bytes | None)
    )


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _close(answer: Any) -> None:
    """Close a coroutine that nobody awaits, so that it does not warn when it is collected."""
    close = getattr(answer, "close", None)
    if hasattr(answer, "__await__") and callable(close):
        close()
