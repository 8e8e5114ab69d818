"""One broker for all tests of the suite that do not break it; those that do start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka import KafkaBroker

SHORT_SESSIONS = {"group.min.session.timeout.ms": "1000"}
"""So that a test need not wait six seconds for a dead member to be noticed."""


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A running broker, shared: use names of your own for topics and groups."""
    with KafkaBroker(properties=SHORT_SESSIONS) as running:
        yield running
