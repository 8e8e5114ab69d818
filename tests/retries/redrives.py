"""A failed topic with records in it, and runs of `fleet-consumer redrive` over it.

Failed records are written here header by header, and the results are read back with librdkafka alone.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from fleet_consumer.contract import naming
from fleet_consumer.worker.commands import redrive as redrive_command
from tests.broker.retry_fleet import MANAGED, MESSAGE_BYTES_MAX
from tests.broker.workers import COMMAND, Kafka, Written
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

PARTITIONS = 4
RUN_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run: its exit code and its last line."""

    code: int
    result: Mapping[str, Any]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Selected, moved, guarded."""
        return self.result["selected"], self.result["moved"], self.result["guarded"]


class Run:
    """A `fleet-consumer redrive` process."""

    def __init__(self, config: Path) -> None:
        self._log = config.with_suffix(f".{uuid.uuid4().hex[:6]}.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [COMMAND, "redrive", "--config", str(config)], stdout=subprocess.PIPE, stderr=log
            )

    def end(self) -> Ended:
        """Wait for its end."""
        out, _ = self._process.communicate(timeout=RUN_TIMEOUT_S)
        lines = out.decode().splitlines()
        assert lines, f"no last line: {self._log.read_text()}"
        return Ended(self._process.returncode, json.loads(lines[-1]))

    def kill(self) -> None:
        """Send SIGKILL, as when a node dies."""
        self._process.kill()
        self._process.communicate(timeout=RUN_TIMEOUT_S)

    def terminate(self) -> Ended:
        """Send SIGTERM, as a kubelet does."""
        self._process.send_signal(signal.SIGTERM)
        return self.end()

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]


def redrive_settings(group: str, kafka: Kafka, *, partitions: int, **changes: Any) -> dict[str, Any]:
    """The redrive.json of a run with a unique id; fields of the filter may be given by their own names."""
    chosen: dict[str, Any] = {"reasons": [], "errorRegex": None, "keyRegex": None, "fromTime": None, "toTime": None}
    rest: dict[str, Any] = {}
    for name, value in changes.items():
        (chosen if name in chosen or name == "records" else rest)[name] = value
    return {
        "version": 1,
        "id": str(uuid.uuid4()),
        "name": "again",
        "namespace": "default",
        "groupId": group,
        "connection": {"bootstrapServers": [kafka.bootstrap], "tls": None, "sasl": None},
        "filter": chosen,
        "recordsPerSecond": None,
        "maxRecords": None,
        "dryRun": False,
        "maxRedrives": 3,
        "partitions": partitions,
        "maxMessageBytes": MESSAGE_BYTES_MAX,
        "log": {"level": "Info", "format": "Json"},
        **rest,
    }


def start_redrive(settings: Mapping[str, Any], folder: Path) -> Run:
    """Start a run with these settings, as a process."""
    return Run(settings_file(settings, folder))


def settings_file(settings: Mapping[str, Any], folder: Path) -> Path:
    """Write the settings to their own file."""
    config = folder / f"redrive-{settings['id']}.json"
    config.write_text(json.dumps(settings))
    return config


def run_redrive(settings: Mapping[str, Any], folder: Path) -> Ended:
    """Run from start to end, in this process, as the command does; the run must succeed."""
    return Ended(0, {"ok": True, **redrive_command.run_file(str(settings_file(settings, folder)), threading.Event())})


class FailedTopic:
    """The failed and redrive topics of one group, and its source topic, which no run may touch."""

    _numbers = itertools.count()

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.group = f"redrive-{os.getpid()}-{next(self._numbers)}"
        self.failed, self.redrive = naming.failed_topic(self.group), naming.redrive_topic(self.group)
        kafka.create(self.group, self.failed, self.redrive, partitions=PARTITIONS, config=MANAGED)

    def write(self, numbers: Iterable[int], **fields: Any) -> None:
        """Write a failed record for each number; `fields` as in `failed_record`."""
        self.write_records(failed_record(self.group, number, **fields) for number in numbers)

    def write_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records as librdkafka's producer takes them."""
        limits = {"message.max.bytes": 4_000_000, "batch.size": MESSAGE_BYTES_MAX}
        producer = SureProducer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 5, **limits})
        refused: list[Any] = []
        for record in records:
            producer.produce(self.failed, on_delivery=lambda e, _: refused.append(e) if e else None, **record)
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not refused, refused[0]

    def settings(self, **changes: Any) -> dict[str, Any]:
        """As `redrive_settings`."""
        return redrive_settings(self.group, self.kafka, partitions=PARTITIONS, **changes)

    def start(self, settings: Mapping[str, Any]) -> Run:
        """Start a run with these settings."""
        return start_redrive(settings, self.folder)

    def run(self, settings: Mapping[str, Any] | None = None, **changes: Any) -> Ended:
        """Run from start to end; the run must succeed."""
        return run_redrive(self.settings(**changes) if settings is None else settings, self.folder)

    def moved(self) -> list[Written]:
        """The records of the redrive topic."""
        return self.kafka.read(self.redrive)

    def moved_numbers(self) -> list[int]:
        """The numbers of the records in the redrive topic, sorted, with copies."""
        return sorted(json.loads(each.value or b"")["n"] for each in self.moved())

    def wait_moved(self, count: int) -> None:
        """Wait until the redrive topic holds at least so many records."""
        eventually(
            lambda: sum(self.kafka.end_offsets(self.redrive).values()) >= count,
            timeout_s=RUN_TIMEOUT_S,
            what=f"{count} records in the redrive topic",
        )

    def progress(self, redrive_id: str) -> dict[int, dict[str, Any]]:
        """The commits of the run's own group: its metadata for each partition, and the offset next to it."""
        group = naming.redrive_group(self.group, redrive_id)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": group})
        try:
            asked = [confluent_kafka.TopicPartition(self.failed, number) for number in range(PARTITIONS)]
            found = consumer.committed(asked, timeout=30)
            return {
                each.partition: {**json.loads(each.metadata or ""), "offset": each.offset}
                for each in found
                if each.offset >= 0
            }
        finally:
            consumer.close()


def failed_record(
    group: str,
    number: int,
    *,
    key: bytes | None = b"",
    value: bytes | None = None,
    partition: int | None = None,
    **headers: bytes | str | int | None,
) -> dict[str, Any]:
    """A failed record as a worker writes it; `headers` have underscores and no prefix, and None leaves one out."""
    values: dict[str, Any] = {
        "attempt": 6,
        "first_failed_at": 1_700_000_000_000,
        "failed_at": 1_700_000_100_000,
        "group": group,
        "policy": "standard@a1b2c3d4e5",
        "origin_topic": "flights",
        "origin_partition": number % 7,
        "origin_offset": number,
        "origin_timestamp": 1_357_034_400_000,
        "error_class": "ValueError",
        "error_message": "cancelled",
        "reason": "exhausted",
        **headers,
    }
    ours = [
        (f"kr-{name.replace('_', '-')}", text if isinstance(text, bytes) else str(text).encode())
        for name, text in values.items()
        if text is not None
    ]
    where: dict[str, Any] = {} if partition is None else {"partition": partition}
    return {
        "key": b"key-%d" % number if key == b"" else key,
        "value": json.dumps({"n": number}).encode() if value is None else value,
        "headers": [("traceparent", b"00-%d" % number), *ours],
        **where,
    }
