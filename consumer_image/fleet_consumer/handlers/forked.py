"""Exit of a child process that a handler forked and that returns into the worker's code.

Such a child has a copy of everything and none of the worker's threads. If it continued, it would be a second worker
that handles the same records again, on the sockets of the first.
"""

from __future__ import annotations

import os
import traceback

STDERR = 2


def end_forked_child(parent: int, error: BaseException | None = None) -> None:
    """Return in the process `parent`. In a child of it, exit with the code that `error` implies.

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
