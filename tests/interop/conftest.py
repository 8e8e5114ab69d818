"""Three brokers, shared by the suite and broken by nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    # Kafka's own patience with brokers, as none goes here: the cluster's default is for tests that take brokers away.
    patient = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "1000"}
    with KafkaCluster(properties=patient) as running:
        yield running
