"""Settings that the application's owner gives in the pod's environment."""

from __future__ import annotations

import pytest

from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import WorkerConfig, parse_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.config.settings import PodIdentity, consumer_settings, with_environment
from tests.unit.worker.documents import worker_document


def test_memory_of_waiting_partitions_is_bounded_by_an_environment_variable_of_the_pod() -> None:
    config = parse_config(worker_document())
    assert bound_of(with_environment(config, {})) == 32 * 1024 * 1024
    assert bound_of(with_environment(config, {"FLEET_PAUSED_BYTES_MAX": "8000000"})) == 8_000_000
    for said in ("", "0", "-1", "8M", "8_000_000", "9" * 5_000):
        with pytest.raises(SettingsInvalid, match="FLEET_PAUSED_BYTES_MAX must be a number of bytes"):
            with_environment(config, {"FLEET_PAUSED_BYTES_MAX": said})


def bound_of(config: WorkerConfig) -> int:
    """The bound as a retry worker's consumer has it."""
    connection = ConnectionSettings(bootstrap_servers=("broker:9092",), client_id="orders-0")
    return consumer_settings(config, connection, PodIdentity("orders-0", None), Role.RETRY).paused_bytes_max
