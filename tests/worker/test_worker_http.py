"""A handler behind HTTP next to a worker on a real broker; the handler is an HTTP server in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.local_cluster.daemons import free_ports
from tests.broker.workers import COMMAND, Fleet, Kafka, Worker, counted
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

REFUSAL = "refusal"
"""The file with the status of all answers, if it is there."""

SERVER = """
import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OUTPUT, REFUSAL = sys.argv[2], Path(sys.argv[3])

def text(value):
    return base64.b64encode(value.encode()).decode()

def judged(value, partition, offset):
    asked = json.loads(value)["do"]
    if asked == "ok":
        return {"status": 200, "outputs": [{"topic": OUTPUT, "key": text(f"{partition}-{offset}"), "value": text("x")}]}
    return {"status": {"reject": 422, "fail": 500, "busy": 503}[asked], "error": f"asked to {asked}", "retryAfter": 7}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if REFUSAL.exists() or self.path not in ("/batch", "/records"):
            status, answer = int(REFUSAL.read_text()) if REFUSAL.exists() else 404, {}
        elif self.path == "/batch":
            status = 200
            answer = {
                "results": [
                    judged(base64.b64decode(each["value"]), each["partition"], each["offset"])
                    for each in json.loads(body)["records"]
                ]
            }
        else:
            answer = judged(body, self.headers["X-Kafka-Partition"], self.headers["X-Kafka-Offset"])
            status = answer["status"]
        raw = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if status == 503:
            self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


@contextmanager
def sidecar(fleet: Fleet, port: int) -> Iterator[None]:
    script = fleet.folder / "server.py"
    script.write_text(SERVER)
    process = subprocess.Popen([sys.executable, str(script), str(port), fleet.output, str(fleet.folder / REFUSAL)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def served(fleet: Fleet, port: int, *, batch: bool = False, **changes: Any) -> Worker:
    http = {"port": port, "path": "/batch" if batch else "/records", "batch": batch}
    return fleet.worker(handler__python=None, handler__http=http, **changes)


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_statuses_decide_and_outputs_are_written(kafka: Kafka, tmp_path: Path, batch: bool) -> None:
    fleet, port = Fleet(kafka, tmp_path, f"http-{batch}".lower()), free_ports(1)[0]
    kinds = {3: "reject", 4: "fail", 5: "busy"}
    fleet.send(*({"do": kinds.get(n, "ok")} for n in range(40)), partition=1)
    kafka.produce(fleet.source, [b"no json"], partition=2)
    with sidecar(fleet, port), served(fleet, port, batch=batch, handler__concurrency=4) as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
    expected = {(1, n) for n in range(40) if n not in kinds}
    assert counted(fleet.origins_done()) == dict.fromkeys(expected, 1)
    failed = dict(zip(fleet.origins_failed(), kafka.read(fleet.failed), strict=True))
    assert {where: each.headers["kr-reason"] for where, each in failed.items()} == {
        (1, 3): b"fatal",
        (1, 4): b"exhausted",
        (1, 5): b"exhausted",
        (2, 0): b"undecodable",
    }
    assert failed[1, 3].headers["kr-error-class"] == b"HttpStatus"
    assert (failed[1, 3].headers["kr-error-message"] or b"").startswith(b"422 ")
    assert failed[2, 0].value == b"no json"


def test_worker_waits_for_a_handler_that_starts_late_or_returns(kafka: Kafka, tmp_path: Path) -> None:
    fleet, port = Fleet(kafka, tmp_path, "http-late"), free_ports(1)[0]
    fleet.send(*({"do": "ok"} for _ in range(20)))
    with served(fleet, port, handler__timeoutSeconds=1) as worker:
        eventually(lambda: worker.get("/healthz")[0] == 200, what="the worker to live")
        assert worker.get("/readyz")[0] == 503
        with sidecar(fleet, port):
            worker.wait_ready(60)
            fleet.wait_committed()
        fleet.send(*({"do": "ok"} for _ in range(20)))
        worker.wait_error("HandlerUnreachable")
        assert worker.get("/readyz")[0] == 503
        with sidecar(fleet, port):
            fleet.wait_committed()
            worker.wait_ready(60)
        assert worker.terminate() == 0
    assert set(fleet.origins_done()) == set(fleet.origins_in())
    assert fleet.origins_failed() == []


@pytest.mark.parametrize(("status", "batch"), [(404, False), (401, True)])
def test_handler_that_is_deployed_wrong_fails_no_record_and_goes_on_when_it_is_corrected(
    kafka: Kafka, tmp_path: Path, status: int, batch: bool
) -> None:
    fleet, port = Fleet(kafka, tmp_path, f"http-wrong-{status}"), free_ports(1)[0]
    fleet.send(*({"do": "ok"} for _ in range(40)))
    (tmp_path / REFUSAL).write_text(str(status))
    with sidecar(fleet, port), served(fleet, port, batch=batch) as worker:
        worker.wait_error("HandlerMisconfigured")
        assert worker.get("/readyz")[0] == 503
        (tmp_path / REFUSAL).unlink()
        fleet.wait_committed()
        worker.wait_ready(60)
        (tmp_path / REFUSAL).write_text(str(status))
        fleet.send({"do": "ok"})
        eventually(lambda: len(fleet.origins_failed()) == 1, what="the record to fail once the handler was well")
        assert worker.terminate() == 0
    assert set(fleet.origins_done()) == set(fleet.origins_in()) - set(fleet.origins_failed())


def test_output_that_is_not_listed_is_reported_and_written_once_it_is(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "unlisted")
    fleet.send({"do": "ok"}, {"do": "ok"}, partition=1)
    with fleet.worker(handler__outputs=["another"]) as worker:
        eventually(lambda: [each["reason"] for each in worker.member()["stuck"]], what="the held partition")
        (stuck,) = worker.member()["stuck"]
        assert (stuck["partition"], stuck["offset"], stuck["reason"]) == (1, 0, "OutputNotListed")
        assert "add it to `handler.outputs`" in stuck["message"]
        assert worker.terminate() == 0
    with fleet.worker() as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
    assert set(fleet.origins_done()) == {(1, 0), (1, 1)}
    assert fleet.origins_failed() == []


def test_check_passes_when_the_handler_listens(kafka: Kafka, tmp_path: Path) -> None:
    fleet, port = Fleet(kafka, tmp_path, "http-check"), free_ports(1)[0]
    changes = {"handler__python": None, "handler__http": {"port": port, "path": "/records", "batch": False}}
    (tmp_path / "worker.json").write_text(json.dumps(fleet.settings(**changes)))
    with sidecar(fleet, port):
        done = subprocess.run(
            [COMMAND, "check", "--config", str(tmp_path / "worker.json")], capture_output=True, check=False, timeout=60
        )
    assert (done.returncode, json.loads(done.stdout.splitlines()[-1])["reason"]) == (0, "CheckPassed")
