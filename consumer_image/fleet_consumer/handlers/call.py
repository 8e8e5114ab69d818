"""What is in a handler's hands just now, for those who look from outside: logs, and the watchdog.

A context variable carries it, because handlers run in threads as well as in tasks of an event loop, and both keep
their own context.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from fleet_consumer.record import Record


@dataclass(slots=True, eq=False)
class HandlerCall:
    """Records that one handler call has in its hands; never empty. `thread` is where the call runs.

    A new list, even one with the same records, means a new call: its time counts from then on. `ended` turns true
    when the worker ends the call from outside; any other cancellation is the handler's own affair.
    """

    records: list[Record]
    thread: int
    ended: bool = False


CURRENT_CALL: ContextVar[HandlerCall | None] = ContextVar("CURRENT_CALL", default=None)
"""The hand of the handler call that this thread or task is; None outside of one."""


def begin_anew(records: Iterable[Record] | None = None) -> None:
    """Tell those who look from outside that another call begins, with these records or with the same."""
    call = CURRENT_CALL.get()
    if call is not None:
        call.records = list(call.records if records is None else records)
