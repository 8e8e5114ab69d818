"""Records made from librdkafka's messages, as cheaply as their use allows; its words for places and unreadable data.

This is the hot path: it runs for every record. Filling the ten fields of a `Record` at once, in a plain loop, is the
cheapest way to have them all, and too expensive for a handler that reads one or two, or skips most records. So records
begin as properties over their message: a field is read on request, at the cost of a call. Once the counted readings
show that filling costs less, records are filled from then on. The handler sees no difference but time. Decision record
0009 has the figures.

The message stands in a slot of every record, so that the class adds none of its own: only then does Python let the
record become a plain one, which it does when one of its fields is assigned. The message stays there: whatever a handler
makes of its record, `as_read` gives it as it was read.
"""

from __future__ import annotations

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
        KafkaError.UNKNOWN,  # it fails as it reads its log, and knows no word for that
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors of a partition that are about the bytes of its log, and not about who serves them.

librdkafka does not stop at such a batch: it reads on at a wrong place, and may go on at an offset that it made up
there, behind records that are good. Nothing counts that comes of the partition before it is sought.
"""


def at(partition: tuple[str, int], offset: int | None = None, epoch: int = -1) -> confluent_kafka.TopicPartition:
    """A place in a partition; `epoch` is the leader epoch of the record before it, -1 when unknown."""
    if offset is None:
        return confluent_kafka.TopicPartition(*partition)
    if epoch < 0:
        return confluent_kafka.TopicPartition(*partition, offset)
    return confluent_kafka.TopicPartition(*partition, offset, leader_epoch=epoch)


def seek(consumer: confluent_kafka.Consumer, partition: tuple[str, int], offset: int, epoch: int = -1) -> None:
    """Seek, also in a partition that librdkafka has been assigned and has not begun to read.

    It begins only when others that were taken away have stopped, and refuses to seek until then. Assigned anew it
    begins at the given offset.
    """
    try:
        consumer.seek(at(partition, offset, epoch))
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError._STATE:
            raise
        consumer.incremental_unassign([at(partition)])
        consumer.incremental_assign([at(partition, offset, epoch)])


def stand(consumer: confluent_kafka.Consumer, partition: tuple[str, int]) -> None:
    """Stop at data that cannot be read, until `read_again`."""
    consumer.pause([at(partition)])


def read_again(consumer: confluent_kafka.Consumer, partition: tuple[str, int], offset: int, epoch: int = -1) -> None:
    """Try data that could not be read once more, from `offset` on."""
    consumer.resume([at(partition)])
    seek(consumer, partition, offset, epoch)


logger = logging.getLogger(__name__)

_NO_HEADERS: Headers = ()

_ask_headers: Callable[[Any], Any] = methodcaller("headers")
"""`message.headers()`, and a SystemError when that goes wrong. The interpreter calls a method of C directly where it
can, and does not look then whether it failed in spite of an answer, as this one does: the error comes up anywhere,
later. `map` looks, and so does this; `map` costs 8 ns for each record, this 65."""

READINGS_THAT_PAY = 2.0
"""Readings of each record, on average, above which filling all fields is cheaper; measured."""
HABIT_RECORDS = 1_000
"""The number of records handed out before their readings are judged: a few readings come from the consume loop."""


@dataclasses.dataclass(slots=True, eq=False)
class Habits:
    """Counts of the fields that handlers read from messages. Only hints: threads may lose counts of each other."""

    fill: bool = False
    handed: int = 0
    readings: int = 0

    def hand_out(self, count: int) -> bool:
        """Count records that are handed out; returns whether to fill them. Once true, it stays so."""
        if not self.fill and self.handed >= HABIT_RECORDS:
            self.fill = self.readings > READINGS_THAT_PAY * self.handed
            self.handed = self.readings = 0
        self.handed += count
        return self.fill


class FetchedRecord(Record):
    """A `Record` over a message. Only `fetched_records` makes these."""

    __slots__ = ()

    habits = Habits()
    """One for the process: its handlers are of one kind."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        """Called by `dataclasses.replace`: made of fields, it is a plain record from the start."""
        self.__class__ = Record  # type: ignore[assignment]
        Record.__init__(self, *args, **fields)

    def __eq__(self, other: object) -> bool:
        _fill(self)
        return self == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(getattr(self, field.name) for field in dataclasses.fields(Record))


def as_read(record: Record) -> Record:
    """A new record as it was read, whatever was assigned to `record` since; a copy of one that was made of fields."""
    message = getattr(record, "_message", None)
    if message is None:
        return dataclasses.replace(record, headers=list(record.headers) or _NO_HEADERS)
    twin: Any = object.__new__(FetchedRecord)
    twin._message = message
    return twin  # type: ignore[no-any-return]


def fetched_records(topic_partition: TopicPartition, run: list[Message]) -> list[Record]:
    """One record for each message of a run; all are of this partition, in offset order, and none is an error."""
    if FetchedRecord.habits.hand_out(len(run)):
        return filled_records(topic_partition, run)
    # Made without their `__init__`, whose call alone would cost more than all of this.
    records: list[Any] = list(map(object.__new__, repeat(FetchedRecord, len(run))))
    for record, message in zip(records, run, strict=True):
        record._message = message
    return records


class FetchedRun(Run):
    """A run over messages: its records are made on request, its columns are read without them."""

    __slots__ = ("_messages",)

    def __init__(self, topic_partition: TopicPartition, messages: list[Message]) -> None:
        object.__setattr__(self, "topic_partition", topic_partition)
        object.__setattr__(self, "_messages", messages)

    def __getattr__(self, name: str) -> Any:
        """Called for `records` once, while that slot is empty."""
        if name != "records":
            raise AttributeError(name)
        records = fetched_records(self.topic_partition, self._messages)
        object.__setattr__(self, "records", records)
        return records

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def next_offset(self) -> int:
        """The offset to commit once all records of the run are done."""
        offset: Any = self._messages[-1].offset()
        return int(offset) + 1

    def values(self) -> list[Any]:
        """The value of each record as it was read, None for a tombstone."""
        return list(map(Message.value, self._messages))

    def keys(self) -> list[Any]:
        """The key of each record as it was read, None where there is none."""
        return list(map(Message.key, self._messages))

    def offsets(self) -> list[int]:
        found: list[Any] = list(map(Message.offset, self._messages))
        return found

    def timestamps(self) -> list[int]:
        """The timestamp of each record, in milliseconds since the epoch."""
        return [message.timestamp()[1] for message in self._messages]

    def __reduce__(self) -> tuple[type[Run], tuple[Any, ...]]:
        return Run, (self.topic_partition, self.records)


def filled_records(topic_partition: TopicPartition, run: list[Message]) -> list[Record]:
    """The same with all fields filled."""
    topic, partition = topic_partition
    no_headers = _NO_HEADERS
    # Leader epochs never fall along a partition, so a run whose ends agree has one epoch throughout.
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
        except SystemError:  # the loop goes on behind the message whose headers failed
            index = len(run) - length_hint(feed) - 1
            records[index] = _without_headers(topic_partition, run[index], epoch)
    if leader_epoch(run[-1]) != epoch:
        for record, message in zip(records, run, strict=True):
            record.leader_epoch = leader_epoch(message)
    return records


def _headers(message: Any) -> Headers:
    try:
        # A list of its own: the message gives out the same one each time, and would keep what is done to it.
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
    """Remove the headers of a message if one has a name that is no UTF-8.

    Brokers accept such names, though Kafka's protocol does not allow them. confluent-kafka fails to decode one, and
    would return its half-made list the next time: touching that ends the process.
    """
    message.set_headers([])
    logger.warning(
        "record %s-%s@%s has a header whose name is no UTF-8; it is handled without its headers",
        message.topic(),
        message.partition(),
        message.offset(),
    )


MESSAGE_BYTES = 300
"""The memory of a message besides its bytes: its object, those of key and value, and the allocator's share;
measured."""
HEADER_BYTES = 200
"""The same for a header, by the sizes of its objects: a pair, a name, a value, and their place in a list."""


def memory_bytes(message: Message) -> int:
    """About how much memory a message takes while it is kept: key, value, headers and the objects that hold them."""
    key, headers = message.key(), _headers(message)
    size = MESSAGE_BYTES + len(message) + (0 if key is None else len(key))
    return size + sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


def leader_epoch(message: Message) -> int:
    """The epoch of the leader that wrote a message, -1 when unknown."""
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
"""The reader of each field from a message."""


def _fill(record: FetchedRecord) -> None:
    """Become a plain record, with the same fields.

    Other threads may look at the record meanwhile, as the watchdog does: they find the message or the field.
    """
    FetchedRecord.habits.readings += len(_READ)
    message = record._message
    for name, read in _READ.items():
        Record.__dict__[name].__set__(record, read(message))
    record.__class__ = Record  # type: ignore[assignment]


def _field(name: str, read: Callable[[Any], Any]) -> None:
    """Make `name` a property of `FetchedRecord` that reads from the message."""
    habits = FetchedRecord.habits

    def get(record: FetchedRecord) -> Any:
        habits.readings += 1
        return read(record._message)

    def get_headers(record: FetchedRecord) -> Any:
        habits.readings += 1
        found = read(record._message)
        if not found:
            return found
        # What a handler appends to the list must be there when it looks again.
        _fill(record)
        return record.headers

    def assign(record: FetchedRecord, value: Any) -> None:
        _fill(record)
        setattr(record, name, value)

    setattr(FetchedRecord, name, property(get_headers if name == "headers" else get, assign))


for _name, _read in _READ.items():
    _field(_name, _read)
