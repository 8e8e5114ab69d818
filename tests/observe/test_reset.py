"""A reset to a time on a real broker, set as the operator sets it, with the workers and retries after it."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from fleet_consumer.net import ConnectionSettings, NetworkClient
from fleet_operator.api.v1alpha1.offsetreset import OffsetResetSpec
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.planning.offsets.targets import Targets, find_targets, time_ms
from tests.broker.workers import Kafka
from tests.retries.scene import Flow, metric
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

COUNT = 10


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.mark.together
def test_records_failing_again_after_a_reset_to_a_time_are_retried_again(kafka: Kafka, tmp_path: Path) -> None:
    """Set as the operator sets them: what fails after the time is retried, and nothing before it is touched."""
    flow = Flow(kafka, tmp_path, "2s", partitions=2)
    flow.put([{"n": n, "do": "fail"} for n in range(COUNT)], partition=None)
    time.sleep(1.1)  # the records' own times are the subject
    between = time.time()
    time.sleep(1.1)
    flow.put([{"n": COUNT + n, "do": "fail"} for n in range(COUNT)], partition=None)
    with flow.worker() as main, flow.retry_worker() as retry:
        flow.wait_failed(2 * COUNT)
        flow.wait_drained()
        assert (main.terminate(), retry.terminate()) == (0, 0)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f".{int(between % 1 * 1000):03}Z"
    wanted = OffsetResetSpec.model_validate({"groupRef": {"name": "any"}, "to": "Time", "time": text})
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(kafka.bootstrap,), client_id="operator"))
    admin = KafkaAdmin(client)

    def is_set() -> bool:
        read = admin.read_offsets(flow.group, (flow.source,), time_ms(wanted), read_committed=False)
        assert read.state == "Empty", "the static member is still there"
        targets = find_targets(wanted, (flow.source,), read)
        assert isinstance(targets, Targets)
        assert targets.previous != targets.offsets
        return not admin.set_offsets(flow.group, targets.offsets, marker="fleet-reset=a").refusals

    eventually(is_set, what="the offsets to be set", poll_s=1)
    client.close()
    with flow.worker(), flow.retry_worker() as retry:
        failed = flow.wait_failed(3 * COUNT)
        flow.wait_drained()
        assert metric(retry, "suppressed_copies_total") == 0
    by_number = Counter(json.loads(each.value or b"")["n"] for each in failed)
    assert by_number == Counter({n: 1 if n < COUNT else 2 for n in range(2 * COUNT)})
    assert {each.headers["kr-attempt"] for each in failed} == {b"1"}, "each with all its attempts"
