"""Records that end processes, or never come back, or have strange times: each is set aside, and named."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.broker.workers import Kafka
from tests.spark.scene import Place, Scene
from tests.spark.test_wire import apart
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

DEADLY = """
import json, os, signal, threading
from pathlib import Path
from fleet_consumer import Produce

FOLDER = Path(__file__).parent

def setup(context):
    (FOLDER / f"setup-{os.getpid()}").touch()

def teardown(context):
    (FOLDER / f"teardown-{os.getpid()}").touch()

def handle(record):
    do = record.value.get("do")
    if do == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if do == "hang":
        threading.Event().wait()
    if do == "end the executor":
        # The Python worker, its daemon, and the JVM.
        parent = os.getppid()
        for _ in range(3):
            words = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
            if "java" in os.readlink(f"/proc/{parent}/exe"):
                os.kill(parent, signal.SIGKILL)
                break
            parent = int(words[1])
        threading.Event().wait()
    return Produce("done", json.dumps({"n": record.value["n"]}))
"""


def seeded(scene: Scene, do: str) -> None:
    """A hundred records, of which the one with the number 41 is the deadly one: partition 1, offset 20."""
    scene.send(41)
    scene.send(1, first=41, do=do)
    scene.send(58, first=42)


def numbers(scene: Scene) -> list[int]:
    return sorted(json.loads(row["value"])["n"] for row in scene.rows())


OTHERS = [n for n in range(100) if n != 41]


def test_record_that_kills_its_process_is_set_aside(place: Place, tmp_path: Path) -> None:
    """It is passed by, written to the failed topic, or ends the run with its coordinates, as `onError` says."""
    with Scene(place, tmp_path, handler=DEADLY) as scene:
        seeded(scene, "die")
        scene.run(sink=scene.parquet, onError="Skip")
        assert numbers(scene) == OTHERS
        counts = scene.ledger.counts
        assert (counts.records_in, counts.failed) == (100, 1)
        assert scene.ledger.suspects == ()

        def torn_down() -> bool:
            setups, teardowns = (len(list((tmp_path / "live").glob(f"{hook}-*"))) for hook in ("setup", "teardown"))
            return setups == teardowns + 3

        eventually(torn_down, what="the teardown of each process but the three that were killed")
        scene.api.put("second", {})
        failed = f"{scene.name}-failed"
        scene.kafka.create(failed, partitions=2)
        scene.run(onError="FailedTopic", ledger="second", id="id-two")
        (written,) = scene.kafka.read(failed)
        assert (written.headers["kr-reason"], written.headers["kr-error-class"]) == (b"poison", b"Poison")
        assert written.headers["kr-origin-offset"] == b"20"
        scene.api.put("third", {})
        driver = scene.run(code=20, ledger="third", id="id-three")
        place_ = f"topic '{scene.topic}' partition 1 offset 20: Poison: the record ended the process of its handler 3"
        assert driver.result["reason"] == "HandlerFailed"
        assert place_ in driver.result["message"]


def test_record_that_never_comes_back_is_set_aside(place: Place, tmp_path: Path) -> None:
    """Its process is ended after the poll interval, as a live worker's is. The interval limits the start of the
    handler's process as well, which took longer than 3 s on a busy machine."""
    worker = {"consumer.maxPollIntervalSeconds": 10}
    with Scene(place, tmp_path, handler=DEADLY, worker=worker) as scene:
        seeded(scene, "hang")
        driver = scene.run(sink=scene.parquet, onError="Skip")
        assert numbers(scene) == OTHERS
        assert scene.ledger.counts.failed == 1
        log = driver.log.read_text()
        assert "did not return within 10 s" in log
        assert 'handler.py", line' in log, "where it hung"


def test_threads_that_hang_or_die_are_found_one_by_one(place: Place, tmp_path: Path) -> None:
    """Several calls were under way at the death; each of their records is handled alone then."""
    with Scene(place, tmp_path, handler=DEADLY, worker={"handler.concurrency": 8}) as scene:
        seeded(scene, "die")
        scene.run(sink=scene.parquet, onError="Skip")
        assert numbers(scene) == OTHERS
        assert scene.ledger.counts.failed == 1


@pytest.mark.skipif(not Path("/proc/self/exe").exists(), reason="a process finds its executor by /proc")
def test_record_that_ends_its_executor_is_found_and_set_aside(place: Place, tmp_path: Path) -> None:
    """Spark begins the task again four times on new executors; what ends the attempt names the record, and the next
    attempts hold it apart."""
    options: dict[str, Any] = apart(place.python)
    options["conf"] += " --conf spark.task.maxFailures=4 --conf spark.deploy.maxExecutorRetries=-1"
    where = Place(Kafka(place.bootstrap), place.bootstrap, place.python)
    with Scene(where, tmp_path, handler=DEADLY, **options) as scene:
        scene.send(1)
        scene.send(1, first=1, do="end the executor")
        scene.send(2, first=2)
        for attempt in (1, 2, 3):
            driver = scene.start(attempt, sink=scene.parquet, onError="Skip", parallelism=1)
            if driver.wait() == 0:
                break
            assert driver.result["reason"] == "ExecutorLost", driver.tail()
            assert "partition 1 offset 0" in driver.result["message"]
        assert numbers(scene) == [0, 2, 3]
        assert scene.ledger.counts.failed == 1
        assert scene.ledger.repeated > 0


def test_timestamps_of_other_units(place: Place, tmp_path: Path) -> None:
    """Nanoseconds in place of milliseconds, as some producers write: the record is handled as it is."""
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    with Scene(place, tmp_path, topic_config=config) as scene:
        scene.send(10)
        producer = confluent_kafka.Producer({"bootstrap.servers": place.bootstrap})
        producer.produce(scene.topic, b'{"n": 10}', partition=0, timestamp=1_764_000_000_000_000_000)
        assert producer.flush(30) == 0
        scene.run(sink=scene.parquet)
        rows = scene.rows()
        assert len(rows) == 11
        assert max(row["timestamp"] for row in rows) == 1_764_000_000_000_000_000


SLOW = """
import asyncio, json, threading
from fleet_consumer import Produce

UNDER_WAY = set()

def begun(record):
    UNDER_WAY.add((record.partition, record.offset))
    return len(UNDER_WAY)

def ended(record, calls):
    UNDER_WAY.remove((record.partition, record.offset))
    return Produce("done", json.dumps({**record.value, "calls": calls}))

async def wait(record):
    calls = begun(record)
    await asyncio.sleep(0.05)
    return ended(record, calls)

def sleep(record):
    calls = begun(record)
    threading.Event().wait(0.05)
    return ended(record, calls)
"""


@pytest.mark.parametrize("name", ["wait", "sleep"])
def test_calls_that_wait_are_under_way_at_once(place: Place, tmp_path: Path, name: str) -> None:
    """Up to 32 of them in each task, of which one at a time would make 20 records in a second."""
    python = {"callable": f"handler:{name}", "path": str(tmp_path / "live")}
    with Scene(place, tmp_path, handler=SLOW, worker={"handler.python": python, "handler.concurrency": 32}) as scene:
        scene.send(2_000)
        scene.run(sink=scene.parquet)
        assert numbers(scene) == list(range(2_000))
        assert 16 < max(json.loads(row["value"])["calls"] for row in scene.rows()) <= 32


class Echo(BaseHTTPRequestHandler):
    """An HTTP handler that returns the record's value."""

    def do_POST(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"]))
        output = {"topic": "done", "value": base64.b64encode(value).decode()}
        answer = json.dumps({"outputs": [output]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's name
        """Nothing: pytest shows what is printed."""


def test_http_handler(place: Place, tmp_path: Path) -> None:
    """It runs next to the executor as it does next to a worker."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    http = {"port": server.server_port, "path": "/", "batch": False}
    worker = {"handler.python": None, "handler.http": http, "handler.concurrency": 8}
    try:
        with Scene(place, tmp_path, worker=worker) as scene:
            scene.send(200)
            scene.run(sink=scene.parquet)
            assert sorted(json.loads(row["value"])["n"] for row in scene.rows()) == list(range(200))
    finally:
        server.shutdown()
        server.server_close()
