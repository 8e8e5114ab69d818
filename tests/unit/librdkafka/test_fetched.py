"""Records over messages, and filled ones, behave as plain records in everything that a handler can do with one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from fleet_consumer.librdkafka.fetched import (
    HABIT_RECORDS,
    FetchedRecord,
    Habits,
    as_read,
    fetched_records,
    filled_records,
)
from fleet_consumer.record import Record, TimestampType, TopicPartition

PLAIN = Record("t", 3, 7, 1_700, b"k", b"v", [("h", b"1"), ("h", None)], 4)


ONE = TopicPartition("t", 3)


def messages(count: int = 1) -> list[Message]:
    return [
        Message(
            topic="t",
            partition=3,
            offset=7 + number,
            timestamp=(1, 1_700),
            key=b"k",
            value=b"v",
            headers=[("h", b"1"), ("h", None)],
            leader_epoch=4,
        )
        for number in range(count)
    ]


def over_message() -> Record:
    return fetched_records(ONE, messages())[0]


def filled() -> Record:
    return filled_records(ONE, messages())[0]


@pytest.fixture(autouse=True)
def fresh_habits(monkeypatch: pytest.MonkeyPatch) -> Habits:
    habits = FetchedRecord.habits
    for name, value in (("fill", False), ("handed", 0), ("reads", 0)):
        monkeypatch.setattr(habits, name, value)
    return habits


@pytest.fixture(params=[over_message, filled])
def fetched(request: pytest.FixtureRequest) -> Callable[[], Record]:
    make: Callable[[], Record] = request.param
    return make


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Record)])
def test_every_field_reads_as_in_a_plain_record(fetched: Callable[[], Record], field: str) -> None:
    assert getattr(fetched(), field) == getattr(PLAIN, field)


def test_it_is_a_record_and_equal_to_a_plain_one_from_both_sides(fetched: Callable[[], Record]) -> None:
    assert isinstance(fetched(), Record)
    assert fetched() == PLAIN
    assert PLAIN == fetched()  # noqa: SIM300 - the other side's comparison is what is tried
    assert fetched() == fetched()
    assert fetched() != dataclasses.replace(PLAIN, offset=8)
    assert fetched() != object()


@pytest.mark.parametrize("make", [fetched_records, filled_records])
def test_absent_parts_read_as_in_a_plain_record(
    make: Callable[[TopicPartition, list[Message]], list[Record]],
) -> None:
    bare = make(TopicPartition("t", 0), [Message(topic="t", partition=0, offset=0)])[0]
    assert (bare.key, bare.value, bare.headers, bare.leader_epoch) == (None, None, (), -1)


@pytest.mark.parametrize("make", [fetched_records, filled_records])
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (TIMESTAMP_NOT_AVAILABLE, "NoTimestampType"),
        (TIMESTAMP_CREATE_TIME, "CreateTime"),
        (TIMESTAMP_LOG_APPEND_TIME, "LogAppendTime"),
        (7, "NoTimestampType"),
    ],
)
def test_timestamp_type_is_that_of_the_message(
    make: Callable[[TopicPartition, list[Message]], list[Record]], kind: int, wanted: str
) -> None:
    record = make(ONE, [Message(topic="t", partition=3, offset=7, timestamp=(kind, 1_700))])[0]
    assert record.timestamp_type is TimestampType(wanted)
    record.value = "decoded"
    assert record.timestamp_type == as_read(record).timestamp_type == wanted


def test_timestamp_type_is_not_known_of_records_that_were_not_read(fetched: Callable[[], Record]) -> None:
    copies = (copy.copy(fetched()), pickle.loads(pickle.dumps(fetched())), dataclasses.replace(fetched()), PLAIN)
    assert {record.timestamp_type for record in copies} == {TimestampType.NO_TIMESTAMP_TYPE}


def test_timestamp_type_is_no_field_and_reading_it_changes_nothing(
    fetched: Callable[[], Record], fresh_habits: Habits
) -> None:
    record = fetched()
    kind, reads = type(record), fresh_habits.reads
    assert record.timestamp_type is TimestampType.CREATE_TIME
    assert (type(record), fresh_habits.reads) == (kind, reads), "filled records would answer no sooner"
    assert "timestamp_type" not in dataclasses.asdict(record)
    assert "timestamp_type" not in repr(record)
    other = fetched_records(
        ONE, [Message(topic="t", partition=3, offset=7, timestamp=(2, 1_700), key=b"k", value=b"v")]
    )[0]
    other.headers, other.leader_epoch = [("h", b"1"), ("h", None)], 4
    assert (other.timestamp_type, other) == (TimestampType.LOG_APPEND_TIME, record)
    with pytest.raises(AttributeError):
        record.timestamp_type = TimestampType.CREATE_TIME  # type: ignore[misc]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Record)])
def test_assigned_field_changes_alone(fetched: Callable[[], Record], field: str) -> None:
    record = fetched()
    setattr(record, field, "new")
    wanted = dataclasses.replace(PLAIN)
    setattr(wanted, field, "new")
    assert record == wanted
    assert type(record) is Record


def test_original_record_survives_every_change_to_it(fetched: Callable[[], Record]) -> None:
    record = fetched()
    record.headers.append(("mine", b"x"))  # type: ignore[attr-defined]
    assert record.headers[-1] == ("mine", b"x"), "what a handler appends it finds again"
    for field in dataclasses.fields(Record):
        setattr(record, field.name, "new")
    read = as_read(record)
    assert read == PLAIN
    read.headers.append(("mine", b"x"))  # type: ignore[attr-defined]
    assert as_read(record) == PLAIN


def test_record_that_was_made_and_not_read_is_copied() -> None:
    copied = as_read(PLAIN)
    copied.value = b"other"
    copied.headers.append(("mine", b"x"))  # type: ignore[attr-defined]
    assert over_message() == PLAIN


def test_copies_are_plain_records(fetched: Callable[[], Record]) -> None:
    for made in (copy.copy(fetched()), copy.deepcopy(fetched()), pickle.loads(pickle.dumps(fetched()))):
        assert type(made) is Record
        assert made == PLAIN
    changed = dataclasses.replace(fetched(), value=b"w")
    assert (changed.value, changed.offset, type(changed)) == (b"w", 7, Record)
    assert dataclasses.asdict(fetched()) == dataclasses.asdict(PLAIN)


def test_delivery_and_text_name_the_place_of_reading(fetched: Callable[[], Record]) -> None:
    assert fetched().delivery == PLAIN.delivery
    assert "offset=7" in repr(fetched())


def test_unknown_attributes_are_refused(fetched: Callable[[], Record]) -> None:
    with pytest.raises(AttributeError):
        fetched().colour = "red"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("reads", "fills"), [(0, False), (1, False), (3, True), (8, True)])
def test_records_are_filled_once_their_handler_is_seen_to_read_them(reads: int, fills: bool) -> None:
    """And not because of the few reads of the loop itself."""
    fields = [field.name for field in dataclasses.fields(Record)][:reads]
    for _ in range(3):
        run = fetched_records(ONE, messages(HABIT_RECORDS))
        assert (run[0].offset, run[-1].offset) == (7, 6 + HABIT_RECORDS)
        for record in run:
            for field in fields:
                getattr(record, field)
    assert (type(fetched_records(ONE, messages())[0]) is Record) == fills


def test_handler_that_replaces_fields_gets_filled_records() -> None:
    """As decoding does; a record that becomes a plain one costs more than one that was filled."""
    for record in fetched_records(ONE, messages(HABIT_RECORDS)):
        record.value = "decoded"
    assert type(fetched_records(ONE, messages())[0]) is Record


def test_other_threads_may_look_at_a_record_while_it_becomes_a_plain_one() -> None:
    """The watchdog tells which record hangs, whatever the handler does with it just then."""
    run = fetched_records(ONE, messages(20_000))
    seen: list[tuple[int, ...]] = []
    failed: list[BaseException] = []
    here: list[Record] = [run[0]]
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                record = here[0]
                seen.append((len(record.topic), record.partition, record.attempt))
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    watcher = threading.Thread(target=read)
    watcher.start()
    try:
        for record in run:
            here[0] = record
            record.key = "decoded"
    finally:
        sys.setswitchinterval(interval)
        done.set()
        watcher.join()
    assert not failed
    assert set(seen) <= {(1, 3, 0)}
