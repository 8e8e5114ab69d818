"""Workers as processes, and a view of Kafka that shares no code with them.

A worker runs as it does in a pod: the installed command, a worker.json, a pod name. Its records are read back with
librdkafka alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from e2e.local_cluster.daemons import free_ports
from fleet_consumer.contract import naming
from tests.support.kafka_topics import make_topics
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

COMMAND = str(Path(sys.executable).parent / "fleet-consumer")
READ_TIMEOUT_S = 240.0
QUIET = {"log_level": 2}
"""Brokers start and stop in these tests; librdkafka need not print that on standard error."""

HANDLER = '''
"""Does what a record's value asks for."""
import json
import threading
from pathlib import Path

from fleet_consumer import Fatal, Produce, Skip

pause = threading.Event().wait

def handle(record):
    asked = record.value["do"]
    if asked == "fail":
        raise ValueError(f"asked to fail: {record.value['n']}")
    if asked == "fatal":
        raise Fatal("asked to end")
    if asked == "skip":
        raise Skip("asked to skip")
    if asked == "elsewhere":
        return Produce("no-such-output", b"x")
    if asked == "bug":  # one of the worker's own, that a failing handler brings to light
        from fleet_consumer.worker.consume.outcomes import Outcomes

        Outcomes.raised = None
        raise ValueError("asked to fail")
    if asked == "hang":
        pause(3600)
    if asked == "wait":
        flag = Path(record.value["for"])
        flag.with_suffix(".reached").touch()
        while not flag.exists():
            pause(0.01)
    if asked == "slow":
        pause(record.value["seconds"])
    return Produce(OUTPUT, json.dumps(record.value), key=f"{record.partition}-{record.offset}")
'''


@dataclass(frozen=True, slots=True)
class Written:
    """A message of a topic, as librdkafka reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)


class Kafka:
    """The tests' own view of a broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def create(self, *topics: str, partitions: int = 4, config: Mapping[str, str] | None = None) -> None:
        """Create topics and wait until they have leaders."""
        wanted = [NewTopic(topic, partitions, 1, config=dict(config or {})) for topic in topics]
        make_topics(self._admin, wanted)

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._admin.list_topics(timeout=10).topics)

    def groups_with_members(self) -> set[str]:
        """Return the ids of all groups that somebody is a member of."""
        listed = self._admin.list_consumer_groups(request_timeout=10).result(READ_TIMEOUT_S).valid
        described = self._admin.describe_consumer_groups([each.group_id for each in listed], request_timeout=10)
        return {name for name, found in described.items() if found.result(READ_TIMEOUT_S).members}

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the records of partitions below these offsets (DeleteRecords)."""
        wanted = [confluent_kafka.TopicPartition(topic, part, offset) for part, offset in offsets.items()]
        for done in self._admin.delete_records(wanted, request_timeout=10).values():
            done.result(READ_TIMEOUT_S)

    def produce(self, topic: str, values: Iterable[bytes], *, partition: int | None = None) -> int:
        """Write values with keys; return their number."""
        producer = SureProducer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        count = 0
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        for count, value in enumerate(values, 1):
            producer.produce(topic, value, b"key-%d" % count, headers=[("trace", b"t-%d" % count)], **where)
            if count % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        return count

    def produce_keyed(self, topic: str, records: Iterable[tuple[bytes | None, bytes]]) -> None:
        """Write pairs of key and value; keys choose their partitions."""
        producer = SureProducer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for key, value in records:
            producer.produce(topic, value, key)
        assert producer.flush(60) == 0

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "tests", **QUIET})

        def probe() -> dict[int, int]:
            # The partitions of a new topic may have no stable leader yet.
            try:
                partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
                return {
                    number: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=10)[1]
                    for number in partitions
                }
            except confluent_kafka.KafkaException as error:
                raise AssertionError(f"no end offsets: {error}") from error

        try:
            return eventually(probe, timeout_s=READ_TIMEOUT_S, what=f"the leaders of {topic} to answer")
        finally:
            consumer.close()

    def read(self, topic: str) -> list[Written]:
        """Return every message that a topic holds now."""
        ends = {number: end for number, end in self.end_offsets(topic).items() if end}
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "tests", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in ends])
            found: list[Written] = []
            deadline = time.monotonic() + READ_TIMEOUT_S
            while ends:
                assert time.monotonic() < deadline, f"topic {topic} was not read to its end: {ends}"
                for message in consumer.consume(1000, 0.2):
                    assert message.error() is None, message.error()
                    number, offset = message.partition(), message.offset()
                    assert number is not None
                    assert offset is not None
                    headers: Any = message.headers() or []
                    found.append(Written(number, offset, message.key(), message.value(), dict(headers)))
                    if offset + 1 >= ends.get(number, sys.maxsize):
                        del ends[number]
            return found
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets, without joining it."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **QUIET})
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions

        def probe() -> list[confluent_kafka.TopicPartition]:
            # A fresh broker is still creating the offsets topic, and answers NOT_COORDINATOR meanwhile.
            try:
                return consumer.committed([confluent_kafka.TopicPartition(topic, n) for n in partitions], timeout=10)
            except confluent_kafka.KafkaException as error:
                raise AssertionError(f"no committed offsets: {error}") from error

        try:
            offsets = eventually(probe, timeout_s=READ_TIMEOUT_S, what=f"the coordinator of {group} to answer")
            return {each.partition: each.offset for each in offsets if each.offset >= 0}
        finally:
            consumer.close()


class Worker:
    """One `fleet-consumer run` process; `role` is `main` or `retry`. `command` starts another program in its place."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        folder: Path,
        ordinal: int = 0,
        *,
        role: str = "main",
        command: Sequence[str] = (COMMAND,),
    ) -> None:
        (self.port,) = free_ports(1)
        self.log = folder / f"worker-{self.port}.log"
        config = folder / f"worker-{self.port}.json"
        config.write_text(json.dumps({**settings, "httpPort": self.port}))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "run", "--config", str(config), *([] if role == "main" else ["--role", role])],
                stderr=log,
                stdout=log,
                env={**os.environ, "POD_NAME": f"{settings['name']}-{ordinal}", "POD_NAMESPACE": "default"},
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log.read_text())
        self._process.kill()
        self._process.wait()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page; raises OSError while nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def member(self) -> dict[str, Any]:
        """The document behind /member."""
        parsed: dict[str, Any] = json.loads(self.get("/member")[1])
        return parsed

    def wait_ready(self, timeout_s: float = 240) -> None:
        """Wait until the worker has joined."""
        eventually(lambda: self.get("/readyz")[0] == 200, timeout_s=timeout_s, what="the worker to be ready")

    def wait_error(self, reason: str, timeout_s: float = 240) -> str:
        """Wait until /member reports this reason; return its message."""

        def probe() -> str | None:
            error = self.member()["error"] or {"reason": None}
            assert error["reason"] == reason, error
            return str(error["message"])

        message = eventually(probe, timeout_s=timeout_s, what=f"/member to report {reason}")
        assert message is not None
        return message

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def terminate(self, timeout_s: float = 240) -> int:
        """Send SIGTERM, as a kubelet does; return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end on its own; return the exit code."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL, as when a node dies."""
        self._process.kill()
        self._process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


class Fleet:
    """A group with its own topics, settings and handler."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        name: str,
        *,
        partitions: int = 4,
        failed_config: Mapping[str, str] | None = None,
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        self.name = name
        self.source, self.output, self.failed = name, f"{name}-done", naming.failed_topic(name)
        kafka.create(self.source, self.output, partitions=partitions)
        kafka.create(self.failed, partitions=partitions, config=failed_config)
        (folder / "handler.py").write_text(HANDLER.replace("OUTPUT", repr(self.output)))

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return a worker.json; `changes`, with dots in names written as double underscores, replace fields."""
        settings: dict[str, Any] = {
            "version": 1,
            "namespace": "default",
            "name": self.name,
            "uid": "0d9c2f3e-7a51-4b7e-9d5e-1f6f6f4c0001",
            "groupId": self.name,
            "revision": "a1b2c3d4e5",
            "topics": [self.source],
            "topicPattern": None,
            "connection": {"bootstrapServers": [self.kafka.bootstrap], "tls": None, "sasl": None},
            "handler": {
                "python": {"callable": "handler:handle", "path": str(self.folder)},
                "http": None,
                "timeoutSeconds": 60,
                "decode": {"key": "Bytes", "value": "Json"},
                "outputs": [self.output],
                "concurrency": 1,
            },
            "consumer": {
                "protocol": "Classic",
                "assignors": ["range"],
                "sessionTimeoutSeconds": 6,
                "heartbeatIntervalSeconds": 1,
                "staticMembership": True,
                "maxPollIntervalSeconds": 300,
                "maxPollRecords": 500,
                "autoOffsetReset": "Earliest",
                "isolationLevel": "ReadUncommitted",
                "commitIntervalSeconds": 1,
                "properties": {},
            },
            "failedTopic": self.failed,
            "retry": None,
            "log": {"level": "Info", "format": "Json"},
            "skipFile": None,
            "httpPort": 0,
            "drainSeconds": 20,
        }
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = settings
            for parent in parents:
                target = target[parent]
            target[last] = value
        return settings

    def worker(self, ordinal: int = 0, *, command: Sequence[str] = (COMMAND,), **changes: Any) -> Worker:
        """Start a worker."""
        return Worker(self.settings(**changes), self.folder, ordinal, command=command)

    def send(self, *wishes: Mapping[str, Any], partition: int | None = None) -> None:
        """Write one record for each command."""
        self.kafka.produce(self.source, [json.dumps(asked).encode() for asked in wishes], partition=partition)

    def send_many(self, count: int) -> None:
        """Write so many records for plain success."""
        self.kafka.produce(self.source, (json.dumps({"do": "ok", "n": n}).encode() for n in range(count)))

    def wait_committed(self, timeout_s: float = 240) -> None:
        """Wait until everything in the source topic is committed."""
        ends = {number: end for number, end in self.kafka.end_offsets(self.source).items() if end}

        def probe() -> bool:
            committed = self.kafka.committed(self.name, self.source)
            assert {number: committed.get(number, 0) for number in ends} == ends
            return True

        eventually(probe, timeout_s=timeout_s, what=f"group {self.name} to commit everything", poll_s=0.2)

    def origins_done(self) -> list[tuple[int, int]]:
        """Origin partition and offset of each output."""
        return [_origin(each.key) for each in self.kafka.read(self.output)]

    def origins_failed(self) -> list[tuple[int, int]]:
        """Origin partition and offset of each failed record."""
        return [
            (int(each.headers["kr-origin-partition"] or b""), int(each.headers["kr-origin-offset"] or b""))
            for each in self.kafka.read(self.failed)
        ]

    def origins_in(self) -> list[tuple[int, int]]:
        """Partition and offset of each record in the source topic."""
        ends = self.kafka.end_offsets(self.source)
        return [(number, offset) for number, end in ends.items() for offset in range(end)]


def _origin(key: bytes | None) -> tuple[int, int]:
    partition, offset = (key or b"").decode().split("-")
    return int(partition), int(offset)


def counted(origins: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Count the occurrences of each origin."""
    counts: dict[tuple[int, int], int] = {}
    for origin in origins:
        counts[origin] = counts.get(origin, 0) + 1
    return counts
