"""A `setup` that does not return is reported past the handler's time-out, and given up past the poll interval."""

from __future__ import annotations

import pytest

from fleet_consumer.worker.lifecycle.watchdog import SetupWatch
from tests.support.clock import StillClock


def watch(clock: StillClock, timeout_s: float = 60) -> SetupWatch:
    return SetupWatch("mine:handle", timeout_s=timeout_s, limit_s=300, clock=clock)


@pytest.mark.parametrize(
    ("after_s", "reported", "over"), [(59, False, False), (60, True, False), (299, True, False), (300, True, True)]
)
def test_setup_has_the_limits_of_a_call(after_s: float, reported: bool, over: bool) -> None:
    clock = StillClock()
    watched = watch(clock)
    with watched.running():
        error, ends = watched.overdue(clock.monotonic() + after_s)
    assert (error is not None, ends) == (reported, over)


def test_error_names_the_handler_and_the_setting() -> None:
    clock = StillClock()
    watched = watch(clock, timeout_s=1_000)
    with watched.running():
        error, over = watched.overdue(clock.monotonic() + 300)
    assert over
    assert "'mine:handle'" in str(error)
    assert "consumer.maxPollIntervalSeconds (300 s)" in str(error)


def test_setup_that_has_returned_is_no_concern() -> None:
    clock = StillClock()
    watched = watch(clock)
    assert watched.overdue(clock.monotonic() + 1_000) == (None, False)
    with pytest.raises(ValueError, match="no"), watched.running():
        raise ValueError("no")
    assert watched.overdue(clock.monotonic() + 1_000) == (None, False)
