"""The breaker's mark in commits: read strictly, and never believed for longer than is sensible."""

from __future__ import annotations

import pytest

from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.breaker import MARK_S
from fleet_consumer.worker.breaker_mark import OPEN_LIMIT_S, breaker_mark, read_mark
from fleet_consumer.worker.breaker_watch import Marks

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 1_800_000_000.0


def test_a_mark_is_read_as_it_was_written() -> None:
    assert read_mark(breaker_mark(1_800_000_030_000)) == 1_800_000_030_000


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "open",
        "fleet-breaker=open;until=",
        "fleet-breaker=open;until=-5",
        "fleet-breaker=open;until=1 ",
        "fleet-breaker=closed;until=1800000030000",
        "fleet-breaker=open;until=" + "9" * 400,
        "\x00" * 40,
    ],
)
def test_what_others_write_into_their_commits_is_no_mark(metadata: str) -> None:
    assert read_mark(metadata) is None


def test_the_latest_mark_of_all_partitions_counts_and_a_cleared_one_does_not() -> None:
    marks = Marks()
    first, second = breaker_mark(int((NOW + 10) * 1000)), breaker_mark(int((NOW + 20) * 1000))
    assert marks.take({P0: first, P1: second}, NOW) == NOW + 20
    assert marks.take({P0: first, P1: ""}, NOW + 1) == NOW + 10
    assert marks.take({P0: "", P1: ""}, NOW + 2) == 0.0


def test_a_mark_of_a_worker_whose_clock_is_wrong_ends_all_the_same() -> None:
    marks, far = Marks(), breaker_mark(999_999_999_999_999)
    assert marks.take({P0: far}, NOW) == NOW + OPEN_LIMIT_S
    assert marks.take({P0: far}, NOW + 600) == NOW + OPEN_LIMIT_S


def test_mark_of_the_longest_cooldown_counts_until_it_is_renewed() -> None:
    marks, longest = Marks(), NOW + 3_600 + MARK_S
    assert marks.take({P0: breaker_mark(int(longest * 1000))}, NOW) == longest
