"""One Backfill: its topic, handler and ConfigMaps, and drivers that run as processes on Spark's local master."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_consumer.contract.backfill_ledger import (
    CONTROL_KEY,
    LEDGER_KEY,
    Control,
    Ledger,
    control_text,
    parse_ledger,
)
from tests.broker.workers import Kafka
from tests.support.config_map_server import ConfigMapServer
from tests.support.spark import ensure_driver_classes, submit_arguments
from tests.support.suites import ROOT
from tests.support.waiting import eventually
from tests.support.writing import SureProducer
from tests.unit.worker.documents import worker_document

__all__ = ["Driver", "Place", "Scene", "origins"]

PARTITIONS = 2
RUN_TIMEOUT_S = 240.0
LEDGER, CONTROL = "bf-ledger", "bf-control"
READER = Path(__file__).with_name("parquet_rows.py")
_numbers = itertools.count()

HANDLER = """
import json
from fleet_consumer import Fatal, Produce, Skip

def handle(record):
    value = record.value
    if value.get("do") == "skip":
        raise Skip("asked to")
    if value.get("do") == "fail":
        raise ValueError(f"asked to fail: {value['n']}")
    if value.get("do") == "nothing":
        return None
    return Produce("done", json.dumps({**value, "seen": True}), key=record.key, headers=[("h", b"\\x00\\xff")])
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The shared parts of all scenes: Kafka, and the interpreter with Spark."""

    kafka: Kafka
    bootstrap: str
    python: Path


class Driver:
    """One attempt as a process, with its output in files; `conf` are further arguments of spark-submit."""

    def __init__(self, scene: Scene, attempt: int) -> None:
        folder, python = scene.folder, scene.place.python
        self.output = folder / f"attempt-{attempt}.out"
        self.log = folder / f"attempt-{attempt}.log"
        scratch = folder / f"scratch-{attempt}"
        scratch.mkdir(exist_ok=True)
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT / "consumer_image"),
            "PYSPARK_PYTHON": str(python),
            **submit_arguments(scratch, ensure_driver_classes(), scene.conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "FLEET_API_SERVER": scene.api.url,
            "TMPDIR": str(scratch),
            **scene.environment,
        }
        words = ["--config", str(folder / "backfill.json"), "--attempt", str(attempt), "--master", scene.master]
        with self.output.open("wb") as output, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "fleet_consumer.backfill.cli", *words],
                cwd=scratch,
                env=own,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end: {self.tail()}") from None

    def kill(self) -> None:
        """End the driver and its JVM and tasks as a node's death would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def result(self) -> dict[str, Any]:
        """Its last word."""
        lines = self.output.read_text().strip().splitlines()
        assert lines, self.tail()
        found = json.loads(lines[-1])
        assert isinstance(found, dict)
        return found

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-6000:]


@dataclass
class Scene:
    """A context manager. `changes` go into backfill.json, `worker` into its worker.json."""

    place: Place
    folder: Path
    changes: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)
    handler: str = HANDLER
    partitions: int = PARTITIONS
    topic_config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    master: str = "local[2]"
    conf: str = ""

    def __post_init__(self) -> None:
        self.name = f"bf-{os.getpid()}-{next(_numbers)}"
        self.topic = f"{self.name}-topic"
        self.api = ConfigMapServer()
        self.sink = self.folder / "sink"
        self.drivers: list[Driver] = []
        self.kafka = self.place.kafka
        (self.folder / "live").mkdir(parents=True)
        (self.folder / "live" / "handler.py").write_text(self.handler)
        self.kafka.create(self.topic, partitions=self.partitions, config=self.topic_config)

    def __enter__(self) -> Scene:
        self.api.start()
        self.api.put(LEDGER, {})
        self.set_control(Control())
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.drivers:
            driver.kill()
        self.api.close()

    @property
    def id(self) -> str:
        """The Backfill's id."""
        return f"id-{self.name}"

    @property
    def parquet(self) -> dict[str, Any]:
        """A sink of files."""
        return {"topic": None, "parquet": str(self.sink)}

    def document(self, **changes: Any) -> dict[str, Any]:
        """backfill.json."""
        worker = worker_document(
            topics=[self.topic],
            groupId=self.name,
            connection={"bootstrapServers": [self.place.bootstrap], "tls": None, "sasl": None},
            handler={
                "python": {"callable": "handler:handle", "path": str(self.folder / "live")},
                "http": None,
                "timeoutSeconds": 60,
                "decode": {"key": "Bytes", "value": "Json"},
                "outputs": ["done"],
                "concurrency": 1,
            },
            failedTopic=f"{self.name}-failed",
            skipFile=None,
        )
        own = {
            "version": 1,
            "id": self.id,
            "name": self.name,
            "namespace": "default",
            "worker": _merged(worker, self.worker),
            "topic": self.topic,
            "ranges": {str(part): [0, end] for part, end in self.kafka.end_offsets(self.topic).items()},
            "filter": {"keyRegex": None, "headerEquals": {}, "fromTime": None, "toTime": None},
            "ordering": "Partition",
            "sliceRecords": 100_000,
            "sliceSeconds": 30,
            "onError": "Fail",
            "parallelism": 2,
            "sink": {"topic": None, "parquet": None},
            "compare": None,
            "ledger": LEDGER,
            "control": CONTROL,
        }
        return _merged(_merged(own, self.changes), changes)

    def send(self, count: int, *, first: int = 0, **fields: Any) -> None:
        """Write records of `{"n": n, **fields}`, key `k<n>`, in turns over the partitions."""
        settings = {"bootstrap.servers": self.place.bootstrap, "linger.ms": 20, "message.max.bytes": 20_000_000}
        producer = SureProducer(settings)
        for number in range(first, first + count):
            value = json.dumps({"n": number, **fields}).encode()
            headers: list[tuple[str, str | bytes | None]] = [("n", str(number).encode()), ("none", None)]
            where = number % self.partitions
            producer.produce(self.topic, value, f"k{number}".encode(), partition=where, headers=headers)
            producer.poll(0)
        assert producer.flush(60) == 0

    def start(self, attempt: int = 1, **changes: Any) -> Driver:
        """Start an attempt; `changes` are those of backfill.json for this one."""
        (self.folder / "backfill.json").write_text(json.dumps(self.document(**changes)))
        driver = Driver(self, attempt)
        self.drivers.append(driver)
        return driver

    def run(self, attempt: int = 1, *, code: int = 0, **changes: Any) -> Driver:
        """Run an attempt to its end."""
        driver = self.start(attempt, **changes)
        assert driver.wait() == code, f"{driver.output.read_text()}\n{driver.tail()}"
        return driver

    def set_control(self, control: Control) -> None:
        """Write the control as the operator does."""
        self.api.put(CONTROL, {CONTROL_KEY: control_text(control)})

    @property
    def ledger(self) -> Ledger:
        """The stored ledger."""
        text = self.api.data(LEDGER).get(LEDGER_KEY)
        assert text is not None, "no ledger yet"
        return parse_ledger(text)

    def await_ledger(self, holds: Callable[[Ledger], bool], what: str) -> Ledger:
        """Wait until the stored ledger is so."""

        def probe() -> Ledger | None:
            ledger = self.ledger
            return ledger if holds(ledger) else None

        found = eventually(probe, what=what)
        assert found is not None
        return found

    def rows(self, folder: str = "", *, of: str | None = None) -> list[dict[str, Any]]:
        """The rows of the Parquet files in a folder below the Backfill's own, or that of another id; binary columns as
        latin-1 text."""
        path = self.sink / (of or self.id) / folder
        words = [str(self.place.python), str(READER), str(path)]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
        return [json.loads(line) for line in done.stdout.splitlines()]


def origins(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """The sorted input coordinates of rows."""
    return sorted((row["partition"], row["offset"]) for row in rows)


def every(ends: Mapping[int, int]) -> list[tuple[int, int]]:
    """All places of a topic."""
    return [(part, offset) for part in sorted(ends) for offset in range(ends[part])]


def _merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The document with dotted or plain fields replaced."""
    merged = dict(document)
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        merged[head] = _merged(merged[head], {rest: value}) if rest else value
    return merged
