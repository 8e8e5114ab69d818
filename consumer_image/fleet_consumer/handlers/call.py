"""The current handler call, for logs and the watchdog, and the exit of child processes that a handler forked.

The call is a context variable, because each thread and each event-loop task has its own context.

Decision: docs/decisions/0028-setup-and-signals.md.
"""

import os
import traceback
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from fleet_consumer.record import Record


class CallUnwanted(Exception):
    """The call's records no longer belong to this worker; the call's result would be discarded."""


@dataclass(slots=True, eq=False)
class HandlerCall:
    """The records of one handler call, at least one. `thread` is the identifier of the calling thread.

    When a new list is assigned to `records`, even of the same records, a new call with a new timeout begins. `ended`
    becomes true when the worker cancels the call. If the call is cancelled while `ended` is false, the handler itself
    caused the cancellation. `unwanted()` returns True once another worker may have the records; it may be called on any
    thread.
    """

    records: list[Record]
    thread: int
    ended: bool = False
    unwanted: Callable[[], bool] = lambda: False


CURRENT_CALL: ContextVar[HandlerCall | None] = ContextVar("CURRENT_CALL", default=None)


def begin_next_call(records: Iterable[Record] | None = None) -> None:
    """Begin another call, with `records` or with the same records again."""
    call = CURRENT_CALL.get()
    if call is not None:
        call.records = list(call.records if records is None else records)


def check_wanted() -> None:
    """Raise CallUnwanted if this worker must no longer handle the records of this call."""
    call = CURRENT_CALL.get()
    if call is not None and call.unwanted():
        raise CallUnwanted("the partition was revoked, or the session ended, before the call was sent")


STDERR = 2


def end_forked_child(parent: int, error: BaseException | None = None) -> None:
    """End a forked child after a handler call; do nothing in the process with the id `parent`.

    The child exits with the code that `error` implies. Otherwise it would handle the same records again, on the
    parent's sockets. It exits without a commit, write, close or flush, because sockets and buffers belong to the
    parent.

    Comparing the process id after each record would be too slow. So it is compared only after the handler raised an
    error or returned outputs. If the handler returned None, only a flag that a fork hook sets is checked.
    """
    if os.getpid() == parent:
        return
    code, words = _ending(error)
    try:
        # sys.stderr is not used, because another thread of the parent may have held its lock during the fork.
        os.write(STDERR, words.encode(errors="replace"))
    finally:
        os._exit(code)


def _ending(error: BaseException | None) -> tuple[int, str]:
    """Return the exit code and the error output of a Python program that ends with this error."""
    if error is None:
        return 0, ""
    if not isinstance(error, SystemExit):
        return 1, "".join(traceback.format_exception(error))
    if error.code is None:
        return 0, ""
    return (error.code & 0xFF, "") if isinstance(error.code, int) else (1, f"{error.code}\n")
