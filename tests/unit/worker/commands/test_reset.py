"""`fleet-consumer reset` and the commits that it may replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from fleet_consumer.contract.pod import EXIT_SETTINGS
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import CommitFailed, RetriableCommitFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker import cli
from fleet_consumer.worker.commands.empty_group import EmptyGroup, GroupInUse, OffsetsOvertaken
from fleet_consumer.worker.commands.reset import lines, target_of
from tests.unit.redrive.documents import NOW

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
WHERE = ("--group", "orders", "--bootstrap", "127.0.0.1:9")


class Coordinator:
    """The calls of a consumer that reach a group's coordinator; `refusal` answers a commit."""

    def __init__(self, offsets: Mapping[TopicPartition, int], refusal: Exception | None = None) -> None:
        self.offsets = {part: OffsetAndMetadata(offset) for part, offset in offsets.items()}
        self.refusal = refusal
        self.commits = 0

    def committed(self, _partitions: None, _timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return {**self.offsets, TopicPartition("other", 0): None}

    def assign(self, _partitions: Iterable[TopicPartition]) -> None:
        pass

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], _timeout_s: float) -> None:
        self.commits += 1
        if self.refusal is not None:
            raise self.refusal
        self.offsets |= offsets


def group_of(coordinator: Coordinator) -> EmptyGroup:
    return EmptyGroup(cast(Any, coordinator), "orders", 1.0)


def test_commits_are_replaced_and_others_stay() -> None:
    coordinator = Coordinator({FIRST: 5, SECOND: 7})
    group = group_of(coordinator)
    group.commit({FIRST: OffsetAndMetadata(0)}, group.committed())
    assert {part: entry.offset for part, entry in coordinator.offsets.items()} == {FIRST: 0, SECOND: 7}


def test_nothing_is_set_over_a_commit_that_came_meanwhile() -> None:
    for later in ({FIRST: 6}, {FIRST: 5, SECOND: 1}):
        coordinator = Coordinator(later)
        with pytest.raises(OffsetsOvertaken, match="nothing was set"):
            group_of(coordinator).commit(
                dict.fromkeys((FIRST, SECOND), OffsetAndMetadata(0)), {FIRST: OffsetAndMetadata(5)}
            )
        assert coordinator.commits == 0


def test_member_that_came_meanwhile_is_told_from_other_refusals() -> None:
    with pytest.raises(GroupInUse, match="members have joined group 'orders' since the check; stop them"):
        group_of(Coordinator({}, CommitFailed("unknown member"))).commit({FIRST: OffsetAndMetadata(0)}, {})
    with pytest.raises(RetriableCommitFailed):
        group_of(Coordinator({}, RetriableCommitFailed("in time"))).commit({FIRST: OffsetAndMetadata(0)}, {})


def test_commit_that_others_replaced_at_once_is_reported() -> None:
    class Overtaken(Coordinator):
        def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
            super().commit({part: OffsetAndMetadata(entry.offset + 9) for part, entry in offsets.items()}, timeout_s)

    with pytest.raises(OffsetsOvertaken, match="were set, then changed by another program"):
        group_of(Overtaken({})).commit({FIRST: OffsetAndMetadata(0)}, {})


def test_lines_have_the_commits_before_and_after() -> None:
    assert lines({SECOND: OffsetAndMetadata(7)}, {SECOND: 0, FIRST: 3}) == ["orders-0  - -> 3", "orders-1  7 -> 0"]


def test_target_is_a_word_or_a_time() -> None:
    assert [target_of(word, NOW) for word in ("earliest", "latest")] == [None, None]
    assert target_of("2h", NOW) == NOW - 7_200_000
    assert target_of("1960-01-01", NOW) == 0, "brokers take negative times for words"
    with pytest.raises(SettingsInvalid, match="--to: 'Earlier' is not a time"):
        target_of("Earlier", NOW)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["reset", *WHERE, "--to", "noon"], "SettingsInvalid: --to: 'noon' is not a time"),
        (["reset", "--group", "orders", "--to", "latest"], "SettingsInvalid: --bootstrap: is missing"),
        (["skip", "orders:3", *WHERE], "SettingsInvalid: TOPIC-PARTITION:OFFSET: is 'orders:3'"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == EXIT_SETTINGS
    assert capsys.readouterr().err.startswith(problem)
