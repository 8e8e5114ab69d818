"""Columns of a run: what batches need of all records at once, with or without records."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import Message

from fleet_consumer.librdkafka import fetched
from fleet_consumer.librdkafka.fetched import FetchedRun, fetched_records
from fleet_consumer.record import Run, TopicPartition

PART = TopicPartition("t", 3)


def messages() -> list[Message]:
    fields = {"topic": "t", "partition": 3, "timestamp": (1, 1_700), "headers": None}
    return [
        Message(offset=5, key=b"a", value=b"1", **fields),  # type: ignore[arg-type]
        Message(offset=6, key=None, value=None, **fields),  # type: ignore[arg-type]
        Message(offset=9, key=b"", value=b"", **fields),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("run", [FetchedRun(PART, messages()), Run(PART, fetched_records(PART, messages()))])
def test_columns_are_those_of_the_records_and_tombstones_are_none(run: Run) -> None:
    assert run.values() == [b"1", None, b""]
    assert run.keys() == [b"a", None, b""]
    assert run.offsets() == [5, 6, 9]
    assert run.timestamps() == [1_700] * 3
    assert (len(run), run.next_offset) == (3, 10)
    assert [record.value for record in run.records] == run.values()


def test_columns_make_no_records_and_records_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def record(part: TopicPartition, run: list[Message]) -> list[object]:
        made.append(len(run))
        return list(fetched_records(part, run))

    monkeypatch.setattr(fetched, "fetched_records", record)
    run = FetchedRun(PART, messages())
    assert (len(run.values()), run.next_offset, made) == (3, 10, [])
    assert run.records is run.records
    assert made == [3]


def test_run_is_pickled_with_its_records() -> None:
    copy = pickle.loads(pickle.dumps(FetchedRun(PART, messages())))
    assert (copy.topic_partition, copy.values()) == (PART, [b"1", None, b""])
