"""The choice of a worker's pod, and log lines for people."""

from __future__ import annotations

import json

import pytest

from fleet_kubectl.errors import NoWorkerRuns
from fleet_kubectl.loglines import line_of, merged, shown
from fleet_kubectl.pods import name_of, runner, workers
from fleet_operator.planning import labels
from tests.unit.plugin.fleets import pod

MAIN = [pod("orders-fleet-1"), pod("orders-fleet-0", state={"waiting": {"reason": "CrashLoopBackOff"}})]
RETRY = pod("orders-fleet-retry-0", labels.RETRY)
CHECK = pod("orders-fleet-check-abc", labels.CHECK)


def test_commands_run_in_a_main_worker_that_runs() -> None:
    assert runner([RETRY, CHECK, *MAIN], "shop", "orders") == "orders-fleet-1"
    assert runner([RETRY, MAIN[1]], "shop", "orders") == "orders-fleet-retry-0"


def test_without_a_running_worker_the_error_names_what_was_seen() -> None:
    with pytest.raises(
        NoWorkerRuns, match=r"shop/orders: no worker is running.*orders-fleet-0 is Running.*explain orders"
    ):
        runner([MAIN[1], CHECK], "shop", "orders")
    with pytest.raises(NoWorkerRuns, match="there is no pod"):
        runner([], "shop", "orders")


def test_logs_select_by_part_and_by_number() -> None:
    every = [RETRY, CHECK, *MAIN]
    assert [name_of(each) for each in workers(every, "all")] == [
        "orders-fleet-0",
        "orders-fleet-1",
        RETRY["metadata"]["name"],
    ]
    assert [name_of(each) for each in workers(every, "retry")] == ["orders-fleet-retry-0"]
    assert [name_of(each) for each in workers(every, "all", "0")] == ["orders-fleet-0"]
    assert [name_of(each) for each in workers(every, "main", "orders-fleet-1")] == ["orders-fleet-1"]


def test_lines_of_several_workers_are_merged_by_time() -> None:
    raw = [
        ("b", "2027-01-01T00:00:00.5Z three"),
        ("a", "2027-01-01T00:00:00.123Z one"),
        ("b", "2027-01-01T00:00:00.2Z two"),
    ]
    assert [line.text for line in merged(line_of(*each) for each in raw)] == ["one", "two", "three"]


def test_json_line_is_shown_as_words_and_the_traceback_below() -> None:
    said = {
        "time": "2027-01-01T00:00:00.123Z",
        "level": "warning",
        "logger": "fleet_consumer.worker",
        "message": "record failed",
        "topic": "orders",
        "offset": 17,
        "error": "bad \x1b[31mvalue",
        "exception": "Traceback\n  boom",
    }
    line = line_of("orders-fleet-0", f"2027-01-01T00:00:00.123456789Z {json.dumps(said)}")
    first, *rest = shown(line, 16)
    assert first == (
        '00:00:00.123 orders-fleet-0   WARNING record failed  topic=orders offset=17 error="bad \\\\x1b[31mvalue"'
    )
    assert rest == ["    Traceback", "      boom"]


def test_other_line_is_shown_as_it_is() -> None:
    assert shown(line_of("p", "2027-01-01T00:00:00.1Z [1, 2]"), 1) == ["00:00:00.100 p [1, 2]"]


def test_line_of_deep_json_is_shown_as_it_is() -> None:
    deep = "[" * 100_000
    assert shown(line_of("p", f"2027-01-01T00:00:00.1Z {deep}"), 1) == [f"00:00:00.100 p {deep}"]
