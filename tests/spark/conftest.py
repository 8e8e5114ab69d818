"""One broker and one Spark environment for the suite; each test runs drivers of its own, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.workers import Kafka
from tests.spark.scene import Place
from tests.support.kafka import KafkaBroker
from tests.support.programs import DRIVERS, build_before
from tests.support.spark import ensure_spark
from tests.support.together import play_together

AT_ONCE = 2
"""Drivers that run at a time; each has a JVM that is busy while it starts."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, Path(__file__).parent, AT_ONCE)


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, Path(__file__).parent, DRIVERS)


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """The broker, with topics of any record size, and the interpreter that has Spark."""
    properties = {"message.max.bytes": "20000000", "group.min.session.timeout.ms": "1000"}
    with KafkaBroker(properties=properties) as broker:
        yield Place(Kafka(broker.bootstrap), broker.bootstrap, ensure_spark())
