"""From the failed topic back to the handler: a redriven record in its group's retry workers."""

from __future__ import annotations

from pathlib import Path

from tests.broker.workers import Kafka
from tests.retries.redrives import Ended, redrive_settings, run_redrive
from tests.retries.scene import Flow

COUNT = 20


def redrive(flow: Flow) -> Ended:
    """A run over all failed records of the group."""
    return run_redrive(redrive_settings(flow.group, flow.kafka, partitions=flow.partitions), flow.folder)


def test_redriven_records_have_all_their_attempts_again_and_end_with_a_corrected_handler(
    kafka: Kafka, tmp_path: Path
) -> None:
    """They fail, are put back, fail through the whole sequence, and are put back once more when the handler works."""
    flow = Flow(kafka, tmp_path, "1s")
    flow.take_down()
    flow.put({"n": n, "do": "downstream"} for n in range(COUNT))
    with flow.worker(), flow.retry_worker():
        flow.wait_failed(COUNT)
        assert redrive(flow).counts == (COUNT, COUNT, 0)
        failed = flow.wait_failed(2 * COUNT)
        again = [each.headers for each in failed if each.headers.get("kr-redrive-count") == b"1"]
        assert len(again) == COUNT
        assert {headers["kr-attempt"] for headers in again} == {b"1"}
        assert {headers["kr-reason"] for headers in again} == {b"exhausted"}
        flow.bring_up()
        assert redrive(flow).counts == (COUNT, COUNT, 0)
        flow.wait_deliveries(5 * COUNT)
        flow.wait_drained()
        assert redrive(flow).counts == (0, 0, 0)
    deliveries = flow.assert_none_early()
    assert len(deliveries) == 5 * COUNT
    # Two deliveries, two after the first redrive, and one after the second, all with the same coordinates.
    assert len({each.origin for each in deliveries}) == COUNT
    redriven = [each for each in deliveries if each.read_topic == flow.redrive]
    assert {each.attempt for each in redriven} == {0}
    first_failures = {each.n: each.first_failed_at for each in deliveries if each.first_failed_at is not None}
    assert {(each.n, each.first_failed_at) for each in redriven} == set(first_failures.items())
    assert len(flow.source_records()) == COUNT
