"""Several records at once, batches and asynchronous handlers, in workers on a real broker."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.broker.workers import Fleet, Kafka, counted
from tests.support.kafka import KafkaBroker
from tests.support.metrics import sample
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

KEYED = """
import json
import threading
import time
from pathlib import Path

from fleet_consumer import Produce

pause = threading.Event().wait
lock = threading.Lock()
busy, most = 0, 0

def handle(record):
    global busy, most
    with lock:
        busy += 1
        most = max(most, busy)
        Path(__file__).with_name("most").write_text(str(most))
    asked = json.loads(record.value)
    pause(asked["seconds"])
    with lock:
        busy -= 1
    return Produce(OUTPUT, json.dumps(asked), key=f"{record.partition}-{record.offset}", headers=[("key", record.key)])
"""

ASYNCHRONOUS = """
import asyncio
import json

from fleet_consumer import Fatal, Produce, Skip

opened = None

async def setup(context):
    global opened
    opened = asyncio.get_running_loop()

async def teardown(context):
    assert asyncio.get_running_loop() is opened

async def handle(record):
    assert asyncio.get_running_loop() is opened
    asked = record.value
    if asked["do"] == "hang":
        await asyncio.sleep(3600)
    if asked["do"] == "fatal":
        raise Fatal("asked to end")
    if asked["do"] == "skip":
        raise Skip("asked to skip")
    await asyncio.sleep(asked.get("seconds", 0))
    return Produce(OUTPUT, json.dumps(asked), key=f"{record.partition}-{record.offset}")
"""

BATCH = """
import json
from pathlib import Path

from fleet_consumer import Fatal, Produce, RetryAfter, Skip

calls = Path(__file__).with_name("calls")

def handle_batch(records):
    with calls.open("a") as log:
        print(records[0].partition, *(record.offset for record in records), file=log)
    return [one(record) for record in records]

def one(record):
    asked = record.value["do"]
    if asked == "raise":
        raise ValueError("this record spoils its batch")
    if asked == "fatal":
        return Fatal("asked to end")
    if asked == "skip":
        return Skip("asked to skip")
    if asked == "later":
        return RetryAfter(30)
    return Produce(OUTPUT, "x", key=f"{record.partition}-{record.offset}")
"""


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


def source(fleet: Fleet, name: str, text: str) -> None:
    (fleet.folder / f"{name}.py").write_text(text.replace("OUTPUT", repr(fleet.output)))


def test_threads_share_a_partition_and_records_of_a_key_stay_in_order(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "keyed", partitions=1)
    source(fleet, "keyed", KEYED)
    wishes = [(b"key-%d" % (n % 5), b'{"n": %d, "seconds": %s}' % (n, b"0.02" if n % 3 else b"0")) for n in range(300)]
    kafka.produce_keyed(fleet.source, wishes)
    changes: dict[str, Any] = {"handler__python__callable": "keyed:handle", "handler__decode__value": "Bytes"}
    with fleet.worker(handler__concurrency=4, **changes) as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
    assert int((tmp_path / "most").read_text()) == 4
    assert counted(fleet.origins_done()) == dict.fromkeys(fleet.origins_in(), 1)
    by_key: dict[bytes | None, list[int]] = {}
    for each in kafka.read(fleet.output):
        by_key.setdefault(each.headers["key"], []).append(json.loads(each.value or b"")["n"])
    assert len(by_key) == 5
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_killed_worker_with_threads_loses_nothing(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "keyed-killed")
    fleet.send_many(4000)
    with fleet.worker(handler__concurrency=8, consumer__maxPollRecords=50) as worker:
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 500, what="some to be done")
        worker.kill()
    committed = kafka.committed(fleet.name, fleet.source)
    before = set(fleet.origins_done())
    assert all((part, each) in before for part, offset in committed.items() for each in range(offset))
    with fleet.worker(handler__concurrency=8):
        fleet.wait_committed()
    assert set(fleet.origins_done()) == set(fleet.origins_in())


def test_hung_thread_delays_neither_others_nor_the_membership_and_ends_the_worker_in_order(
    kafka: Kafka, tmp_path: Path
) -> None:
    fleet = Fleet(kafka, tmp_path, "keyed-hung")
    fleet.send({"do": "ok"}, {"do": "hang"}, *({"do": "ok"} for _ in range(20)), partition=3)
    fleet.send(*({"do": "ok"} for _ in range(20)), partition=2)
    with fleet.worker(
        handler__concurrency=3,
        handler__timeoutSeconds=3,
        consumer__maxPollIntervalSeconds=8,
        consumer__staticMembership=False,
    ) as worker:
        stuck = eventually(lambda: worker.member()["stuck"], what="the record to be reported as stuck")
        assert [(each["partition"], each["offset"], each["reason"]) for each in stuck] == [(3, 1, "HandlerTimeout")]
        eventually(lambda: len(fleet.origins_done()) == 41, what="the others to be handled")
        assert worker.wait(40) == 75
        last = [line for line in worker.lines() if line["level"] == "critical"][-1]
        assert (last["topic"], last["partition"], last["offset"]) == ("keyed-hung", 3, 1)
        assert any(line["message"] == "partitions revoked" for line in worker.lines())
    assert kafka.committed(fleet.name, fleet.source) == {**dict.fromkeys((0, 1), 0), 2: 20, 3: 1}


def test_asynchronous_calls_overlap_and_time_out_one_by_one(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "async")
    source(fleet, "asynchronous", ASYNCHRONOUS)
    fleet.send(*({"do": "hang" if n % 20 == 7 else "ok", "seconds": 0.2} for n in range(100)))
    fleet.send({"do": "fatal"}, {"do": "skip"})
    with fleet.worker(
        handler__python__callable="asynchronous:handle", handler__concurrency=20, handler__timeoutSeconds=2
    ) as worker:
        fleet.wait_committed()
        metrics = worker.get("/metrics")[1]
        assert worker.terminate() == 0
        assert not [line for line in worker.lines() if line["level"] == "critical"]
    assert sample(metrics, "consumer_fleet_worker_timeouts_total") == 5
    assert sample(metrics, "consumer_fleet_worker_records_total", result="done") == 95
    reasons = [each.headers["kr-reason"] for each in kafka.read(fleet.failed)]
    assert Counter(reasons) == {b"timeout": 5, b"fatal": 1}
    classes = {each.headers["kr-error-class"] for each in kafka.read(fleet.failed)}
    assert classes == {b"Timeout", b"fleet_consumer.record.Fatal"}
    assert list(counted(fleet.origins_done()).values()) == [1] * 95


def test_batches_of_one_partition_have_a_result_for_each_record(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "batched")
    source(fleet, "batched", BATCH)
    kinds = {7: "fatal", 8: "skip", 9: "later"}
    fleet.send(*({"do": kinds.get(n, "ok")} for n in range(50)), partition=0)
    fleet.send(*({"do": "raise" if n == 3 else "ok"} for n in range(10)), partition=1)
    kafka.produce(fleet.source, [b"{}", b"no json", b'{"do": "ok"}'], partition=2)
    with fleet.worker(handler__python__callable="batched:handle_batch") as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
    failed = dict(zip(fleet.origins_failed(), kafka.read(fleet.failed), strict=True))
    assert {where: each.headers["kr-reason"] for where, each in failed.items()} == {
        (0, 7): b"fatal",
        (0, 9): b"exhausted",
        (1, 3): b"exhausted",
        (2, 0): b"exhausted",
        (2, 1): b"undecodable",
    }
    assert failed[2, 1].value == b"no json"
    assert counted(fleet.origins_done()) == dict.fromkeys(
        {(0, n) for n in range(50) if n not in kinds} | {(1, n) for n in range(10) if n != 3} | {(2, 2)}, 1
    )
    calls = [[int(word) for word in line.split()] for line in (tmp_path / "calls").read_text().splitlines()]
    assert max(len(call) - 1 for call in calls) >= 10
    assert all(call[1:] == sorted(call[1:]) for call in calls)


def test_partition_taken_away_while_threads_work_is_neither_lost_nor_committed_too_far(
    kafka: Kafka, tmp_path: Path
) -> None:
    fleet = Fleet(kafka, tmp_path, "keyed-moves")
    source(fleet, "keyed", KEYED)
    kafka.produce_keyed(fleet.source, [(b"k%d" % n, b'{"n": %d, "seconds": 0.01}' % n) for n in range(3000)])
    changes: dict[str, Any] = {
        "handler__python__callable": "keyed:handle",
        "handler__decode__value": "Bytes",
        "handler__concurrency": 4,
        "consumer__maxPollRecords": 50,
        "consumer__staticMembership": False,
        # A busy machine must not cost the membership here: lost records are repeated, and none may be.
        "consumer__sessionTimeoutSeconds": 45,
    }
    with fleet.worker(0, **changes) as first:
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 200, what="some to be done")
        with fleet.worker(1, **changes) as second:
            eventually(
                lambda: second.member()["assignment"] and first.member()["generation"] == second.member()["generation"],
                what="both to share",
            )
            assert second.terminate() == 0
        fleet.wait_committed(90)
        assert first.terminate() == 0
    # Handlers are quick and revocations wait for them, so nothing at all is repeated.
    assert counted(fleet.origins_done()) == dict.fromkeys(fleet.origins_in(), 1)


def test_missing_output_topic_holds_only_its_partition(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "threads-held")
    source(
        fleet,
        "late",
        "from fleet_consumer import Produce\n"
        "def handle(record):\n"
        "    if record.partition == 1: return Produce('threads-late', record.value)\n",
    )
    changes: dict[str, Any] = {"handler__python__callable": "late:handle", "handler__outputs": ["threads-late"]}
    with fleet.worker(handler__concurrency=4, handler__decode__value="Bytes", **changes) as worker:
        worker.wait_ready()
        kafka.produce(fleet.source, [b"1", b"2"], partition=1)
        kafka.produce(fleet.source, [b"3", b"4"], partition=2)
        paused = eventually(lambda: worker.member()["paused"], what="a partition to be paused")
        assert paused == [{"topic": "threads-held", "partition": 1, "reasons": ["WritesHeld"]}]
        assert [(each["partition"], each["offset"]) for each in worker.member()["stuck"]] == [(1, 0)]
        eventually(lambda: kafka.committed(fleet.name, fleet.source).get(2) == 2, what="others to go on")
        assert kafka.committed(fleet.name, fleet.source).get(1, 0) == 0
        kafka.create("threads-late", partitions=1)
        fleet.wait_committed(90)
        eventually(lambda: not worker.member()["paused"], what="nothing to be paused any more")
        assert worker.terminate() == 0
    assert sorted(each.value or b"" for each in kafka.read("threads-late")) == [b"1", b"2"]


def test_stop_finishes_and_commits_started_records(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "threads-stop")
    fleet.send(*({"do": "slow", "seconds": 0.3, "n": n} for n in range(200)))
    with fleet.worker(handler__concurrency=4, drainSeconds=20) as worker:
        eventually(lambda: sum(kafka.end_offsets(fleet.output).values()) > 4, what="some to be done")
        assert worker.terminate(60) == 0
    done = fleet.origins_done()
    assert len(done) < 200
    assert sum(kafka.committed(fleet.name, fleet.source).values()) == len(done) == len(set(done))


def test_stop_does_not_wait_for_a_hung_thread_and_commits_finished_records(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "threads-stuck")
    fleet.send({"do": "ok"}, {"do": "hang"}, *({"do": "ok"} for _ in range(5)), partition=1)
    fleet.send(*({"do": "ok"} for _ in range(5)), partition=2)
    with fleet.worker(handler__concurrency=3, drainSeconds=2) as worker:
        eventually(lambda: len(fleet.origins_done()) == 11, what="all the others to be done")
        assert worker.terminate(60) == 75
        last = [line for line in worker.lines() if line["level"] == "critical"][-1]
        assert (last["message"], last["offset"]) == ("the handler did not return within the drain timeout", 1)
    committed = kafka.committed(fleet.name, fleet.source)
    assert (committed[1], committed[2]) == (1, 5)
