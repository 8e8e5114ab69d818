"""A worker's report of itself: probes, /member and metrics agree with its work."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.consumer.resets import OffsetReset, OutOfRangeReport
from fleet_consumer.coordinator.starts import ResetPolicy
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.errors import DataPlaneFailed, DataUnreadable, FencedInstance, Refusal, TopicMissing
from fleet_consumer.group.membership import Membership, Rejoin
from fleet_consumer.record import Produce, Record, TopicPartition
from fleet_consumer.retry.due import Waiting
from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.consume.writing import ACK_WAIT_S
from fleet_consumer.worker.http_server import HttpServer, Page, json_page, text_page
from fleet_consumer.worker.lifecycle.watchdog import Hang
from fleet_consumer.worker.member import (
    FAILED_KINDS_MAX,
    WorkerState,
    member_document,
    ready,
    record_end,
    retry_document,
    stopped_part,
)
from fleet_consumer.worker.metrics import GroupLabels, metrics_page
from fleet_consumer.worker.session import Session
from fleet_consumer.worker.stats import ERROR_CLASSES_MAX, OTHER_CLASSES, RETRIED, Stats
from fleet_consumer.worker.supervisor import SessionBackoff
from tests.support.metrics import sample
from tests.unit.consumer.lab import Lab
from tests.unit.retry.policies import policies
from tests.unit.worker.scripted import P0, P1, Bench

JOINED = Membership(
    group_id="g",
    instance_id="default.flights.0d9c2f3e-0",
    member_id="m-1",
    generation=3,
    leader=True,
    protocol="range",
    state="Stable",
    assignment={"t": (1, 0)},
    rejoins=(Rejoin(2, 3, "group is already rebalancing", own=False),),
)


TOO_LARGE = Refusal("OFFSET_METADATA_TOO_LARGE (12); shorten the metadata", lasting=True)


def test_refused_commits_of_a_partition_stand_in_the_report_until_one_is_stored() -> None:
    lived = Lived()
    consumer = lived.bench.consumer
    lived.bench.steps(1)
    consumer.refuses = {P1: TOO_LARGE}
    lived.bench.steps(60)
    assert member_document(lived.state)["error"] == {
        "reason": "CommitsRefused",
        "message": "partition t-1: commits refused since 2023-11-14T22:30:05.000Z: OFFSET_METADATA_TOO_LARGE (12); "
        "shorten the metadata",
    }
    assert ready(lived.state) == (True, "joined")
    assert (consumer.offsets[P0], consumer.offsets[P1]) == (2, 0)
    assert sum(P0 in request for request in consumer.requests) <= 3, "what is stored is not sent again"
    consumer.refuses = {}
    lived.bench.steps(12)
    assert member_document(lived.state)["error"] is None
    assert consumer.offsets[P1] == 1


def test_refusal_that_may_pass_on_its_own_is_reported_when_it_lasts() -> None:
    lived = Lived()
    lived.bench.steps(1)
    lived.bench.consumer.refuses = {P1: Refusal("UNKNOWN_TOPIC_OR_PARTITION (3)", lasting=False)}
    lived.bench.steps(20)
    assert member_document(lived.state)["error"] is None
    lived.bench.steps(80)
    assert "t-1: commits refused since" in member_document(lived.state)["error"]["message"]


def test_partition_whose_first_commit_is_refused_waits_alone_and_is_reported() -> None:
    seen: list[bytes] = []
    lived = Lived(handle=lambda record: seen.append(record.value))
    lived.bench.consumer.untouched = lambda at: None
    lived.bench.consumer.refuses = {P1: TOO_LARGE}
    lived.bench.steps(40)
    assert seen == [b"a", b"b"]
    assert member_document(lived.state)["error"]["reason"] == "CommitsRefused"
    lived.bench.consumer.refuses = {}
    lived.bench.steps(40)
    assert seen == [b"a", b"b", b"c"]
    assert member_document(lived.state)["error"] is None


def test_data_that_cannot_be_read_stand_in_the_report_and_leave_the_worker_ready() -> None:
    error = DataUnreadable("partition t-1: _BAD_MSG: wrong CRC")
    lived = Lived(Membership(group_id="g", generation=3, state="Stable", error=error))
    lived.bench.consumer.stands_at = {P1: PartitionError(17, error, 90.0, 0.0, void=True)}
    document = member_document(lived.state)
    assert document["stuck"] == [
        {
            "topic": "t",
            "partition": 1,
            "offset": 17,
            "reason": "DataUnreadable",
            "message": "partition t-1: _BAD_MSG: wrong CRC",
            "since": "1970-01-01T00:01:30.000Z",
        }
    ]
    assert document["error"] == {"reason": "DataUnreadable", "message": "partition t-1: _BAD_MSG: wrong CRC"}
    assert ready(lived.state) == (True, "joined")


def test_partition_without_an_offset_stands_in_the_report_while_records_flow_in_others() -> None:
    """Under the policy `none`, for as long as it lasts: nothing is handled there."""
    lab, lived = Lab(ResetPolicy.NONE), Lived()
    consumer = lived.bench.consumer
    consumer.membership = lambda: replace(JOINED, error=lab.positions.last_error)
    lab.positions.assign([P0, P1], frozenset())
    lab.positions.look_up_unknown()
    lived.bench.steps(1)
    consumer.script.append(lambda: lab.found({P0: 0}, without=(P1,)))
    until = lived.bench.clock.now + 60
    while lived.bench.clock.now < until:
        consumer.logs[P0].append(b"more")
        lived.bench.clock.now += 1
        lived.bench.steps(1)
    assert lived.bench.stats.done > 50
    error = member_document(lived.state)["error"]
    assert error["reason"] == "NoOffsetForPartition"
    assert "t-1" in error["message"]
    assert "OffsetReset" in error["message"]
    assert ready(lived.state) == (True, "joined"), "no rollout waits for a partition that stops by its policy"
    lab.positions.seek(P1, 0)
    assert member_document(lived.state)["error"] is None


LABELS = GroupLabels("default", "flights", "flights.retry", "retry")


class Lived:
    """A worker's state around a scripted session."""

    def __init__(self, membership: Membership = JOINED, handle: Any = lambda record: None) -> None:
        self.bench = Bench(handle, {P0: [b"a", b"b"], P1: [b"c"]})
        self.bench.consumer.membership = lambda: membership
        self.state = WorkerState("a1b2c3d4e5", 300.0, membership.instance_id, self.bench.stats)
        self.state.session = Session(self.bench.loop, self.bench.parts, None, None)


def test_member_shows_membership_and_offsets() -> None:
    lived = Lived()
    lived.bench.steps(12)
    assert member_document(lived.state) == {
        "memberId": "m-1",
        "instanceId": "default.flights.0d9c2f3e-0",
        "generation": 3,
        "leader": True,
        "revoking": False,
        "rejoins": [{"before": 2, "generation": 3, "reason": "group is already rebalancing", "own": False}],
        "assignor": "range",
        "state": "Stable",
        "assignment": {"t": [0, 1]},
        "positions": {"t": {"0": 2, "1": 1}},
        "committed": {"t": {"0": 2, "1": 1}},
        "revision": "a1b2c3d4e5",
        "paused": [],
        "pausedCount": 0,
        "stuck": [],
        "stuckCount": 0,
        "error": None,
        "ended": None,
        "breaker": None,
        "retry": None,
        "work": {"busySeconds": 0.0, "records": 3, "slots": 1, "inHand": []},
        "failed": [],
        "expired": [],
        "skipped": [],
    }


def test_member_shows_the_last_gap_in_each_partition_of_a_retry_topic() -> None:
    lived = Lived()
    retry, report = TopicPartition("_fleet.g.retry.5s", 1), OutOfRangeReport()
    for reset in (OffsetReset(retry, 3, 5), OffsetReset(P0, 0, 9), OffsetReset(retry, 7, 12)):
        report = report.plus(reset)
    lived.bench.consumer.out_of_range = lambda: report
    assert member_document(lived.state)["expired"] == [{"topic": retry.topic, "partition": 1, "first": 7, "next": 12}]


def test_member_and_metrics_show_retries() -> None:
    lived = Lived()
    lived.state.breaker = lambda: BreakerSnapshot("HalfOpen", 1_700_000_000.0, 66.66)
    heads = {TopicPartition("_fleet.g.retry.5s", 1): Waiting(42, 1_700_000_000_250, 1_700_000_005_250)}
    stats = lived.state.stats = Stats(suppressed=2, unknown_policies=1)
    lived.state.retry = lambda: retry_document("retry", policies("5s"), heads, stats)
    document = member_document(lived.state)
    assert document["breaker"] == {"state": "HalfOpen", "since": "2023-11-14T22:13:20.000Z", "failurePercent": 66.7}
    assert document["retry"] == {
        "role": "retry",
        "waiting": [{"topic": "_fleet.g.retry.5s", "partition": 1, "offset": 42, "dueAt": "2023-11-14T22:13:25.250Z"}],
        "waitingCount": 1,
        "suppressed": 2,
        "policy": {"name": "standard", "current": "a1b2c3d4e5", "unknown": 1},
    }
    stats.count(RETRIED)
    for delay in ("5s", "5s", "30s"):
        stats.retry_publishes[delay] += 1
    stats.gave_up("exhausted")
    for n in range(2 * ERROR_CLASSES_MAX):
        stats.gave_up("fatal", f"shop.Made{n:03}")
        stats.gave_up("fatal", "shop.Made000")
    failed = member_document(lived.state)["failed"]
    assert [(entry["reason"], entry["errorClass"], entry["records"]) for entry in failed[:3]] == [
        ("fatal", "shop.Made000", 2 * ERROR_CLASSES_MAX + 1),
        ("fatal", OTHER_CLASSES, ERROR_CLASSES_MAX + 1),
        ("exhausted", "", 1),
    ]
    assert len(failed) == FAILED_KINDS_MAX
    for late in (0.005, 0.01, 0.2, 4000.0):
        stats.lateness.observe(late)
    page = metrics_page(lived.state, LABELS, lived.bench.clock)().decode()
    for name, value, labels in (
        ("records_total", 1, {"result": "retried"}),
        ("retry_publishes_total", 2, {"delay": "5s"}),
        ("retry_publishes_total", 1, {"delay": "30s"}),
        ("failures_total", 1, {"reason": "exhausted"}),
        ("due_lateness_seconds_bucket", 2, {"le": "0.01"}),
        ("due_lateness_seconds_bucket", 3, {"le": "0.25"}),
        ("due_lateness_seconds_bucket", 3, {"le": "300.0"}),
        ("due_lateness_seconds_bucket", 4, {"le": "+Inf"}),
        ("due_lateness_seconds_count", 4, {}),
        ("breaker_state", 1, {"state": "HalfOpen"}),
        ("breaker_state", 0, {"state": "Open"}),
        ("waiting_partitions", 1, {}),
    ):
        assert sample(page, f"consumer_fleet_worker_{name}", **labels) == value, name


def test_member_shows_held_partitions_and_hung_handlers() -> None:
    lived = Lived(handle=lambda record: Produce("out", b"x"))
    lived.bench.producer.silent = True
    lived.bench.steps(1)
    lived.bench.clock.now += ACK_WAIT_S
    lived.bench.steps(1)
    hang = Hang(Record("t", 1, 9, 0, None, None), None, 61.0, over=False)
    lived.state.hangs = ((hang, 1_700_000_000.0),)
    stuck = member_document(lived.state)["stuck"]
    assert stuck[0] == {
        "topic": "t",
        "partition": 1,
        "offset": 9,
        "reason": "HandlerTimeout",
        "message": "the handler does not return",
        "since": "2023-11-14T22:13:20.000Z",
    }
    assert [(each["partition"], each["offset"], each["reason"]) for each in stuck[1:]] == [
        (0, 0, "Unacknowledged"),
        (1, 0, "Unacknowledged"),
    ]
    assert all("acknowledge" in each["message"] for each in stuck[1:]), stuck


def test_worker_between_sessions_shows_the_reason() -> None:
    state = WorkerState("r", 300.0, "default.flights.0d9c2f3e-0")
    state.error = FencedInstance("another member has joined")
    document = member_document(state)
    assert document["error"] == {"reason": "FencedInstance", "message": "another member has joined"}
    assert (document["memberId"], document["generation"], document["positions"]) == ("", -1, {})
    assert ready(state) == (False, "FencedInstance: another member has joined")


def test_member_shows_ends_of_sessions_while_the_next_one_starts() -> None:
    """The next session clears the error at once, and would meet the same record: what ended the last stays told."""
    lived = Lived()
    record = Record("t", 1, 9, 0, None, None)
    for now in (1_700_000_000.0, 1_700_000_002.0):
        try:
            [].pop()
        except IndexError as error:
            record_end(lived.state, error, record, now)
    assert lived.state.error is not None
    lived.state.error = None
    document = member_document(lived.state)
    assert document["error"] is None
    ended, (stuck,) = document["ended"], document["stuck"]
    message = ended.pop("message")
    assert ended == {
        "reason": "IndexError",
        "since": "2023-11-14T22:13:20.000Z",
        "at": "2023-11-14T22:13:22.000Z",
        "sessions": 2,
    }
    assert message.startswith("pop from empty list (test_member.py:")
    assert stuck == {
        "topic": "t",
        "partition": 1,
        "offset": 9,
        "reason": "SessionEnded",
        "message": f"IndexError: {message}",
        "since": "2023-11-14T22:13:20.000Z",
    }


def test_next_session_begins_within_seconds_and_a_fenced_member_waits_longer() -> None:
    """Two members with one instance id fence each other each time they come back."""
    backoff = SessionBackoff()
    assert [backoff.after(KeyError("a bug"), 1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [backoff.after(FencedInstance("m"), 1) for _ in range(8)] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert [backoff.after(KeyError("a bug"), lived_s) for lived_s in (31, 1)] == [1, 2], "a long life starts afresh"
    assert [backoff.after(FencedInstance("m"), lived_s) for lived_s in (31, 301)] == [300, 5]


@pytest.mark.parametrize(
    ("membership", "expected"),
    [
        (JOINED, True),
        (Membership(group_id="g", member_id="m", generation=3, state="PreparingRebalance"), True),
        (Membership(group_id="g", member_id="m", generation=-1, state="PreparingRebalance"), False),
        (Membership(group_id="g", generation=3, state="Failed"), False),
        (Membership(group_id="g", generation=3, state="Stable", error=TopicMissing("no topic 't'")), False),
        (Membership(group_id="g", generation=3, state="Stable", error=DataPlaneFailed("t-1: leader away")), True),
    ],
    ids=["stable", "a rebalance alone", "first join", "failed", "topic missing", "a leader away"],
)
def test_ready_means_a_member_that_can_work(membership: Membership, expected: bool) -> None:
    assert ready(Lived(membership).state)[0] is expected


def test_worker_is_alive_while_its_loop_turns_for_any_broker_state() -> None:
    lived = Lived(Membership(group_id="g", error=OSError("no broker")))
    beat = lived.bench.loop.beat_at
    assert stopped_part(lived.state, None, handling=False, now=beat + 59) is None
    assert stopped_part(lived.state, None, handling=False, now=beat + 61) == "the consume loop is stuck"
    assert stopped_part(lived.state, None, handling=True, now=beat + 329) is None
    assert stopped_part(lived.state, None, handling=True, now=beat + 331) == "the consume loop is stuck"


def test_worker_without_a_session_is_alive() -> None:
    assert stopped_part(WorkerState("r", 300.0, None), None, handling=False, now=1e9) is None


@pytest.mark.parametrize(("age_s", "stopped"), [(59, False), (61, True)])
def test_worker_whose_watchdog_is_dead_or_hangs_is_not_alive(age_s: float, stopped: bool) -> None:
    """Nobody else reads the signals: the kubelet has to restart it."""
    part = stopped_part(WorkerState("r", 300.0, None), 1000.0, handling=True, now=1000.0 + age_s)
    assert (part is not None and "watchdog" in part) is stopped


def test_metrics_count_records_by_result() -> None:
    lived = Lived()
    lived.bench.steps(12)
    page = metrics_page(lived.state, LABELS, lived.bench.clock)().decode()
    for name, value, labels in (
        ("records_total", 3, {"result": "done"}),
        ("ready", 1, {}),
        ("partition_committed_offset", 2, {"topic": "t", "partition": "0"}),
        ("assigned_partitions", 2, {}),
        ("skipped_offsets_total", 7, {}),
        ("truncations_total", 2, {}),
        ("cut_offsets_total", 9, {}),
    ):
        assert sample(page, f"consumer_fleet_worker_{name}", **labels, **LABELS._asdict()) == value, name


def broken_page() -> Page:
    raise KeyError("a bug")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer(
        0,
        {
            "/member": lambda: json_page({"a": [1]}),
            "/readyz": lambda: text_page(False, "Joining"),
            "/broken": broken_page,
            "/status": lambda: json_page({"b": 2}),
        },
        host="127.0.0.1",
        tokens={"/status": "uid-1"},
    )
    server.start()
    yield server
    server.close()


def get(server: HttpServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_pages_are_served_and_a_broken_one_breaks_nothing_else(server: HttpServer) -> None:
    assert get(server, "/broken")[0] == 500
    assert get(server, "/nowhere")[0] == 404
    assert get(server, "/readyz?verbose") == (503, "Joining\n")
    status, body = get(server, "/member")
    assert (status, json.loads(body)) == (200, {"a": [1]})


@pytest.mark.parametrize("said", ["", "Bearer uid-2", "Basic uid-1", "Bearer uid-1\u00e9"])
def test_page_with_a_token_is_closed_to_those_who_do_not_know_it(server: HttpServer, said: str) -> None:
    def ask(authorization: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/status", headers={"Authorization": authorization})
        status = connection.getresponse().status
        connection.close()
        return status

    assert ask(said) == 401
    assert ask("Bearer uid-1") == 200
    assert get(server, "/status?x")[0] == 401
    assert get(server, "/readyz")[0] == 503


def test_port_that_is_taken_is_an_error(server: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer(server.port, {}, host="127.0.0.1")
