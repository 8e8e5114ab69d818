"""Reading of a failed topic up to its current end, and output of its records: retry history, error and counts.

Records may be damaged or hostile. Therefore `retry.headers` validates their headers, the output is escaped, and the
number of counted names is limited.
"""

import base64
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import KafkaError

from fleet_consumer.clock import Clock
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.redrive_config import Filter
from fleet_consumer.group.errors import ConsumerError, DataPlaneFailed, DataUnreadable, TopicMissing
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import consumer_config
from fleet_consumer.record import Headers, Record, TopicPartition
from fleet_consumer.redrive.selection import matches
from fleet_consumer.retry.headers import (
    ERROR_CLASS,
    ERROR_CODE,
    ERROR_MESSAGE,
    HEADER_PREFIX,
    REASON,
    RetryHistory,
    last_values,
    read,
)
from fleet_consumer.worker.commands.empty_group import without_topic
from fleet_consumer.worker.commands.options import NONE
from fleet_consumer.worker.config.settings import connection_settings

NAMES_MAX: Final = 1_000
"""Maximum number of separate counts in `Counts`. Without a limit, the writers of the topic's records could fill the
memory."""
OTHERS: Final = "(others)"
LINE_CHARACTERS_MAX: Final = 160
"""Number of characters after which a message or name is cut in the output."""
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """One record of a failed topic, with the retry history from its valid headers."""

    record: Record
    history: RetryHistory

    @property
    def place(self) -> str:
        """The record's partition and offset in the failed topic, as `show` accepts them."""
        return f"{self.record.partition}:{self.record.offset}"

    @property
    def origin(self) -> str | None:
        """The record's origin as topic:partition:offset; None if the headers contain no valid origin."""
        origin, record = self.history.origin, self.record
        # Without a valid origin in the headers, `retry.headers` returns the record's own coordinates as the origin.
        if (origin.topic, origin.partition, origin.offset) == (record.topic, record.partition, record.offset):
            return None
        return f"{origin.topic}:{origin.partition}:{origin.offset}"

    @property
    def reason(self) -> str:
        return self._header(REASON)

    @property
    def error_class(self) -> str:
        return self._header(ERROR_CLASS)

    @property
    def message(self) -> str:
        return self._header(ERROR_MESSAGE)

    def _header(self, name: str) -> str:
        value = last_values(self.record.headers).get(name)
        return NONE if value is None else value.decode("utf-8", "replace")

    def summary(self) -> dict[str, Any]:
        """Return the fields that `list --json` prints."""
        values = last_values(self.record.headers)
        return {
            "partition": self.record.partition,
            "offset": self.record.offset,
            "timestamp": self.record.timestamp,
            "origin": self.origin,
            "reason": _text(values.get(REASON)),
            "errorClass": _text(values.get(ERROR_CLASS)),
            "errorCode": _text(values.get(ERROR_CODE)),
            "errorMessage": _text(values.get(ERROR_MESSAGE)),
            "attempt": self.history.attempt,
            "firstFailedAt": self.history.first_failed_at,
            "redriveCount": self.history.redrive_count,
            "damagedHeaders": self.history.damaged,
        }

    def whole(self) -> dict[str, Any]:
        """Return the fields that `show --json` prints: all of `summary`, and the headers, key and value."""
        return {
            **self.summary(),
            "topic": self.record.topic,
            "key": _readable(self.record.key),
            "value": _readable(self.record.value),
            "headers": [{"name": name, **(_readable(value) or {"text": None})} for name, value in self.record.headers],
        }

    def line(self) -> str:
        fields = (self.place, instant(self.record.timestamp), self.origin or NONE, self.reason, self.error_class)
        message = self.message
        shown = message if len(message) <= LINE_CHARACTERS_MAX else message[:LINE_CHARACTERS_MAX] + "…"
        damaged = "  (damaged headers)" if self.history.damaged else ""
        return "  ".join(escaped(field) for field in (*fields, shown)) + damaged

    def page(self) -> Iterator[str]:
        """Yield the output lines of `show`: coordinates, `kr-` headers, other headers, key and value."""
        yield f"record    {escaped(self.record.topic)} {self.place}"
        yield f"time      {instant(self.record.timestamp)}"
        yield f"origin    {escaped(self.origin or NONE)}"
        if self.history.damaged:
            yield "damaged   some kr- headers are missing or invalid"
        ours = [(name, value) for name, value in self.record.headers if name.startswith(HEADER_PREFIX)]
        others = [(name, value) for name, value in self.record.headers if not name.startswith(HEADER_PREFIX)]
        for title, headers in (("failure", ours), ("headers", others)):
            if headers:
                yield title
                yield from _header_lines(headers)
        for title, value in (("key", self.record.key), ("value", self.record.value)):
            yield f"{title:<9} {NONE if value is None else f'{len(value)} bytes'}"
            if value:
                yield from _indented(_printable(value))


GROUPINGS: Final[Mapping[str, Callable[[FailedRecord], str]]] = {
    "reason": lambda failed: failed.reason,
    "class": lambda failed: failed.error_class,
    "hour": lambda failed: instant(failed.record.timestamp // HOUR_MS * HOUR_MS),
}
"""The groupings of `count --by`, and how each is read from a record."""


class Counts:
    """Counts records: one number for each combination of the values of the groupings `by`."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self._by = by
        self._counts: Counter[tuple[str, ...]] = Counter()

    @property
    def total(self) -> int:
        return self._counts.total()

    def add(self, failed: FailedRecord) -> None:
        """Count one record. After NAMES_MAX combinations, all further combinations share one count."""
        names = tuple(GROUPINGS[name](failed)[:LINE_CHARACTERS_MAX] for name in self._by)
        if names not in self._counts and len(self._counts) >= NAMES_MAX:
            names = (OTHERS,) * len(self._by)
        self._counts[names] += 1

    def rows(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the combinations and their counts: by time if grouped by hour, otherwise the largest count first."""
        order = sorted(self._counts.items(), key=lambda row: (-row[1], row[0]))
        if "hour" in self._by:
            at = self._by.index("hour")
            order.sort(key=lambda row: row[0][at])
        yield from order

    def line(self, names: tuple[str, ...], count: int) -> str:
        return "  ".join((f"{count:>9}", *map(escaped, names)))

    def row(self, names: tuple[str, ...], count: int) -> dict[str, Any]:
        return {**dict(zip(self._by, names, strict=True)), "count": count}


def instant(at_ms: int) -> str:
    """Format a record's timestamp in ms as a date in UTC. Returns `-` if the record has no timestamp, and the plain
    number if it is outside the range of dates."""
    if at_ms == -1:
        return NONE
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def escaped(text: str) -> str:
    """Make text safe for a terminal: replace characters that are not printable by their Python escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _readable(value: bytes | None) -> dict[str, str] | None:
    """Encode bytes for JSON without loss: as a string if they are UTF-8, otherwise as base64."""
    if value is None:
        return None
    try:
        return {"text": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def _printable(value: bytes) -> str:
    return next(iter((_readable(value) or {}).values()), "")


def _header_lines(headers: Headers) -> Iterator[str]:
    for name, value in headers:
        if value is None:
            yield f"  {escaped(name)}"
            continue
        first, *rest = _printable(value).split("\n")
        if rest:  # a value with several lines, such as a traceback
            yield f"  {escaped(name)}:"
            yield from _indented("\n".join((first, *rest)), "    ")
        else:
            yield f"  {escaped(name)}: {escaped(first)}{_as_time(name, first)}"


def _as_time(name: str, text: str) -> str:
    timed = name.startswith(HEADER_PREFIX) and name.endswith(("-at", "-timestamp", "-before"))
    return f"  ({instant(int(text))})" if timed and text.isdecimal() and len(text) <= 19 else ""


def _indented(text: str, margin: str = "  ") -> Iterator[str]:
    for line in text.split("\n"):
        yield margin + escaped(line.replace("\t", "    "))


CLIENT: Final = "fleet-consumer-failed"
HINT_NAMES_MAX: Final = 20
NAME_CHARACTERS_MAX: Final = 80
"""Number of characters after which a name is cut in the message for an empty selection. The writers of the records
choose these names."""
READ_AHEAD: Final = {"queued.max.messages.kbytes": "16384"}


class RecordMissing(ConsumerError):
    """No record exists at the requested offset."""


class FailedTopic:
    """Reads a failed topic once. `patience_s` is the longest wait for the next records in seconds."""

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
        """Return True at most once in `every_s` seconds: when the next progress message is due."""
        now = self._clock.monotonic()
        due = now >= self._reported_at + every_s
        self._reported_at = now if due else self._reported_at
        return due

    def records(self, wanted: Filter) -> Generator[FailedRecord | None]:
        """Yield the selected records, one partition after another.

        Also yields None after each batch and after each wait without records, so the caller can report progress. Raises
        TopicMissing, TopicAuthorizationFailed, DataPlaneFailed.
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
                for run in self._read_range(partition, first, end):
                    self.scanned += len(run)
                    for record in run:
                        failed = FailedRecord(record, read(record, now_ms=now_ms))
                        for names, name in ((self._reasons, failed.reason), (self._classes, failed.error_class)):
                            if len(names) < HINT_NAMES_MAX:
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
            raise DataPlaneFailed(f"topic {self._topic}: partitions {numbers} were not read, as they have no leader")

    def describe_nothing(self) -> str:
        if not self._held:
            return f"topic {self._topic} is empty: it holds no failed record"
        if not self.scanned:
            return f"none of the {self._held} records of topic {self._topic} has a time at or after --from"
        return (
            f"none of {self.scanned} records of topic {self._topic} matches; their reasons: "
            f"{_named(self._reasons)}; their error classes: {_named(self._classes)}"
        )

    def describe_strange(self) -> str:
        """Return a message if no record of the topic has a failure reason; otherwise an empty string."""
        if self._reasons != {NONE}:
            return ""
        return f"no record of topic {self._topic} has a failure reason; check that it is a failed topic"

    def one(self, partition: int, offset: int) -> FailedRecord:
        """Return the record at `offset`. Raises RecordMissing and the errors of `records`."""
        known = self._reader.partitions(self._topic)
        part = TopicPartition(self._topic, partition)
        if part not in known:
            raise RecordMissing(f"topic {self._topic} has no partition {partition}; it has {len(known)}")
        # With a single partition, `bounds` always returns its bounds or raises an error, so the key exists.
        first, end = self._reader.bounds([part])[part]
        if first <= offset < end:
            for run in self._read_range(part, offset, offset + 1):
                for record in run:
                    return FailedRecord(record, read(record, now_ms=round(self._clock.wall() * 1000)))
        holds = f"it holds offsets {first} to {end - 1}" if first < end else "it is empty"
        raise RecordMissing(f"partition {self._topic}-{partition} has no record at offset {offset}; {holds}")

    def _read_range(self, partition: TopicPartition, first: int, end: int) -> Iterator[list[Record]]:
        heard_at = self._clock.monotonic()
        for step in self._reader.read({partition: (first, end)}):
            run = step.records.get(partition, [])
            # The patience starts again after each `yield`, so the caller's own time between two steps does not count.
            if run or step.done:
                yield run
                heard_at = self._clock.monotonic()
            elif self._clock.monotonic() >= heard_at + self._patience_s:
                raise DataPlaneFailed(
                    f"partition {partition.name}: no records for {self._patience_s:g} s; its broker is unreachable"
                )
            else:
                yield []


def _named(names: set[str]) -> str:
    more = ", …" if len(names) == HINT_NAMES_MAX else ""
    return escaped(", ".join(sorted(name[:NAME_CHARACTERS_MAX] for name in names))) + more


@contextmanager
def open_topic(brokers: Brokers, topic: str, patience_s: float, clock: Clock) -> Iterator[FailedTopic]:
    """Connect to the brokers to read a failed topic. The messages of errors include the last connection error."""
    errors: list[str] = []

    def record(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            errors[:] = [f"{error.name()}: {error.str()}"]

    connection = connection_settings(brokers, CLIENT)
    # librdkafka needs a group id, and looks up the group's coordinator. It does not join the group or commit.
    config = {**consumer_config(connection, CLIENT, "read_uncommitted", READ_AHEAD), "error_cb": record}
    with BoundedReader(config, stores_offsets=False, patience_s=patience_s) as reader:
        try:
            yield FailedTopic(reader, topic, patience_s, clock)
        except TopicMissing as missing:
            raise without_topic(missing, brokers, topic, patience_s) from missing
        except DataPlaneFailed as failure:
            if not errors or isinstance(failure, DataUnreadable):
                raise
            raise DataPlaneFailed(f"{failure}; last error: {errors[0]}") from failure
