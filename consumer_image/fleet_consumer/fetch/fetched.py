"""Records that read their fields from librdkafka's message when somebody asks.

Filling the ten fields of a `Record` costs more than everything else that happens to it between librdkafka and the
handler, and most handlers look at two or three of them. So what is handed out is a `Record` in form, whose fields are
properties over the message. To the handler there is no difference: on the first assignment to a field it fills itself
and becomes a plain `Record`.

The message stands in the slot of `value`, so that this class adds no slot of its own: only then does Python allow the
change of class.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

from confluent_kafka import Message

from fleet_consumer.record import Record

_VALUE_SLOT = Record.__dict__["value"]


class FetchedRecord(Record):
    """A `Record` over a message. Only `fetched_records` makes these."""

    __slots__ = ()

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


def fetched_records(run: list[Message]) -> list[Record]:
    """One record for each message. The loops run in C: this is the hot path."""
    records: list[Any] = list(map(object.__new__, repeat(FetchedRecord, len(run))))
    deque(map(_VALUE_SLOT.__set__, records, run), maxlen=0)
    return records


def _leader_epoch(message: Message) -> int:
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch


def _fill(record: FetchedRecord) -> None:
    """Become a plain record, with the same fields."""
    message = record._message
    headers: Any = message.headers() or ()
    record.__class__ = Record  # type: ignore[assignment]
    Record.__init__(
        record,
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers,
        _leader_epoch(message),
    )


def _field(name: str, read: Callable[[FetchedRecord], Any]) -> None:
    """Make `name` a property of `FetchedRecord`."""

    def assign(record: FetchedRecord, value: Any) -> None:
        _fill(record)
        setattr(record, name, value)

    setattr(FetchedRecord, name, property(read, assign))


_field("topic", lambda record: record._message.topic())
_field("partition", lambda record: record._message.partition())
_field("offset", lambda record: record._message.offset())
_field("timestamp", lambda record: record._message.timestamp()[1])
_field("key", lambda record: record._message.key())
_field("value", lambda record: record._message.value())
_field("headers", lambda record: record._message.headers() or ())
_field("leader_epoch", lambda record: _leader_epoch(record._message))
_field("attempt", lambda record: 0)
_field("first_failed_at", lambda record: None)
