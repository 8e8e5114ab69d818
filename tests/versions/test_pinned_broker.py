"""Brokers of the tests run the version of Kafka that the lane names."""

from e2e.local_cluster import versions
from tests.support.kafka import KafkaBroker


def test_broker_is_of_the_version_that_is_tested() -> None:
    with KafkaBroker() as broker:
        assert f"Kafka version: {versions.KAFKA} " in broker.log.read_text().replace("\n", " ")
