"""Processor capacity for one more test, by the kernel's figures of waiting tasks.

On a full machine a further test gains nothing: each takes longer, timed parts of the system (probes, sessions,
timeouts) start to fail, and failed tests are repeated.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["has_room"]

PRESSURE: Final = Path("/proc/pressure/cpu")
PRESSURE_MAX: Final = 70.0
"""Percent of the last ten seconds in which some task waited for a processor (PSI, `some avg10`)."""


def has_room(pressure: Path = PRESSURE) -> bool:
    """True if the processors are not full; without pressure information (a kernel setting) by the average load."""
    try:
        found = re.search(r"^some avg10=([\d.]+)", pressure.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        return os.getloadavg()[0] < 1.5 * (os.cpu_count() or 1)
    return float(found[1]) < PRESSURE_MAX
