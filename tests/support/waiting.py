"""Waiting on conditions: the only way that tests let time pass."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.05
TIMEOUT_S = 240.0
"""Default deadline. Far beyond any wait on an idle machine, so that a busy one fails no test."""


def eventually(probe: Callable[[], T], *, what: str, timeout_s: float = TIMEOUT_S, poll_s: float = POLL_SECONDS) -> T:
    """Return `probe()`'s first truthy answer; fail after `timeout_s`, naming `what` was awaited and last seen.

    An AssertionError or OSError inside the probe counts as "not yet" and is shown as the last thing seen.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            seen = probe()
        except (AssertionError, OSError) as error:
            last: object = error
        else:
            if seen:
                return seen
            last = seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {last!r}")
        pause.wait(poll_s)


async def eventually_async(
    probe: Callable[[], Awaitable[T]], *, what: str, timeout_s: float = TIMEOUT_S, poll_s: float = POLL_SECONDS
) -> T:
    """`eventually` for a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            seen = await probe()
        except (AssertionError, OSError) as error:
            last: object = error
        else:
            if seen:
                return seen
            last = seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {last!r}")
        await asyncio.sleep(poll_s)
