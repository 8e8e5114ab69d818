"""A record with a header name that is not UTF-8 goes through everything like any other, without its headers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.broker.workers import Kafka
from tests.retries.redrives import redrive_settings, run_redrive
from tests.retries.scene import Flow
from tests.support.odd_headers import send_with_odd_name


def test_record_with_an_odd_header_name_fails_waits_and_is_redriven_like_the_others(
    kafka: Kafka, tmp_path: Path
) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    flow.take_down()
    flow.put([{"n": 0, "do": "downstream"}])
    send_with_odd_name(kafka.bootstrap, flow.source, json.dumps({"n": 1, "do": "downstream"}).encode())
    flow.put([{"n": 2, "do": "downstream"}])
    with flow.worker(), flow.retry_worker():
        flow.wait_failed(3)
        # And one that a foreign client has written to the failed topic.
        send_with_odd_name(kafka.bootstrap, flow.failed, json.dumps({"n": 3, "do": "downstream"}).encode())
        flow.bring_up()
        assert run_redrive(redrive_settings(flow.group, kafka, partitions=1), tmp_path).counts == (4, 4, 0)
        flow.wait_deliveries(10)
        flow.wait_drained()
    deliveries = flow.assert_none_early()
    assert [sum(each.n == n for each in deliveries) for n in range(4)] == [3, 3, 3, 1]
    assert {each.origin[:3] for each in deliveries if each.n == 1} == {(flow.source, 0, 1)}
