"""Records over messages behave as plain records in everything that a handler can do with one."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from confluent_kafka import Message

from fleet_consumer.fetch.fetched import fetched_records
from fleet_consumer.record import Record

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
    return fetched_records([message])[0]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Record)])
def test_every_field_reads_as_in_a_plain_record(field: str) -> None:
    assert getattr(fetched(), field) == getattr(PLAIN, field)


def test_it_is_a_record_and_equal_to_a_plain_one_from_both_sides() -> None:
    assert isinstance(fetched(), Record)
    assert fetched() == PLAIN
    assert PLAIN == fetched()  # noqa: SIM300 - the other side's comparison is what is tried
    assert fetched() == fetched()
    assert fetched() != dataclasses.replace(PLAIN, offset=8)
    assert fetched() != object()


def test_absent_parts_read_as_in_a_plain_record() -> None:
    bare = fetched_records([Message(topic="t", partition=0, offset=0)])[0]
    assert (bare.key, bare.value, bare.headers, bare.leader_epoch) == (None, None, (), -1)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Record)])
def test_assigned_field_changes_alone(field: str) -> None:
    record = fetched()
    setattr(record, field, "new")
    wanted = dataclasses.replace(PLAIN)
    setattr(wanted, field, "new")
    assert record == wanted
    assert type(record) is Record


def test_copies_are_plain_records() -> None:
    for made in (copy.copy(fetched()), copy.deepcopy(fetched()), pickle.loads(pickle.dumps(fetched()))):
        assert type(made) is Record
        assert made == PLAIN
    changed = dataclasses.replace(fetched(), value=b"w")
    assert (changed.value, changed.offset, type(changed)) == (b"w", 7, Record)
    assert dataclasses.asdict(fetched()) == dataclasses.asdict(PLAIN)


def test_delivery_and_text_tell_where_it_was_read() -> None:
    assert fetched().delivery == PLAIN.delivery
    assert "offset=7" in repr(fetched())


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(AttributeError):
        fetched().colour = "red"  # type: ignore[attr-defined]
