"""Three brokers, shared by the suite; no test breaks them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    # Kafka's default time-outs, because no broker stops here: the cluster's short ones are for tests that stop brokers.
    patient = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "1000"}
    with KafkaCluster(properties=patient) as running:
        yield running
