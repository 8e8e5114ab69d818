"""A group with its retry flow: topics as the operator creates them, policies as it mounts them, workers as processes.

The handler of these workers acts by a record's value and writes down each delivery, so a test knows each call and its
time. The results are read back with librdkafka alone.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from fleet_consumer.contract import naming
from tests.broker.retry_fleet import MESSAGE_BYTES_MAX, RetryFleet
from tests.broker.workers import QUIET, Kafka, Worker, Written
from tests.support.metrics import sample
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

HANDLER = '''
"""Does what a record's value asks for, and writes down each delivery."""
import json
import os
import threading
import time
from pathlib import Path

from fleet_consumer import Fatal, RetryAfter, Skip

FOLDER = Path(FOLDER_NAME)
DOWN = FOLDER / "down"
LOG = os.open(FOLDER / f"deliveries-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pause = threading.Event().wait


def handle(record):
    at_ms = time.time() * 1000
    asked = parsed(record.value)
    read = record.delivery
    call = [
        asked.get("n"), record.topic, record.partition, record.offset, record.timestamp, record.attempt,
        record.first_failed_at, read.topic, read.partition, read.offset, read.timestamp, at_ms,
    ]
    os.write(LOG, (json.dumps(call) + "\\n").encode())
    if asked.get("slow"):
        pause(asked["slow"])
    do = asked.get("do")
    if do == "fail":
        raise ValueError(f"asked to fail: {asked.get('n')}")
    if do == "fail-until" and record.attempt < asked["attempt"]:
        raise ValueError(f"asked to fail until {asked['attempt']}")
    if do == "fatal":
        raise Fatal("asked to end")
    if do == "skip":
        raise Skip("asked to skip")
    if do == "later" and record.attempt == 0:
        raise RetryAfter(asked["seconds"])
    if do == "downstream" and DOWN.exists():
        raise ConnectionError("the service does not answer")
    if do == "fail-once" and claim(asked["n"]):
        raise ValueError("asked to fail once")


def parsed(value):
    if isinstance(value, dict):
        return value
    try:
        asked = json.loads(value)
    except (TypeError, ValueError):
        return {}
    return asked if isinstance(asked, dict) else {}


def claim(n):
    """Whether nobody else, in any process, has had this record before."""
    try:
        os.close(os.open(FOLDER / f"once-{n}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
'''


@dataclass(frozen=True, slots=True)
class Delivered:
    """One call of the handler: origin, attempt, place of reading, and time (milliseconds since the epoch)."""

    n: int | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    attempt: int
    first_failed_at: int | None
    read_topic: str
    read_partition: int
    read_offset: int
    appended_ms: int
    at_ms: float

    @property
    def origin(self) -> tuple[str, int, int, int]:
        return (self.topic, self.partition, self.offset, self.timestamp)

    def due_ms(self, group: str) -> int:
        """The due time of this delivery; at once on the main topic and the redrive topic."""
        prefix = naming.retry_topic(group, "")
        delay = self.read_topic.removeprefix(prefix)
        return self.appended_ms + (0 if delay == self.read_topic else 1000 * naming.parse_delay(delay))


def metric(worker: Worker, name: str, **labels: str) -> float:
    """A worker's metric, 0 while it has no sample; `name` is without the prefix, and is one that workers have."""
    page, whole = worker.get("/metrics")[1], f"consumer_fleet_worker_{name}"
    assert f"# TYPE {whole} " in page, f"workers have no metric {whole}"
    return sample(page, whole, **labels) or 0.0


def answered(future: Any) -> Any:
    """A broker's answer; raises an AssertionError, which `eventually` repeats, without one."""
    try:
        return future.result(15)
    except confluent_kafka.KafkaException as error:
        raise AssertionError(f"no answer: {error}") from error


class Flow(RetryFleet):
    """One group with a unique name and the handler above."""

    _numbers = itertools.count()

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        *sequence: str,
        partitions: int = 2,
        **policy: Any,
    ) -> None:
        name = f"flow-{os.getpid()}-{next(self._numbers)}"
        super().__init__(kafka, folder, name, sequence=sequence, partitions=partitions, **policy)
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
        (folder / "handler.py").write_text(HANDLER.replace("FOLDER_NAME", repr(str(folder))))
        made = {f"retry.{delay}" for delay in sequence} | {"failed", "redrive"}
        # A broker reports a new topic a moment after its creation.
        eventually(lambda: self.managed() == made, timeout_s=30, what=f"the topics of {name}")

    @property
    def group(self) -> str:
        return self.name

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Dynamic members, which others can replace at once, and handlers that get bytes."""
        ours = {"consumer__staticMembership": False, "handler__decode__value": "Bytes"}
        return super().settings(**{**ours, **changes})

    def managed(self) -> set[str]:
        """The existing managed topics of the group, by the rest of their names."""
        prefix = f"{naming.RESERVED_PREFIX}{self.group}."
        return {topic.removeprefix(prefix) for topic in self.kafka.topics() if topic.startswith(prefix)}

    def made(self, delay: str) -> None:
        """Give policies this delay without its topic, as if a user had deleted it."""
        self._made.add(delay)

    def put(self, wishes: Iterable[Mapping[str, Any]], *, partition: int | None = 0) -> None:
        """Write a record with a key for each command to the source, all into one partition unless it is None."""
        self.kafka.produce(self.source, [json.dumps(asked).encode() for asked in wishes], partition=partition)

    def source_records(self) -> list[Written]:
        """The records of the source."""
        return self.kafka.read(self.source)

    def write(self, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records as they are given: `value`, `key`, `headers`, `partition`."""
        limits = {"message.max.bytes": 4_000_000, "batch.size": MESSAGE_BYTES_MAX}
        producer = SureProducer({"bootstrap.servers": self.kafka.bootstrap, **limits})
        refused: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        for record in records:
            producer.produce(topic, on_delivery=delivered, **record)
        assert producer.flush(60) == 0
        assert not refused, refused[0]

    def deliveries(self) -> list[Delivered]:
        """Every call of the handler so far, in all processes, by time."""
        found: list[Delivered] = []
        for log in self.folder.glob("deliveries-*.jsonl"):
            # A line that is being written right now has no end yet.
            found += [Delivered(*json.loads(line)) for line in log.read_text().split("\n")[:-1]]
        return sorted(found, key=lambda each: each.at_ms)

    def assert_none_early(self) -> list[Delivered]:
        """Assert that no delivery came before its time; return them all."""
        deliveries = self.deliveries()
        early = [each for each in deliveries if each.at_ms < each.due_ms(self.group)]
        assert not early, f"{len(early)} came early, such as {early[0]}"
        return deliveries

    def wait_deliveries(self, count: int, timeout_s: float = 240) -> list[Delivered]:
        """Wait until the handler was called so many times."""

        def probe() -> list[Delivered]:
            deliveries = self.deliveries()
            assert len(deliveries) >= count, Counter(each.read_topic for each in deliveries)
            return deliveries

        return eventually(probe, timeout_s=timeout_s, what=f"{count} deliveries", poll_s=0.2)

    def wait_failed(self, count: int, timeout_s: float = 240) -> list[Written]:
        """Wait until the failed topic holds so many records."""
        eventually(
            lambda: sum(self.kafka.end_offsets(self.failed).values()) >= count,
            timeout_s=timeout_s,
            what=f"{count} failed records",
            poll_s=0.3,
        )
        return self.kafka.read(self.failed)

    def waiting(self) -> dict[str, int]:
        """The uncommitted records of each retry topic, the redrive topic and the source."""
        retried = [self.redrive, *(self.retry_topic(delay) for delay in self.delays())]
        # Ends after commits: a record that is published again in between is then counted at its new place, and never
        # missed.
        committed = self._committed(self.group, [self.source])
        committed |= self._committed(naming.retry_group(self.group), retried)
        ends = self._ends([self.source, *retried])
        left: Counter[str] = Counter()
        for (topic, partition), end in ends.items():
            left[topic] += end - committed.get((topic, partition), 0)
        return dict(left)

    def _ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(dict.fromkeys(self._parts(topics), latest), request_timeout=10)
        return {(part.topic, part.partition): answered(future).offset for part, future in asked.items()}

    def _committed(self, group: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        # Not through the admin client: it crashes the process where there is no coordinator yet.
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": group, **QUIET})
        try:
            parts = consumer.committed(self._parts(topics), timeout=10)
        except confluent_kafka.KafkaException as error:
            raise AssertionError(f"no committed offsets: {error}") from error
        finally:
            consumer.close()
        return {(part.topic, part.partition): part.offset for part in parts if part.offset >= 0}

    def _parts(self, topics: Sequence[str]) -> list[confluent_kafka.TopicPartition]:
        return [confluent_kafka.TopicPartition(topic, number) for topic in topics for number in range(self.partitions)]

    def delays(self) -> list[str]:
        return [name.removeprefix("retry.") for name in sorted(self.managed()) if name.startswith("retry.")]

    def wait_drained(self, timeout_s: float = 240) -> None:
        """Wait until everything in the source and in the retry flow is handled and committed."""

        def probe() -> bool:
            waiting = self.waiting()
            assert not any(waiting.values()), waiting
            return True

        eventually(probe, timeout_s=timeout_s, what=f"group {self.group} to have nothing left", poll_s=0.5)

    def take_down(self) -> None:
        """Fail the service that records with `"do": "downstream"` need."""
        (self.folder / "down").touch()

    def bring_up(self) -> None:
        """Restore the service."""
        (self.folder / "down").unlink()
