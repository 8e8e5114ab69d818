"""Settings of random tests: a busy machine fails none of them, and a failure prints its seed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.together import play_together

AT_ONCE = 8
"""How many of the few tests that only wait, for logins to end, play at a time."""

settings.register_profile("unit", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, Path(__file__).parent, AT_ONCE, room=lambda: True)


@pytest.fixture(autouse=True)
def own_log_handlers() -> Iterator[None]:
    """Remove the log handlers that a test's program has added: they write to its captured stream, which is closed."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)
