"""Progress on the terminal: every step with its duration, and heartbeats during the long ones."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Step", "step"]

# Seconds. A quick step prints one line at its end; one that takes longer also prints heartbeats.
FIRST_HEARTBEAT_S = 3.0
HEARTBEAT_S = 10.0


class Step:
    """A running step. The step sets ``note``, which each heartbeat shows."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.note = ""


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Time a step and print its line when it ends; print heartbeats while it lasts."""
    current = Step(title)
    done = threading.Event()
    started = time.monotonic()
    heart = threading.Thread(target=_heartbeat, args=(current, started, done), name="heartbeat", daemon=True)
    heart.start()
    try:
        yield current
    except BaseException:
        _print("failed", current, started)
        raise
    else:
        _print("done", current, started)
    finally:
        done.set()
        heart.join()


def _heartbeat(current: Step, started: float, done: threading.Event) -> None:
    wait_s = FIRST_HEARTBEAT_S
    while not done.wait(wait_s):
        _print("...", current, started)
        wait_s = HEARTBEAT_S


def _print(mark: str, current: Step, started: float) -> None:
    note = f"  ({current.note})" if current.note else ""
    print(f"{time.monotonic() - started:8.1f} s  {mark:<6} {current.title}{note}", file=sys.stderr, flush=True)
