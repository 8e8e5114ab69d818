"""A worker's report of how busy it is and of what it has in hand, on both pages."""

from __future__ import annotations

from fleet_consumer.handlers.executor import Work
from fleet_consumer.record import Record
from fleet_consumer.worker.member import member_document
from fleet_consumer.worker.metrics import metrics_page
from fleet_consumer.worker.stats import DONE, DROPPED, FAILED, RETRIED, Stats
from tests.support.metrics import sample
from tests.unit.worker.test_member import LABELS, Lived


def test_member_and_metrics_show_the_same_work() -> None:
    lived = Lived()
    lived.state.stats = Stats(done=4, failed=3, dropped=2, retried=1)
    lived.state.work = lambda: Work(12.25, slots=4)
    place = Record("_fleet.g.retry.5s", 1, 9, 0, None, None)
    lived.state.in_hand = ((place, 1_700_000_000.0),)
    assert member_document(lived.state)["work"] == {
        "busySeconds": 12.25,
        "records": 10,
        "slots": 4,
        "inHand": [
            {"topic": "_fleet.g.retry.5s", "partition": 1, "offset": 9, "since": "2023-11-14T22:13:20.000Z"},
        ],
    }
    page = metrics_page(lived.state, LABELS, lived.bench.clock)().decode()
    assert sample(page, "consumer_fleet_worker_busy_seconds_total", **LABELS._asdict()) == 12.25
    by_result = [
        sample(page, "consumer_fleet_worker_records_total", result=each) for each in (DONE, FAILED, DROPPED, RETRIED)
    ]
    assert by_result == [4, 3, 2, 1]
