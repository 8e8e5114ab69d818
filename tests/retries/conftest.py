"""One broker for the suite. Most tests wait most of the time, and run at the same time (support/together.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.together import play_together

SHORT_SESSIONS = {"group.min.session.timeout.ms": "1000"}
"""Short broker intervals: a test need not wait six seconds for the detection of a dead member."""

AT_ONCE = 3
"""Tests that run at a time: each has two or three processes, which mostly wait."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, Path(__file__).parent, AT_ONCE)


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A running broker, shared: use unique names for topics and groups."""
    with KafkaBroker(properties=SHORT_SESSIONS) as running:
        yield running


@pytest.fixture(scope="session")
def kafka(broker: KafkaBroker) -> Kafka:
    """The tests' own view of it."""
    return Kafka(broker.bootstrap)
