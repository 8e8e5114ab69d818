"""The driver's look at the brokers: what passes is waited for, what is gone is an end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

import pytest

from fleet_consumer.backfill import brokers_view
from fleet_consumer.backfill.brokers_view import MISSING_TRIES, TRIES, BrokersView
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.group.errors import DataPlaneFailed, TopicMissing
from fleet_consumer.record import TopicPartition
from tests.unit.backfill.documents import backfill_document

Answer = dict[int, tuple[int, int]] | Exception


class Reader:
    """A stand-in for librdkafka at the process's border; it gives one answer after the other."""

    answers: Iterator[Answer]

    def __init__(self, *_: object, **__: object) -> None:
        self._answer = next(type(self).answers)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None: ...

    def partitions(self, topic: str) -> list[TopicPartition]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return [TopicPartition(topic, 0)]

    def bounds(self, asked: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        assert not isinstance(self._answer, Exception)
        return {each: self._answer[each.partition] for each in asked if each.partition in self._answer}


def look(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> list[float]:
    """Look once for offsets 5 to 9; the pauses that were made."""
    pauses: list[float] = []
    monkeypatch.setattr(Reader, "answers", iter(answers), raising=False)
    monkeypatch.setattr(brokers_view, "BoundedReader", Reader)
    config = parse_config(backfill_document())
    BrokersView(config, wait=pauses.append).check([TaskRange(0, 5, 9)])
    return pauses


MOVED = DataPlaneFailed("topic orders: UNKNOWN_LEADER_EPOCH: Leader epoch is newer")


@pytest.mark.parametrize("passing", [MOVED, {}], ids=["an error", "no leader"])
def test_look_is_repeated_while_leaders_move(monkeypatch: pytest.MonkeyPatch, passing: Answer) -> None:
    assert len(look(monkeypatch, passing, passing, {0: (0, 9)})) == 2


def test_brokers_that_do_not_come_back_end_the_attempt_and_not_the_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackfillFailed, match="UNKNOWN_LEADER_EPOCH") as raised:
        look(monkeypatch, *[MOVED] * TRIES)
    assert not raised.value.final


def test_topic_that_stays_away_ends_the_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackfillFailed) as raised:
        look(monkeypatch, *[TopicMissing("topic 'orders' does not exist")] * MISSING_TRIES)
    assert (raised.value.reason, raised.value.final) == ("SourceTopicNotFound", True)


def test_records_that_retention_has_taken_end_the_backfill_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackfillFailed, match="the log begins at 6") as raised:
        look(monkeypatch, {0: (6, 9)})
    assert (raised.value.reason, raised.value.final) == ("RangeExpired", True)
