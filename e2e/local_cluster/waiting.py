"""Waits for conditions, with deadlines: the only place of the package that sleeps."""

import threading
import time
from collections.abc import Callable

from e2e.local_cluster.errors import ClusterError

__all__ = ["pause", "wait_until"]


def pause(seconds: float) -> None:
    """Let ``seconds`` pass between two checks of a condition."""
    threading.Event().wait(seconds)


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    timeout_s: float,
    interval_s: float = 0.05,
    last_seen: Callable[[], str] | None = None,
) -> None:
    """Return as soon as ``condition()`` is true.

    ``what`` completes the sentence "waited ... for"; ``last_seen`` is called only if the wait failed.
    Raises ClusterError (``TimedOut``) after ``timeout_s``, and whatever ``condition`` raises.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            detail = f"; last seen: {last_seen()}" if last_seen else ""
            raise ClusterError("TimedOut", f"waited {timeout_s:.0f} s for {what}{detail}")
        pause(interval_s)
