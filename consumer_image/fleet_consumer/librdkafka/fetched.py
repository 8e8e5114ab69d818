"""Creates records from librdkafka's messages, as cheaply as their use allows. Also has seeks, and the errors of
unreadable data.

This module is the hot path: its code runs for every record.

There are two kinds of records. A filled record has the values of all ten fields of `Record`; this is cheapest if a
handler reads all fields. A record that is not filled has properties that read each field from the message. This is
cheaper if a handler reads one or two fields, or skips most records. Records are first not filled, and the accesses to
their fields are counted. Once the count shows that filling costs less, further records are filled. Handlers notice no
difference except in speed.

When a field is assigned, a `FetchedRecord` becomes a plain `Record` by an assignment to `__class__`. Python allows this
only between classes with the same slots, so `Record` itself has the slot for the message. The message stays in its
slot, so `as_read` can return the record as it was read, whatever a handler has changed. (The alternative is
`__getattr__` on one class with empty slots, but it disables the interpreter's fast path for slots.)

Decision: docs/decisions/0009-lazy-records.md.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from itertools import repeat
from operator import length_hint, methodcaller
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from fleet_consumer.record import Headers, Record, Run, TopicPartition

UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,  # an unknown codec or format
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,  # the broker itself finds its log corrupt
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.UNKNOWN,  # the broker fails to read its log, and has no specific error code for this case
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors about the bytes of a partition's log, not about the broker that serves the log.

librdkafka does not stop at an unreadable batch. It continues in the middle of the data, and may jump to a wrong offset,
past good records. So all messages of the partition are ignored until the next seek.
"""


def at(partition: tuple[str, int], offset: int | None = None, epoch: int = -1) -> confluent_kafka.TopicPartition:
    """Convert to librdkafka's class. `epoch` is the leader epoch of the record before the position, -1 if unknown."""
    if offset is None:
        return confluent_kafka.TopicPartition(*partition)
    if epoch < 0:
        return confluent_kafka.TopicPartition(*partition, offset)
    return confluent_kafka.TopicPartition(*partition, offset, leader_epoch=epoch)


def seek(consumer: confluent_kafka.Consumer, partition: tuple[str, int], offset: int, epoch: int = -1) -> None:
    """Seek, even if librdkafka does not read the assigned partition yet. After a change of the assignment, librdkafka
    reads a new partition only after the unassigned partitions have stopped. Until then it refuses to seek, so the
    partition is unassigned, and assigned again at the offset."""
    try:
        consumer.seek(at(partition, offset, epoch))
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError._STATE:
            raise
        consumer.incremental_unassign([at(partition)])
        consumer.incremental_assign([at(partition, offset, epoch)])


def stand(consumer: confluent_kafka.Consumer, partition: tuple[str, int]) -> None:
    """Pause a partition at unreadable data, until `read_again`."""
    consumer.pause([at(partition)])


def read_again(consumer: confluent_kafka.Consumer, partition: tuple[str, int], offset: int, epoch: int = -1) -> None:
    """Resume a paused partition at `offset`, to retry unreadable data."""
    consumer.resume([at(partition)])
    seek(consumer, partition, offset, epoch)


logger = logging.getLogger(__name__)

_NO_HEADERS: Headers = ()

_ask_headers: Callable[[Any], Any] = methodcaller("headers")
"""Calls `message.headers()`, and raises SystemError if the method fails.

confluent-kafka's method may both return a value and set an error. In a direct call, the interpreter does not notice the
error, and raises it at some later point in unrelated code. Calls through `map` (8 ns per record) and through
`methodcaller` (65 ns) are checked for such an error.
"""

READS_THAT_PAY = 2.0
"""Average number of field accesses per record above which filling all fields is cheaper (measured)."""
HABIT_RECORDS = 1_000
"""Number of records whose field accesses are counted before each decision to fill fields or not. The count includes a
few accesses by the consume loop."""


@dataclasses.dataclass(slots=True, eq=False)
class Habits:
    """Counts of the fields that handlers read from messages. Approximate: concurrent increments may be lost."""

    fill: bool = False
    handed: int = 0
    reads: int = 0

    def hand_out(self, count: int) -> bool:
        """Count records before they are returned. Returns True if these and all later records should be filled."""
        if not self.fill and self.handed >= HABIT_RECORDS:
            self.fill = self.reads > READS_THAT_PAY * self.handed
            self.handed = self.reads = 0
        self.handed += count
        return self.fill


class FetchedRecord(Record):
    """A `Record` whose fields are read from its message. Only `fetched_records` and `as_read` make such records."""

    __slots__ = ()

    habits = Habits()
    """Shared by all records, because a process has handlers of one kind."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        """Make a plain record from fields; called by `dataclasses.replace`."""
        self.__class__ = Record  # type: ignore[assignment]
        Record.__init__(self, *args, **fields)

    def __eq__(self, other: object) -> bool:
        _fill(self)
        return self == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(getattr(self, field.name) for field in dataclasses.fields(Record))


def as_read(record: Record) -> Record:
    """Return the record as it was read, without later assignments. A record that has no message is copied."""
    message = getattr(record, "_message", None)
    if message is None:
        return dataclasses.replace(record, headers=list(record.headers) or _NO_HEADERS)
    twin: Any = object.__new__(FetchedRecord)
    twin._message = message
    return twin  # type: ignore[no-any-return]


def fetched_records(topic_partition: TopicPartition, run: list[Message]) -> list[Record]:
    """Make one record per message. The messages must be of this partition, in offset order, and not errors."""
    if FetchedRecord.habits.hand_out(len(run)):
        return filled_records(topic_partition, run)
    # `__init__` is not called, because the call would cost more than everything else here.
    records: list[Any] = list(map(object.__new__, repeat(FetchedRecord, len(run))))
    for record, message in zip(records, run, strict=True):
        record._message = message
    return records


class FetchedRun(Run):
    """A run of messages. Its records are made on first access; columns such as `values` are read without records."""

    __slots__ = ("_messages",)

    def __init__(self, topic_partition: TopicPartition, messages: list[Message]) -> None:
        object.__setattr__(self, "topic_partition", topic_partition)
        object.__setattr__(self, "_messages", messages)

    def __getattr__(self, name: str) -> Any:
        """Make `records` on first access. Python calls this method only while the slot of that name is empty."""
        if name != "records":
            raise AttributeError(name)
        records = fetched_records(self.topic_partition, self._messages)
        object.__setattr__(self, "records", records)
        return records

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def next_offset(self) -> int:
        offset: Any = self._messages[-1].offset()
        return int(offset) + 1

    def values(self) -> list[Any]:
        return list(map(Message.value, self._messages))

    def keys(self) -> list[Any]:
        return list(map(Message.key, self._messages))

    def offsets(self) -> list[int]:
        found: list[Any] = list(map(Message.offset, self._messages))
        return found

    def timestamps(self) -> list[int]:
        return [message.timestamp()[1] for message in self._messages]

    def __reduce__(self) -> tuple[type[Run], tuple[Any, ...]]:
        return Run, (self.topic_partition, self.records)


def filled_records(topic_partition: TopicPartition, run: list[Message]) -> list[Record]:
    """Make one record per message, with all fields filled; arguments as in `fetched_records`."""
    topic, partition = topic_partition
    no_headers = _NO_HEADERS
    # Leader epochs never decrease within a partition: if the first and the last record agree, all records have this
    # epoch.
    epoch = leader_epoch(run[0])
    records: list[Record] = list(map(object.__new__, repeat(Record, len(run))))
    message: Any
    headers: Any
    feed = iter(run)
    each = zip(records, run, map(Message.headers, feed), strict=True)
    while True:
        try:
            for record, message, headers in each:
                record._message = message
                record.topic = topic
                record.partition = partition
                record.offset = message.offset()
                _, record.timestamp = message.timestamp()
                record.key = message.key()
                record.value = message.value()
                record.headers = list(headers) if headers else no_headers
                record.leader_epoch = epoch
                record.attempt = 0
                record.first_failed_at = None
            break
        except SystemError:  # continue after the message whose headers failed
            index = len(run) - length_hint(feed) - 1
            records[index] = _without_headers(topic_partition, run[index], epoch)
    if leader_epoch(run[-1]) != epoch:
        for record, message in zip(records, run, strict=True):
            record.leader_epoch = leader_epoch(message)
    return records


def _headers(message: Any) -> Headers:
    try:
        # Return a copy: the message returns the same list each time, which would keep the handler's changes.
        return list(_ask_headers(message) or ()) or _NO_HEADERS
    except SystemError:
        _clear(message)
        return _NO_HEADERS


def _without_headers(topic_partition: TopicPartition, message: Any, epoch: int) -> Record:
    _clear(message)
    topic, partition = topic_partition
    record = Record(
        topic, partition, message.offset(), message.timestamp()[1], message.key(), message.value(), (), epoch
    )
    record._message = message
    return record


def _clear(message: Any) -> None:
    """Remove all headers of a message in which the name of a header is not UTF-8.

    Kafka's protocol does not allow such names, but brokers accept them. confluent-kafka fails to decode such a name. In
    the next call it would return an incomplete list, and using this list crashes the process.
    """
    message.set_headers([])
    logger.warning(
        "record %s-%s@%s has a header whose name is not UTF-8; the record is handled without its headers",
        message.topic(),
        message.partition(),
        message.offset(),
    )


MESSAGE_BYTES = 300
"""Memory of a message in bytes, in addition to its content: the Python objects for the message, its key and its value,
and the allocator's overhead (measured)."""
HEADER_BYTES = 200
"""Memory of a header in bytes, in addition to its content: the pair, its name and value, and the list's entry."""


def memory_bytes(message: Message) -> int:
    key, headers = message.key(), _headers(message)
    size = MESSAGE_BYTES + len(message) + (0 if key is None else len(key))
    return size + sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


def leader_epoch(message: Message) -> int:
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch


_READ: Mapping[str, Callable[[Any], Any]] = {
    "topic": Message.topic,
    "partition": Message.partition,
    "offset": Message.offset,
    "timestamp": lambda message: message.timestamp()[1],
    "key": Message.key,
    "value": Message.value,
    "headers": _headers,
    "leader_epoch": leader_epoch,
    "attempt": lambda message: 0,
    "first_failed_at": lambda message: None,
}


def _fill(record: FetchedRecord) -> None:
    """Turn `record` into a plain record with the same fields. Other threads, such as the watchdog, may read the record
    at the same time. They get each field either from the message or from the filled slot, so always with the same
    value."""
    FetchedRecord.habits.reads += len(_READ)
    message = record._message
    for name, read in _READ.items():
        Record.__dict__[name].__set__(record, read(message))
    record.__class__ = Record  # type: ignore[assignment]


def _field(name: str, read: Callable[[Any], Any]) -> None:
    """Make `name` a property of `FetchedRecord` that reads from the message."""
    habits = FetchedRecord.habits

    def get(record: FetchedRecord) -> Any:
        habits.reads += 1
        return read(record._message)

    def get_headers(record: FetchedRecord) -> Any:
        habits.reads += 1
        found = read(record._message)
        if not found:
            return found
        # If a handler appends to the list, the next access must return the same list.
        _fill(record)
        return record.headers

    def assign(record: FetchedRecord, value: Any) -> None:
        _fill(record)
        setattr(record, name, value)

    setattr(FetchedRecord, name, property(get_headers if name == "headers" else get, assign))


for _name, _read in _READ.items():
    _field(_name, _read)
