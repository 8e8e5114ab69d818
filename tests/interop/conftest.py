"""Three brokers, shared by the suite and broken by nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running
