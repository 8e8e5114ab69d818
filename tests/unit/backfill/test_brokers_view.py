"""The driver's query of the brokers: what passes is waited for, what is gone is an end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any
from uuid import UUID

import pytest

from fleet_consumer.backfill import brokers_view
from fleet_consumer.backfill.brokers_view import MISSING_TRIES, TRIES, BrokersView
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.group.errors import DataPlaneFailed, TopicMissing
from fleet_consumer.net import RequestTimedOut
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.wire.topics import MetadataResponse, MetadataResponseTopic
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


Named = tuple[str | None, UUID] | Exception


class Client:
    """A stand-in for the connection to brokers of which each names its cluster and the topic's id, or does not answer;
    the last answer is given again and again."""

    names: list[Named]

    def __init__(self, *_: object, **__: object) -> None: ...

    def metadata(self, topics: tuple[str, ...], *, timeout_s: float) -> MetadataResponse:
        named = self.names.pop(0) if len(self.names) > 1 else self.names[0]
        if isinstance(named, Exception):
            raise named
        listed = [MetadataResponseTopic(error_code=0, name=name, topic_id=named[1], partitions=()) for name in topics]
        return MetadataResponse(brokers=(), cluster_id=named[0], topics=tuple(listed))

    def close(self) -> None: ...


def ask(
    monkeypatch: pytest.MonkeyPatch, *answers: Answer, names: list[Named] | None = None, **changes: Any
) -> list[float]:
    """Look once for offsets 5 to 9; the pauses that were made."""
    pauses: list[float] = []
    monkeypatch.setattr(Reader, "answers", iter(answers), raising=False)
    monkeypatch.setattr(Client, "names", names or [], raising=False)
    monkeypatch.setattr(brokers_view, "BoundedReader", Reader)
    monkeypatch.setattr(brokers_view, "NetworkClient", Client, raising=False)
    config = parse_config(backfill_document(**changes))
    BrokersView(config, wait=pauses.append).check([TaskRange(0, 5, 9)])
    return pauses


MOVED = DataPlaneFailed("topic orders: UNKNOWN_LEADER_EPOCH: Leader epoch is newer")


@pytest.mark.parametrize("passing", [MOVED, {}], ids=["an error", "no leader"])
def test_query_is_repeated_while_leaders_move(monkeypatch: pytest.MonkeyPatch, passing: Answer) -> None:
    assert len(ask(monkeypatch, passing, passing, {0: (0, 9)})) == 2


def test_brokers_that_do_not_come_back_end_the_attempt_and_not_the_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackfillFailed, match="UNKNOWN_LEADER_EPOCH") as raised:
        ask(monkeypatch, *[MOVED] * TRIES)
    assert not raised.value.final


def test_topic_that_stays_away_ends_the_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackfillFailed) as raised:
        ask(monkeypatch, *[TopicMissing("topic 'orders' does not exist")] * MISSING_TRIES)
    assert (raised.value.reason, raised.value.final) == ("SourceTopicNotFound", True)


def test_records_that_retention_has_taken_end_the_backfill_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackfillFailed, match="the log begins at 6") as raised:
        ask(monkeypatch, {0: (6, 9)})
    assert (raised.value.reason, raised.value.final) == ("RangeExpired", True)


FIRST, SECOND = UUID(int=1), UUID(int=2)
NAMED: dict[str, Any] = {"clusterId": "cluster-a", "topicId": str(FIRST)}
SAME = {0: (0, 9)}


def test_cluster_and_topic_of_the_range_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, SAME, names=[("cluster-a", FIRST)], **NAMED) == []


@pytest.mark.parametrize(
    ("names", "seen"),
    [(("cluster-b", FIRST), "cluster-b"), (("cluster-a", SECOND), str(SECOND))],
    ids=["another cluster", "a topic that was made again"],
)
def test_offsets_of_other_records_end_the_backfill(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, UUID], seen: str
) -> None:
    """They lie within the log: nothing else would tell them apart."""
    with pytest.raises(BackfillFailed, match=seen) as raised:
        ask(monkeypatch, *[SAME] * MISSING_TRIES, names=[names], **NAMED)
    assert (raised.value.reason, raised.value.final) == ("RangeLost", True)


def test_one_word_of_a_broker_that_was_away_ends_no_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may know a topic that is no more, or not yet one that is."""
    away: list[Named] = [*[RequestTimedOut("no answer")] * (TRIES - 1), ("cluster-a", SECOND)]
    with pytest.raises(BackfillFailed) as raised:
        ask(monkeypatch, *[SAME] * TRIES, names=away, **NAMED)
    assert (raised.value.reason, raised.value.final) == ("RangeLost", False)
    with pytest.raises(BackfillFailed) as raised:
        ask(monkeypatch, *[MOVED] * (TRIES - 1), TopicMissing("topic 'orders' does not exist"))
    assert (raised.value.reason, raised.value.final) == ("SourceTopicNotFound", False)


def test_broker_that_has_not_heard_of_the_topic_s_new_id_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Named] = [("cluster-a", SECOND), ("cluster-a", SECOND), ("cluster-a", FIRST)]
    assert len(ask(monkeypatch, *[SAME] * 3, names=late, **NAMED)) == 2


def test_brokers_that_do_not_say_who_they_are_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    away: list[Named] = [RequestTimedOut("no answer"), (None, ZERO_UUID), ("cluster-a", FIRST)]
    assert len(ask(monkeypatch, *[SAME] * 3, names=away, **NAMED)) == 2
    with pytest.raises(BackfillFailed) as raised:
        ask(monkeypatch, *[SAME] * TRIES, names=[("cluster-a", ZERO_UUID)], **NAMED)
    assert not raised.value.final


def test_range_without_ids_is_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was resolved by an operator that did not keep them."""
    assert ask(monkeypatch, SAME, names=[("cluster-b", SECOND)]) == []
    assert ask(monkeypatch, SAME, names=[("cluster-a", SECOND)], clusterId="cluster-a") == []
