"""The death of a container is told with exit code, signal, the kubelet's reason and the record in hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_consumer.contract.skips import Place
from fleet_consumer.record import Record
from fleet_consumer.worker.lifecycle.termination import last_word
from fleet_operator.planning import times
from fleet_operator.planning.fleet.parsing import read_pod
from fleet_operator.planning.fleet.pod_end import RECENT_S, SAID_CHARACTERS_MAX, ContainerEnd, last_end
from tests.unit.planning.builders import NOW

IN_HAND = last_word([Record("orders", 3, 1234, 0, None, None)]).decode()


def ended(code: int = 137, reason: str = "OOMKilled", message: Any = "", **state: Any) -> dict[str, Any]:
    """The status of a pod whose worker has ended so and is in this state now."""
    terminated = {"exitCode": code, "reason": reason, "finishedAt": times.to_text(NOW - 5), "message": message}
    container = {"name": "worker", "state": state, "lastState": {"terminated": terminated}}
    return {"containerStatuses": [container]}


def running(seconds: float) -> dict[str, Any]:
    return {"running": {"startedAt": times.to_text(NOW - seconds)}}


def told(status: dict[str, Any]) -> str:
    return str(last_end(status))


def test_kill_for_memory_names_signal_and_record() -> None:
    assert told(ended(message=IN_HAND)) == (
        "container worker ended (OOMKilled, exit code 137, SIGKILL) while its handler processed orders-3:1234: "
        "ProcessDied: the process died during a handler call"
    )


def test_crash_names_its_signal_or_code_next_to_the_last_line_of_its_log() -> None:
    assert told(ended(139, "Error")) == "container worker ended (exit code 139, SIGSEGV)"
    text = "Traceback ...\nValueError: no such table\n"
    assert told(ended(1, "Error", text)) == "container worker ended (exit code 1): ValueError: no such table"


def test_last_log_line_in_json_is_told_in_its_words() -> None:
    entry = {"time": "2026-11-24T00:28:21Z", "level": "info", "message": "worker started", "group": "orders"}
    assert (
        told(ended(3, "Error", json.dumps(entry)))
        == "container worker ended (exit code 3): last log line: worker started"
    )
    entry |= {"message": "no broker\nanswers", "error": "timed out"}
    text = told(ended(3, "Error", json.dumps(entry)))
    assert text == "container worker ended (exit code 3): last log line: no broker answers: timed out"


def test_container_just_terminated_is_reported_before_its_waiting_state() -> None:
    status = {"containerStatuses": [{"name": "worker", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]}
    assert told(status) == "container worker ended (exit code 3)"


def test_end_in_order_is_no_death() -> None:
    assert last_end(ended(0, "Completed")) is None
    assert last_end({}) is None


@pytest.mark.parametrize(
    "message",
    [
        "[" * 100_000,
        json.dumps({"reason": "x", "records": 7}),
        json.dumps({"reason": "x", "records": [7, None, {}, {"topic": 1, "partition": 0, "offset": 0}]}),
        json.dumps({"reason": "x", "records": [{"topic": "t", "partition": 2**31, "offset": 0}]}),
        json.dumps({"reason": "x", "records": [{"topic": "t", "partition": True, "offset": -1}]}),
        json.dumps(["reason"]),
        json.dumps({"reason": {"a": "b"}}),
    ],
)
def test_untrusted_termination_message_is_truncated_and_names_no_record(message: str) -> None:
    end = last_end(ended(message=message))
    assert end is not None
    assert end.records == ()
    assert len(end.said) <= SAID_CHARACTERS_MAX


def test_container_counts_as_failing_for_a_while_after_it_was_started_again() -> None:
    for seconds, failing in ((1.0, True), (RECENT_S - 1, True), (RECENT_S, False)):
        pod = {"metadata": {"name": "orders-0"}, "status": ended(message=IN_HAND, **running(seconds))}
        assert (read_pod(pod, NOW).ended is not None) is failing, seconds
    waiting = {"metadata": {"name": "orders-0"}, "status": ended(waiting={"reason": "CrashLoopBackOff"})}
    assert read_pod(waiting, NOW + 300).ended is not None, "until it is started"


def test_newest_death_of_several_containers_is_reported() -> None:
    def died(name: str, at: float) -> dict[str, Any]:
        return {"name": name, "lastState": {"terminated": {"exitCode": 1, "finishedAt": times.to_text(at)}}}

    end = last_end({"containerStatuses": [died("worker", NOW), died("sidecar", NOW - 9)]})
    assert end is not None
    assert end.container == "worker"


def test_record_reads_as_people_write_it() -> None:
    end = ContainerEnd(container="w", exit_code=1, records=(Place("orders", 3, 1234), Place("orders", 4, 0)))
    assert str(end).endswith("while its handler processed orders-3:1234, orders-4:0")
    assert ContainerEnd(container="w", exit_code=1).is_recent(NOW)
