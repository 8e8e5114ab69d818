"""The current handler call, for logs and the watchdog, and the end of a child process that a handler forked.

The call is a context variable, because handlers run in threads as well as in tasks of an event loop, and both have
their own context.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from fleet_consumer.record import Record


class CallUnwanted(Exception):
    """The call's records have left this worker; whatever it would return is thrown away."""


@dataclass(slots=True, eq=False)
class HandlerCall:
    """The records of one handler call, never none. `thread` is where the call runs.

    A new list, even of the same records, means a new call, whose time counts from then on. `ended` turns true when the
    worker ends the call from outside; any other cancellation is the handler's own. `unwanted()` is true once another
    worker may have the records. Any thread may ask.
    """

    records: list[Record]
    thread: int
    ended: bool = False
    unwanted: Callable[[], bool] = lambda: False


CURRENT_CALL: ContextVar[HandlerCall | None] = ContextVar("CURRENT_CALL", default=None)
"""The handler call of this thread or task; None outside of one."""


def begin_anew(records: Iterable[Record] | None = None) -> None:
    """Begin another call, with these records or with the same."""
    call = CURRENT_CALL.get()
    if call is not None:
        call.records = list(call.records if records is None else records)


def check_wanted() -> None:
    """Raise CallUnwanted if nobody wants the records of this call to be handled here any more."""
    call = CURRENT_CALL.get()
    if call is not None and call.unwanted():
        raise CallUnwanted("the partition was given back, or the session ended, before the call was sent")


STDERR = 2


def end_forked_child(parent: int, error: BaseException | None = None) -> None:
    """Return in the process `parent`. In a child of it, exit with the code that `error` implies.

    Such a child has a copy of everything and none of the worker's threads: it would handle the same records again, on
    the sockets of the first.

    Nothing is committed, written or closed on the way, and no buffer is flushed: all of that is the parent's.
    """
    if os.getpid() == parent:
        return
    code, words = _ending(error)
    try:
        # Not by sys.stderr: another thread of the parent may have held its lock at the fork.
        os.write(STDERR, words.encode(errors="replace"))
    finally:
        os._exit(code)


def _ending(error: BaseException | None) -> tuple[int, str]:
    """Exit code and text, as Python has them for a program that ends with this error."""
    if error is None:
        return 0, ""
    if not isinstance(error, SystemExit):
        return 1, "".join(traceback.format_exception(error))
    if error.code is None:
        return 0, ""
    return (error.code & 0xFF, "") if isinstance(error.code, int) else (1, f"{error.code}\n")
