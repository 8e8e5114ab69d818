"""Waits for conditions: the only way in which tests let time pass."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.05
POLL_SECONDS_MAX = 0.5
TIMEOUT_S = 240.0
"""Default deadline: far above any wait on an idle machine, so that a busy machine fails no test."""


def eventually(probe: Callable[[], T], *, what: str, timeout_s: float = TIMEOUT_S, poll_s: float | None = None) -> T:
    """Return `probe()`'s first truthy answer; fail after `timeout_s`, naming `what` was awaited and last seen.

    An AssertionError or OSError inside the probe counts as "not yet" and is shown as the last thing seen. Without
    `poll_s` the probes become rarer with time: 20 requests a second would be most of a server's load.
    """
    pause = threading.Event()
    began = time.monotonic()
    while True:
        try:
            seen = probe()
        except (AssertionError, OSError) as error:
            last: object = error
        else:
            if seen:
                return seen
            last = seen
        waited = time.monotonic() - began
        if waited >= timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {last!r}")
        pause.wait(pause_after(waited) if poll_s is None else poll_s)


async def eventually_async(
    probe: Callable[[], Awaitable[T]], *, what: str, timeout_s: float = TIMEOUT_S, poll_s: float | None = None
) -> T:
    """`eventually` for a coroutine function."""
    began = time.monotonic()
    while True:
        try:
            seen = await probe()
        except (AssertionError, OSError) as error:
            last: object = error
        else:
            if seen:
                return seen
            last = seen
        waited = time.monotonic() - began
        if waited >= timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {last!r}")
        await asyncio.sleep(pause_after(waited) if poll_s is None else poll_s)


def pause_after(waited: float) -> float:
    """Seconds until the next probe: a tenth of the time waited, so a wait is about a tenth too long at most."""
    return min(max(POLL_SECONDS, waited / 10), POLL_SECONDS_MAX)
