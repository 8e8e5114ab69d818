"""The current handler call, for logs and the watchdog.

It is a context variable, because handlers run in threads as well as in tasks of an event loop, and both have their own
context.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from fleet_consumer.record import Record


@dataclass(slots=True, eq=False)
class HandlerCall:
    """The records of one handler call, never none. `thread` is where the call runs.

    A new list, even of the same records, means a new call, whose time counts from then on. `ended` turns true when the
    worker ends the call from outside; any other cancellation is the handler's own.
    """

    records: list[Record]
    thread: int
    ended: bool = False


CURRENT_CALL: ContextVar[HandlerCall | None] = ContextVar("CURRENT_CALL", default=None)
"""The handler call of this thread or task; None outside of one."""


def begin_anew(records: Iterable[Record] | None = None) -> None:
    """Begin another call, with these records or with the same."""
    call = CURRENT_CALL.get()
    if call is not None:
        call.records = list(call.records if records is None else records)
