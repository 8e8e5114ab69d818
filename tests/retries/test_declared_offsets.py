"""Declared offsets on a real broker: a skipped record that kills its processes, and a reset to a time."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from fleet_consumer.contract.skips import Place, render_skips
from fleet_consumer.net import ConnectionSettings, NetworkClient
from fleet_operator.api.v1alpha1.consumergroup import OffsetReset
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.planning.offsets.targets import Targets, find_targets, time_ms
from tests.broker.workers import Kafka
from tests.retries.scene import Flow, metric
from tests.retries.test_deaths import FORMS, SHORT, fleet_of, kept_alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

COUNT = 10


@pytest.mark.parametrize(("how", "form"), [("kill", "alone"), ("exit", "threads"), ("segfault", "batch")])
def test_skipped_record_kills_no_further_process_and_all_others_are_done(
    kafka: Kafka, tmp_path: Path, how: str, form: str
) -> None:
    """The list comes after the first death; the kubelet would restart the process with the same mounted file."""
    fleet = fleet_of(kafka, tmp_path, f"skipped-{how}-{form}")
    skip_file = tmp_path / "skip.json"
    fleet.send(*({"do": how if n == 100 else "ok", "n": n} for n in range(200)), partition=0)
    with kept_alive(fleet, 1, skipFile=str(skip_file), **SHORT, **FORMS[form]) as ended:
        eventually(lambda: ended, timeout_s=180, what="the first death")
        skip_file.write_text(json.dumps(render_skips(fleet.settings()["uid"], [Place(fleet.source, 0, 100)])))
        fleet.wait_committed(timeout_s=180)
    assert {json.loads(each.value or b"")["n"] for each in kafka.read(fleet.output)} == set(range(200)) - {100}
    (failed,) = kafka.read(fleet.failed)
    assert json.loads(failed.value or b"")["n"] == 100
    assert (failed.headers["kr-reason"], failed.headers["kr-error-class"]) == (b"skipped", b"Skipped")
    assert failed.headers["trace"] == b"t-101", "with its own headers"
    assert len(ended) <= 3, "the one before the list, and those that had begun before it"


def test_records_failing_again_after_a_declared_reset_to_a_time_are_retried_again(kafka: Kafka, tmp_path: Path) -> None:
    """Set as the operator sets them: what fails after the time is tried anew, and nothing before it is touched."""
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
    wanted = OffsetReset.model_validate({"id": "a", "to": "Time", "time": text})
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(kafka.bootstrap,), client_id="operator"))
    admin = KafkaAdmin(client, client.metadata((), timeout_s=10.0).cluster_id)

    def is_set() -> bool:
        read = admin.read_offsets(flow.group, (flow.source,), time_ms(wanted), read_committed=False)
        assert read.state == "Empty", "the static member is still there"
        targets = find_targets(wanted, (flow.source,), read)
        assert isinstance(targets, Targets)
        assert targets.previous[flow.source] != targets.offsets[flow.source]
        return not admin.set_offsets(flow.group, targets.offsets, mark="fleet-reset=a").refusals

    eventually(is_set, what="the offsets to be set", poll_s=1)
    client.close()
    with flow.worker(), flow.retry_worker() as retry:
        failed = flow.wait_failed(3 * COUNT)
        flow.wait_drained()
        assert metric(retry, "suppressed_copies_total") == 0
    by_number = Counter(json.loads(each.value or b"")["n"] for each in failed)
    assert by_number == Counter({n: 1 if n < COUNT else 2 for n in range(2 * COUNT)})
    assert {each.headers["kr-attempt"] for each in failed} == {b"1"}, "each with all its attempts"
