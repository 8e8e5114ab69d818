"""Records made from messages are records like any other."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from confluent_kafka import Message

from fleet_consumer.fetch.fetched import fetched_records
from fleet_consumer.record import Record, TopicPartition

PLAIN = Record("t", 3, 7, 1_700, b"k", b"v", [("h", b"1"), ("h", None)], 4)


def fetched() -> Record:
    message = Message(
        topic="t",
        partition=3,
        offset=7,
        timestamp=(1, 1_700),
        key=b"k",
        value=b"v",
        headers=[("h", b"1"), ("h", None)],
        leader_epoch=4,
    )
    return fetched_records(TopicPartition("t", 3), [message])[0]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Record)])
def test_every_field_is_filled(field: str) -> None:
    """They are made without their constructor, so a field that is added to `Record` must be filled by hand."""
    assert getattr(fetched(), field) == getattr(PLAIN, field)


def test_it_is_a_record_and_equal_to_one_that_was_made_by_hand() -> None:
    assert type(fetched()) is Record
    assert fetched() == PLAIN
    assert fetched() != dataclasses.replace(PLAIN, offset=8)
    assert fetched() != object()


def test_absent_parts_are_none_empty_and_unknown() -> None:
    bare = fetched_records(TopicPartition("t", 0), [Message(topic="t", partition=0, offset=0)])[0]
    assert (bare.key, bare.value, bare.headers, bare.leader_epoch) == (None, None, (), -1)


def test_copies_are_equal() -> None:
    for made in (copy.copy(fetched()), copy.deepcopy(fetched()), pickle.loads(pickle.dumps(fetched()))):
        assert made == PLAIN
    changed = dataclasses.replace(fetched(), value=b"w")
    assert (changed.value, changed.offset) == (b"w", 7)


def test_delivery_and_text_tell_where_it_was_read() -> None:
    assert fetched().delivery == PLAIN.delivery
    assert "offset=7" in repr(fetched())


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(AttributeError):
        fetched().colour = "red"  # type: ignore[attr-defined]
