"""Timing of a consuming loop from the inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STALLED_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one run of one side; CPU time is of the whole process, including native threads."""

    records: int
    seconds: float
    cpu_seconds: float
    peak_mib: float

    def figures(self) -> dict[str, float]:
        """The figures that benchmarks compare."""
        return {
            "per_second": self.records / self.seconds,
            "cpu_per_million": self.cpu_seconds / self.records * 1_000_000,
            "peak_mib": self.peak_mib,
        }


def measure(take: Callable[[], int], wanted: int) -> Measured:
    """Call `take`, which handles some records and returns their number, until `wanted` records are handled.

    The clock starts once the first records have been handled, so joining and connecting do not count.
    """
    quiet_since = time.monotonic()
    while (warm := take()) == 0:
        if time.monotonic() - quiet_since > STALLED_AFTER_S:
            raise SystemExit("no record arrived")
    started, cpu_before = time.monotonic(), time.process_time()
    handled, target, quiet_since = 0, wanted - warm, started
    while handled < target:
        count = take()
        handled += count
        if count:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > STALLED_AFTER_S:
            raise SystemExit(f"stalled after {handled} records")
    return Measured(handled, time.monotonic() - started, time.process_time() - cpu_before, peak_mib())


def peak_mib() -> float:
    """Peak memory of this process in MiB; `ru_maxrss` would be its parent's if that was larger."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
