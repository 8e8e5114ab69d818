"""The worker as a process on a real broker: nothing lost, nothing skipped, for any end and any obstacle."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.broker.workers import Fleet, Kafka, counted
from tests.support.kafka import KafkaBroker
from tests.support.metrics import sample
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


def test_every_record_ends_once_in_output_or_failed_topic_and_is_committed(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "all-kinds")
    wishes = [{"do": "fail" if n % 40 == 0 else "skip" if n % 50 == 1 else "ok", "n": n} for n in range(4000)]
    fleet.send(*wishes)
    with fleet.worker() as worker:
        fleet.wait_committed()
        metrics = worker.get("/metrics")[1]
        member = worker.member()
        assert worker.terminate() == 0
    done, failed = fleet.origins_done(), fleet.origins_failed()
    assert (len(done), len(failed)) == (3820, 100)
    assert len(set(done) | set(failed)) == 3920
    for result, count in (("done", 3820), ("failed", 100), ("dropped", 80)):
        labels = {"group_namespace": "default", "group_name": "all-kinds", "group_id": "all-kinds", "role": "main"}
        assert sample(metrics, "consumer_fleet_worker_records_total", result=result, **labels) == count
    assert (member["state"], member["assignor"], member["leader"]) == ("Stable", "range", True)
    assert member["instanceId"] == "default.all-kinds.0d9c2f3e-0"
    assert member["assignment"] == {"all-kinds": [0, 1, 2, 3]}
    assert sum(member["committed"]["all-kinds"].values()) == 4000
    assert member["error"] is None


def test_failed_record_keeps_its_bytes_and_headers_and_carries_its_history(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "stories")
    kafka.produce(fleet.source, [b'{"do":  "fail", "n": 1}', b"no json"], partition=2)
    fleet.send({"do": "fatal"}, partition=3)
    with fleet.worker():
        fleet.wait_committed()
    failed = {
        (each.headers["kr-origin-partition"], each.headers["kr-origin-offset"]): each
        for each in kafka.read(fleet.failed)
    }
    first = failed[b"2", b"0"]
    assert (first.key, first.value, first.headers["trace"]) == (b"key-1", b'{"do":  "fail", "n": 1}', b"t-1")
    assert first.headers["kr-origin-topic"] == b"stories"
    assert first.headers["kr-error-class"] == b"ValueError"
    assert first.headers["kr-error-message"] == b"asked to fail: 1"
    assert {where: each.headers["kr-reason"] for where, each in failed.items()} == {
        (b"2", b"0"): b"exhausted",
        (b"2", b"1"): b"undecodable",
        (b"3", b"0"): b"fatal",
    }
    assert failed[b"2", b"1"].value == b"no json"


def test_half_a_surrogate_pair_in_an_output_is_the_failure_of_its_record(kafka: Kafka, tmp_path: Path) -> None:
    """JSON may have one, from a text that was cut. In a header's name it makes librdkafka's binding end the process."""
    fleet = Fleet(kafka, tmp_path, "halves")
    (tmp_path / "halves.py").write_text(
        "from fleet_consumer import Produce\n"
        "def handle(record):\n"
        "    place, text = record.value['place'], record.value['text']\n"
        "    headers = [(text, b'')] if place == 'header' else [('kr-origin', b'')]\n"
        "    key = text if place == 'key' else 'key'\n"
        "    value = text if place == 'value' else 'value'\n"
        f"    return [Produce({fleet.output!r}, 'first'), Produce({fleet.output!r}, value, key=key, headers=headers)]\n"
    )
    fleet.send(*({"place": place, "text": "cut \ud83d"} for place in ("value", "key", "header", "none")), partition=1)
    with fleet.worker(handler__python__callable="halves:handle"):
        fleet.wait_committed()
    failed = kafka.read(fleet.failed)
    assert {each.headers["kr-reason"] for each in failed} == {b"fatal"}
    messages = sorted(each.headers["kr-error-message"] or b"" for each in failed)
    assert [message.partition(b" cannot be written as UTF-8")[0] for message in messages] == [
        b"the key of an output",
        b"the name of an output's header",
        b"the value of an output",
    ]
    assert sorted(each.value or b"" for each in kafka.read(fleet.output)) == [b"first", b"value"], "of one answer only"


def test_stopped_worker_commits_all_finished_records(kafka: Kafka, tmp_path: Path) -> None:
    """SIGTERM in the middle, a restart, and every record has been handled exactly once."""
    fleet = Fleet(kafka, tmp_path, "drained")
    fleet.send_many(20_000)
    with fleet.worker(consumer__maxPollRecords=100, consumer__commitIntervalSeconds=60) as worker:
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 500, what="some to be done")
        assert worker.terminate() == 0
        assert worker.lines()[-1]["message"] == "worker ended"
    done = len(fleet.origins_done())
    assert 500 < done < 20_000
    assert sum(kafka.committed(fleet.name, fleet.source).values()) == done
    with fleet.worker():
        fleet.wait_committed()
    assert counted(fleet.origins_done()) == dict.fromkeys(fleet.origins_in(), 1)


def test_killed_worker_loses_nothing_and_repeats_only_uncommitted_records(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "killed")
    fleet.send_many(20_000)
    with fleet.worker(consumer__maxPollRecords=100) as worker:
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 2000, what="some to be done")
        worker.kill()
    committed = kafka.committed(fleet.name, fleet.source)
    before = set(fleet.origins_done())
    with fleet.worker():
        fleet.wait_committed()
    counts = counted(fleet.origins_done())
    assert set(counts) == set(fleet.origins_in())
    repeated = {origin for origin, count in counts.items() if count > 1}
    assert repeated <= {origin for origin in before if origin[1] >= committed.get(origin[0], 0)}


def test_two_workers_share_the_partitions_and_one_takes_over_from_the_other(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "shared")
    with fleet.worker(0) as first, fleet.worker(1) as second:
        halves = eventually(
            lambda: (
                [each.member()["assignment"].get(fleet.source, []) for each in (first, second)]
                if all(each.member()["state"] == "Stable" and each.member()["assignment"] for each in (first, second))
                else None
            ),
            what="both to have partitions",
        )
        assert halves is not None
        assert sorted(halves) == [[0, 1], [2, 3]]
        fleet.send_many(2000)
        first.kill()
        fleet.wait_committed()
        assert second.member()["assignment"] == {fleet.source: [0, 1, 2, 3]}
    assert set(fleet.origins_done()) == set(fleet.origins_in())


def test_missing_output_topic_holds_its_partition_until_it_exists(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "held")
    (tmp_path / "late.py").write_text(
        "from fleet_consumer import Produce\n"
        "def handle(record):\n"
        "    if record.partition == 1: return Produce('held-late', record.value)\n"
    )
    changes: dict[str, Any] = {"handler__python__callable": "late:handle", "handler__outputs": ["held-late"]}
    changes["handler__decode__value"] = "Bytes"
    with fleet.worker(**changes) as worker:
        worker.wait_ready()
        fleet.send({"n": 1}, {"n": 2}, partition=1)
        fleet.send({"n": 3}, {"n": 4}, partition=2)
        stuck = eventually(lambda: worker.member()["stuck"], what="a partition to be stuck")
        assert [(each["topic"], each["partition"], each["offset"]) for each in stuck] == [("held", 1, 0)]
        eventually(lambda: kafka.committed(fleet.name, fleet.source).get(2) == 2, what="others to go on")
        assert kafka.committed(fleet.name, fleet.source).get(1, 0) == 0
        kafka.create("held-late", partitions=1)
        fleet.wait_committed(90)
        eventually(lambda: not worker.member()["stuck"], what="nothing to be stuck any more")
    assert [each.value for each in kafka.read("held-late")] == [b'{"n": 1}', b'{"n": 2}']


def test_hung_handler_is_named_and_ends_its_worker_past_the_poll_interval(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "hung")
    fleet.send({"do": "ok"}, {"do": "hang"}, partition=3)
    with fleet.worker(
        handler__timeoutSeconds=1, consumer__maxPollIntervalSeconds=7, consumer__staticMembership=False
    ) as worker:
        stuck = eventually(lambda: worker.member()["stuck"], what="the record to be reported as stuck")
        assert [(each["partition"], each["offset"], each["reason"]) for each in stuck] == [(3, 1, "HandlerTimeout")]
        assert worker.wait(30) == 75
        last = worker.lines()[-1]
        assert (last["level"], last["topic"], last["partition"], last["offset"]) == ("critical", "hung", 3, 1)
        assert "pause" in last["stack"] or "handle" in last["stack"]
    assert kafka.committed(fleet.name, fleet.source).get(3, 0) <= 1


def test_slow_batch_outlasts_the_poll_interval_without_losing_the_membership(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "slow")
    fleet.send(*({"do": "slow", "seconds": 0.4, "n": n} for n in range(30)), partition=0)
    with fleet.worker(consumer__maxPollIntervalSeconds=6, consumer__sessionTimeoutSeconds=6) as worker:
        fleet.wait_committed()
        assert worker.member()["generation"] == 1
    assert counted(fleet.origins_done()) == dict.fromkeys(fleet.origins_in(), 1)


def test_stop_during_a_batch_ends_within_the_drain_time(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "bounded")
    fleet.send(*({"do": "slow", "seconds": 0.3, "n": n} for n in range(200)), partition=0)
    with fleet.worker(drainSeconds=2) as worker:
        eventually(lambda: kafka.end_offsets(fleet.output), what="the broker to answer")
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 2, what="some to be done")
        assert worker.terminate(15) == 0
    assert sum(kafka.committed(fleet.name, fleet.source).values()) == len(fleet.origins_done())


def test_fenced_worker_stays_alive_reports_it_and_does_not_rejoin_at_once(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "fenced")
    with fleet.worker(0) as first:
        first.wait_ready()
        with fleet.worker(0) as second:
            second.wait_ready()
            first.wait_error("FencedInstance")
            assert first.get("/readyz")[0] == 503
            assert first.get("/healthz")[0] == 200
            assert first.running
            assert second.get("/readyz")[0] == 200


def test_bug_that_ends_sessions_is_reported_with_its_record_and_retried_within_seconds(
    kafka: Kafka, tmp_path: Path
) -> None:
    fleet = Fleet(kafka, tmp_path, "bug")
    fleet.send({"do": "ok"}, {"do": "ok"}, {"do": "bug"}, {"do": "ok"}, partition=1)
    with fleet.worker() as worker:

        def three_ended() -> dict[str, Any]:
            member = worker.member()
            assert (member["ended"] or {"sessions": 0})["sessions"] >= 3, member["ended"]
            return member

        member = eventually(three_ended, what="three sessions to end")
        assert member["ended"]["reason"] == "TypeError"
        assert "inline.py:" in member["ended"]["message"]
        (stuck,) = member["stuck"]
        assert (stuck["topic"], stuck["partition"], stuck["offset"]) == ("bug", 1, 2)
        assert stuck["reason"] == "SessionEnded"


def test_missing_topic_is_reported_and_consumed_once_it_exists(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "patient")
    with fleet.worker(
        topics=["patient-later"], consumer__properties={"topic.metadata.refresh.interval.ms": "1000"}
    ) as worker:
        assert "patient-later" in worker.wait_error("TopicMissing")
        assert worker.get("/readyz")[0] == 503
        kafka.create("patient-later")
        kafka.produce("patient-later", [b'{"do": "ok"}'])
        eventually(lambda: fleet.origins_done(), what="the record to be handled", poll_s=0.5)
        worker.wait_ready()


def test_failing_setup_is_retried_and_reported(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "setups")
    flag = tmp_path / "database-is-up"
    (tmp_path / "needy.py").write_text(
        "from pathlib import Path\n"
        f"FLAG = Path({str(flag)!r})\n"
        "def setup(context):\n"
        "    if not FLAG.exists(): raise ConnectionError('no database for ' + context.worker)\n"
        "def teardown(context): FLAG.with_suffix('.closed').touch()\n"
        "def handle(record): return None\n"
    )
    with fleet.worker(handler__python__callable="needy:handle") as worker:
        assert "no database for setups-0" in worker.wait_error("HandlerSetupFailed")
        flag.touch()
        worker.wait_ready()
        assert worker.terminate() == 0
    assert flag.with_suffix(".closed").exists()


FORKS = """
import json
import os
import signal
import sys
import threading

from fleet_consumer import Produce

pause = threading.Event().wait


def handle(record):
    asked = json.loads(record.value)
    if asked["do"] == "ok":
        return Produce(OUTPUT, record.value)
    ready, notify = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(notify, b"x")
        if asked["do"] == "exit":
            sys.exit(3)
        if asked["do"] == "raise":
            raise ValueError("in the child")
        if asked["do"] == "wait":
            pause(3600)
        return None if asked["do"] == "nothing" else Produce(OUTPUT, b'{"n": "child"}')
    os.read(ready, 1)
    if asked["do"] == "wait":
        os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    return Produce(OUTPUT, json.dumps({**asked, "code": os.waitstatus_to_exitcode(status)}))


def handle_batch(records):
    return [handle(record) for record in records]


async def handle_later(record):
    return handle(record)
"""
CODES = {"exit": 3, "raise": 1, "nothing": 0, "answer": 0, "wait": -signal.SIGTERM}
FORK_FORMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "threads": {"handler__concurrency": 2},
    "batch": {"handler__python__callable": "handler:handle_batch", "consumer__maxPollRecords": 2},
    "coroutines": {"handler__python__callable": "handler:handle_later", "handler__concurrency": 2},
}


@pytest.mark.parametrize("form", FORK_FORMS)
def test_forked_children_of_a_handler_end_with_their_own_exit_code_and_are_no_second_worker(
    kafka: Kafka, tmp_path: Path, form: str
) -> None:
    fleet = Fleet(kafka, tmp_path, f"forks-{form}")
    (tmp_path / "handler.py").write_text(FORKS.replace("OUTPUT", repr(fleet.output)))
    wishes = [asked for do in CODES for asked in ({"do": do, "n": do}, {"do": "ok", "n": f"after {do}"})]
    fleet.send(*wishes, partition=0)
    changes = {"handler__decode": {"key": "Bytes", "value": "Bytes"}, **FORK_FORMS[form]}
    with fleet.worker(**changes) as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
    outputs = [json.loads(each.value or b"") for each in kafka.read(fleet.output)]
    assert sorted(each["n"] for each in outputs) == sorted(asked["n"] for asked in wishes)
    assert {each["do"]: each["code"] for each in outputs if "code" in each} == CODES
    assert kafka.read(fleet.failed) == []


def test_sigterm_handler_of_the_application_is_called_and_the_worker_drains(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "takes-signals")
    flag = tmp_path / "heard"
    (tmp_path / "taking.py").write_text(
        "import signal, sys, threading\n"
        "from pathlib import Path\n"
        "from fleet_consumer import Produce\n"
        "pause = threading.Event().wait\n"
        "def took(*_):\n"
        f"    Path({str(flag)!r}).touch()\n"
        "    sys.exit(9)\n"
        "def setup(context): signal.signal(signal.SIGTERM, took)\n"
        "def handle(record):\n"
        "    pause(0.2)\n"
        f"    return Produce({fleet.output!r}, record.value, key=f'{{record.partition}}-{{record.offset}}')\n"
    )
    fleet.send(*({"n": n} for n in range(20)), partition=0)
    changes: dict[str, Any] = {"handler__decode": {"key": "Bytes", "value": "Bytes"}}
    with fleet.worker(handler__python__callable="taking:handle", **changes) as worker:
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 2, what="some to be done")
        assert worker.terminate(60) == 0
        assert [line["signal"] for line in worker.lines() if "it is restored" in line["message"]] == ["SIGTERM"]
    assert flag.exists()
    assert kafka.committed(fleet.name, fleet.source)[0] == len(fleet.origins_done())
    assert kafka.read(fleet.failed) == []


@pytest.mark.parametrize("define", ["def", "async def"])
def test_hung_teardown_ends_its_worker_when_the_time_to_drain_and_close_is_over(
    kafka: Kafka, tmp_path: Path, define: str
) -> None:
    fleet = Fleet(kafka, tmp_path, f"hung-teardown-{len(define)}")
    (tmp_path / "clinging.py").write_text(
        "import asyncio, threading\n"
        f"{define} handle(record): return None\n"
        f"{define} teardown(context):\n"
        f"    {'threading.Event().wait(3600)' if define == 'def' else 'await asyncio.sleep(3600)'}\n"
    )
    fleet.send({"n": 1}, partition=0)
    with fleet.worker(handler__python__callable="clinging:handle", drainSeconds=1) as worker:
        fleet.wait_committed()
        assert worker.terminate(1 + 10 + 10) == 75
        last = worker.lines()[-1]
        assert (last["level"], last["call"]) == ("critical", "teardown")


def test_hung_setup_is_reported_and_ends_its_worker_past_the_poll_interval(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "hung-setup")
    (tmp_path / "endless.py").write_text(
        "import threading\ndef setup(context): threading.Event().wait(3600)\ndef handle(record): return None\n"
    )
    limits: dict[str, Any] = {"handler__timeoutSeconds": 1, "consumer__maxPollIntervalSeconds": 7}
    with fleet.worker(handler__python__callable="endless:handle", **limits) as worker:
        assert "consumer.maxPollIntervalSeconds (7 s)" in worker.wait_error("HandlerSetupHangs")
        assert worker.get("/readyz")[0] == 503
        assert worker.wait(30) == 75
        (entry,) = [line for line in worker.lines() if line["message"] == "the handler's setup does not return"]
        assert "endless.py" in entry["stack"]
        assert worker.lines()[-1]["level"] == "critical"
