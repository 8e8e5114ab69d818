"""The machine's clocks."""

from __future__ import annotations

import sys
import time

import pytest

from fleet_consumer.clock import SystemClock


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere CLOCK_MONOTONIC goes on while the machine sleeps")
def test_clock_advances_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = {time.CLOCK_BOOTTIME: 4_000.0, time.CLOCK_MONOTONIC: 400.0}
    monkeypatch.setattr(time, "clock_gettime", slept.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: slept[time.CLOCK_MONOTONIC])
    assert SystemClock().monotonic() == 4_000.0
