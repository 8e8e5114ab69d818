"""Reading a failed topic up to the end that it has just now, in bounded memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError

from fleet_consumer.clock import Clock
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.redrive_config import Filter
from fleet_consumer.group.errors import DataPlaneFailed, DataUnreadable, TopicMissing
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import consumer_config
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.redrive.selection import matches
from fleet_consumer.worker.commands.failed_records import FailedRecord, escaped
from fleet_consumer.worker.commands.selection import NONE
from fleet_consumer.worker.config.settings import connection_settings

CLIENT: Final = "fleet-consumer-failed"
NAMES_MAX: Final = 20
NAME_CHARACTERS_MAX: Final = 80
"""Bounds of the names that are told where no record is wanted: the topic's writers decide about them."""
READ_AHEAD: Final = {"queued.max.messages.kbytes": "16384"}


class RecordMissing(Exception):
    """There is no record at the offset that was asked for."""

    reason = "RecordMissing"


class FailedTopic:
    """One failed topic, read once. `patience_s` is how long nothing may come."""

    def __init__(self, reader: BoundedReader, topic: str, patience_s: float, clock: Clock) -> None:
        self._reader = reader
        self._topic = topic
        self._patience_s = patience_s
        self._clock = clock
        self.scanned = self.total = 0
        self._held = 0
        self._reasons, self._classes = set[str](), set[str]()
        self._reported_at = clock.monotonic()

    def progress_due(self, every_s: float) -> bool:
        """True if progress was not reported for so long; then it counts as reported now."""
        now = self._clock.monotonic()
        due = now >= self._reported_at + every_s
        self._reported_at = now if due else self._reported_at
        return due

    def records(self, wanted: Filter) -> Generator[FailedRecord | None]:
        """The records that are wanted, partition by partition in their order; None now and then while none is found.

        Raises TopicMissing, TopicAuthorizationFailed, DataPlaneFailed.
        """
        partitions = self._reader.partitions(self._topic)
        bounds = self._reader.bounds(partitions)
        away = [part for part in partitions if part not in bounds]
        self._held = sum(max(0, end - first) for first, end in bounds.values())
        if wanted.from_ms is not None:
            since = self._reader.at_time(bounds, wanted.from_ms)
            bounds = {part: (max(first, since.get(part, end)), end) for part, (first, end) in bounds.items()}
        self.total = sum(max(0, end - first) for first, end in bounds.values())
        now_ms = round(self._clock.wall() * 1000)
        unreadable: list[DataUnreadable] = []
        for partition, (first, end) in sorted(bounds.items()):
            try:
                for run in self._read(partition, first, end):
                    self.scanned += len(run)
                    for record in run:
                        failed = FailedRecord.of(record, now_ms)
                        for names, name in ((self._reasons, failed.reason), (self._classes, failed.error_class)):
                            if len(names) < NAMES_MAX:
                                names.add(name)
                        if matches(wanted, record):
                            yield failed
                    yield None
            except DataUnreadable as error:
                unreadable.append(error)
        if unreadable:
            raise DataUnreadable("; ".join(map(str, unreadable)))
        if away:
            numbers = ", ".join(str(part.partition) for part in away)
            raise DataPlaneFailed(f"topic {self._topic}: partitions {numbers} were not read, as their leaders are away")

    def describe_nothing(self) -> str:
        """The reason why no record was found."""
        if not self._held:
            return f"topic {self._topic} is empty: it holds no failed record"
        if not self.scanned:
            return f"none of the {self._held} records of topic {self._topic} is as new as that"
        return (
            f"none of {self.scanned} records of topic {self._topic} is wanted; their reasons: "
            f"{_named(self._reasons)}; their error classes: {_named(self._classes)}"
        )

    def describe_strange(self) -> str:
        """A word about a topic without any failed record; empty for others."""
        if self._reasons != {NONE}:
            return ""
        return f"no record of topic {self._topic} has a reason of failure: is it a failed topic?"

    def one(self, partition: int, offset: int) -> FailedRecord:
        """One record. Raises RecordMissing, and as `records`."""
        known = self._reader.partitions(self._topic)
        part = TopicPartition(self._topic, partition)
        if part not in known:
            raise RecordMissing(f"topic {self._topic} has no partition {partition}; it has {len(known)}")
        # That of one partition is there, or has been raised.
        first, end = self._reader.bounds([part])[part]
        if first <= offset < end:
            for run in self._read(part, offset, offset + 1):
                for record in run:
                    return FailedRecord.of(record, round(self._clock.wall() * 1000))
        holds = f"it holds offsets {first} to {end - 1}" if first < end else "it is empty"
        raise RecordMissing(f"partition {self._topic}-{partition} has no record at offset {offset}; {holds}")

    def _read(self, partition: TopicPartition, first: int, end: int) -> Iterator[list[Record]]:
        heard_at = self._clock.monotonic()
        for step in self._reader.read({partition: (first, end)}):
            run = step.records.get(partition, [])
            # The time that the caller takes with what it got does not count.
            if run or step.done:
                yield run
                heard_at = self._clock.monotonic()
            elif self._clock.monotonic() >= heard_at + self._patience_s:
                name = f"{partition.topic}-{partition.partition}"
                raise DataPlaneFailed(f"partition {name}: nothing came for {self._patience_s:g} s; its broker is away")
            else:
                yield []


def _named(names: set[str]) -> str:
    more = ", …" if len(names) == NAMES_MAX else ""
    return escaped(", ".join(sorted(name[:NAME_CHARACTERS_MAX] for name in names))) + more


@contextmanager
def open_topic(brokers: Brokers, topic: str, patience_s: float, clock: Clock) -> Iterator[FailedTopic]:
    """Connect; a failure names the last error of the connections."""
    errors: list[str] = []

    def note(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            errors[:] = [f"{error.name()}: {error.str()}"]

    connection = connection_settings(brokers, CLIENT)
    # librdkafka wants a group's name, and asks who coordinates it; nothing joins it and nothing is stored in it.
    config = {**consumer_config(connection, CLIENT, "read_uncommitted", READ_AHEAD), "error_cb": note}
    with BoundedReader(config, stores_offsets=False, patience_s=patience_s) as reader:
        try:
            yield FailedTopic(reader, topic, patience_s, clock)
        except TopicMissing as missing:
            made = "it is made once the group has retries or a failed record"
            raise TopicMissing(f"{missing}; {made}") from missing
        except DataPlaneFailed as failure:
            if not errors or isinstance(failure, DataUnreadable):
                raise
            raise DataPlaneFailed(f"{failure}; last error: {errors[0]}") from failure
