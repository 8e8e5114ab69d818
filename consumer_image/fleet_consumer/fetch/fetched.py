"""From librdkafka's messages to records, as cheaply as what is done with them allows.

This is the hot path: what is done here is done for every record that anybody handles. Filling the ten fields of a
`Record` at once, in a plain loop, is the cheapest way to have them all. It is still dear for a handler that looks at
one or two, or passes most records by. So records begin as properties over their message: nothing is read that nobody
asks for, and each reading costs a call. Who reads gives himself away: once readings show that filling costs less,
records are filled from then on. To the handler there is no difference but time. Decision record 0009 has the figures.

In a record over a message, the message stands in the slot of `value`, so that the class adds no slot of its own: only
then does Python let the record become a plain one, which it does when a field of it is assigned.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from itertools import repeat
from operator import length_hint, methodcaller
from typing import Any

from confluent_kafka import Message

from fleet_consumer.record import Headers, Record, TopicPartition

logger = logging.getLogger(__name__)

_NO_HEADERS: Headers = ()
_VALUE_SLOT = Record.__dict__["value"]

_ask_headers: Callable[[Any], Any] = methodcaller("headers")
"""`message.headers()`, and a SystemError when that goes wrong. The interpreter calls a method of C directly where it
can, and does not look then whether it failed in spite of an answer, as this one does: the error comes up anywhere,
later. `map` looks, and so does this; `map` costs 8 ns for each record, this 65."""

READINGS_THAT_PAY = 2.0
"""Readings of each record, on average, above which filling all fields is cheaper; measured."""
HABIT_RECORDS = 1_000
"""How many records must have been handed out before their readings are judged: a few come from the consume loop."""


class Habits:
    """What handlers do with records that read from their message. Only hints: threads may lose counts of each other."""

    __slots__ = ("fill", "handed", "readings")

    def __init__(self) -> None:
        self.fill = False
        self.handed = self.readings = 0

    def hand_out(self, count: int) -> bool:
        """Note that so many records are handed out; whether they are to be filled. Once true, it stays so."""
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

    # The descriptor of the slot under a second name: the first is hidden by the property below.
    _message: Message = _VALUE_SLOT

    def __init__(self, *args: Any, **fields: Any) -> None:
        """What `dataclasses.replace` calls: made of fields, it is a plain record from the start."""
        self.__class__ = Record  # type: ignore[assignment]
        Record.__init__(self, *args, **fields)

    def __eq__(self, other: object) -> bool:
        _fill(self)
        return self == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(getattr(self, field.name) for field in dataclasses.fields(Record))


def fetched_records(topic_partition: TopicPartition, run: list[Message]) -> list[Record]:
    """One record for each message of a run; all are of this partition, in offset order, and none is an error."""
    if FetchedRecord.habits.hand_out(len(run)):
        return filled_records(topic_partition, run)
    # Made without their `__init__`, whose call alone would cost more than all that is done here.
    records: list[Any] = list(map(object.__new__, repeat(FetchedRecord, len(run))))
    for record, message in zip(records, run, strict=True):
        record._message = message
    return records


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
                record.topic = topic
                record.partition = partition
                record.offset = message.offset()
                _, record.timestamp = message.timestamp()
                record.key = message.key()
                record.value = message.value()
                record.headers = headers or no_headers
                record.leader_epoch = epoch
                record.attempt = 0
                record.first_failed_at = None
            break
        except SystemError:  # the loop goes on behind the message whose headers are in trouble
            index = len(run) - length_hint(feed) - 1
            records[index] = _without_headers(topic_partition, run[index], epoch)
    if leader_epoch(run[-1]) != epoch:
        for record, message in zip(records, run, strict=True):
            record.leader_epoch = leader_epoch(message)
    return records


def _headers(message: Any) -> Headers:
    try:
        return _ask_headers(message) or _NO_HEADERS
    except SystemError:
        _clear(message)
        return _NO_HEADERS


def _without_headers(topic_partition: TopicPartition, message: Any, epoch: int) -> Record:
    _clear(message)
    topic, partition = topic_partition
    return Record(topic, partition, message.offset(), message.timestamp()[1], message.key(), message.value(), (), epoch)


def _clear(message: Any) -> None:
    """Replace the headers of a message that has a name among them which is no UTF-8.

    Brokers take such names, though Kafka's protocol does not allow them. confluent-kafka fails to make text of one,
    and would hand out its half-made list when it is asked again: touching that ends the process.
    """
    message.set_headers([])
    logger.warning(
        "record %s-%s@%s has a header whose name is no UTF-8; it is handled without its headers",
        message.topic(),
        message.partition(),
        message.offset(),
    )


def leader_epoch(message: Message) -> int:
    """The epoch of the leader that wrote a message, -1 when the broker did not tell."""
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
"""How each field is read from a message."""


def _fill(record: FetchedRecord) -> None:
    """Become a plain record, with the same fields.

    Other threads may look at the record meanwhile, as the watchdog does: at any time there is either the message or
    the field, and the slot that holds the message is the last to change.
    """
    FetchedRecord.habits.readings += len(_READ)
    message = record._message
    for name, read in _READ.items():
        if name != "value":
            Record.__dict__[name].__set__(record, read(message))
    value = message.value()
    record.__class__ = Record  # type: ignore[assignment]
    record.value = value


def _field(name: str, read: Callable[[Any], Any]) -> None:
    """Make `name` a property of `FetchedRecord` that reads from the message."""
    habits = FetchedRecord.habits

    def get(record: FetchedRecord) -> Any:
        habits.readings += 1
        try:
            return read(record._message)
        except (TypeError, AttributeError):  # it became a plain record on another thread since we came here
            return getattr(record, name)

    def assign(record: FetchedRecord, value: Any) -> None:
        _fill(record)
        setattr(record, name, value)

    setattr(FetchedRecord, name, property(get, assign))


for _name, _read in _READ.items():
    _field(_name, _read)
