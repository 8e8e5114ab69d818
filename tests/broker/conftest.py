"""One broker for all tests of the suite that do not break it; those that do start their own.

Most tests wait most of the time, and run at the same time (support/together.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.together import play_together

SHORT_SESSIONS = {"group.min.session.timeout.ms": "1000", "log.cleaner.backoff.ms": "500"}
"""Short intervals: sessions of a second, and a log cleaner that runs every half second."""

AT_ONCE = 4
"""Tests that run at a time: each has one to three members or workers."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, Path(__file__).parent, AT_ONCE)


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A running broker, shared: use unique names for topics and groups."""
    with KafkaBroker(properties=SHORT_SESSIONS) as running:
        yield running
