"""Topics for broker tests."""

from __future__ import annotations

import itertools
import os

from fleet_consumer.net import NetworkClient
from fleet_consumer.wire.admin import CreatableTopic, CreateTopicsRequest
from fleet_consumer.wire.errors import describe
from tests.support.waiting import eventually

PATIENCE_S = 30.0
_numbers = itertools.count()


def new_name(prefix: str) -> str:
    """A name that is unique on a shared broker."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def create_topic(client: NetworkClient, name: str, *, partitions: int) -> str:
    """Create a topic and wait until every partition has a leader; return its name."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
    answer = client.call(None, CreateTopicsRequest(topics=(topic,), timeout_ms=30_000), timeout_s=PATIENCE_S)
    assert answer.topics[0].error_code == 0, describe(answer.topics[0].error_code)

    def led() -> bool:
        found = client.metadata([name], timeout_s=PATIENCE_S).topics[0].partitions
        return len(found) == partitions and all(partition.leader_id >= 0 for partition in found)

    eventually(led, timeout_s=PATIENCE_S, what=f"leaders for {name}")
    return name
