"""The breaker's mark in commits: read strictly, and never believed for longer than is sensible."""

from __future__ import annotations

import pytest

from fleet_consumer.contract.breaker_mark import CLOSED_LIMIT_S, OPEN_LIMIT_S, breaker_mark, closed_mark, read_mark
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.breaker.pacing import MARK_S
from fleet_consumer.worker.breaker.watch import Marks

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
NOW = 1_800_000_000.0


def test_a_mark_is_read_as_it_was_written() -> None:
    assert read_mark(breaker_mark(1_800_000_030_000)) == 1_800_000_030_000


def test_a_mark_is_read_beside_others() -> None:
    assert read_mark(f"{breaker_mark(1_800_000_030_000)} fleet-reading=7") == 1_800_000_030_000
    assert read_mark(f"fleet-reading=7 {breaker_mark(1_800_000_030_000)}") == 1_800_000_030_000


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "open",
        "fleet-breaker=open;until=",
        "fleet-breaker=open;until=-5",
        "fleet-breaker=open;until=1;",
        "fleet-breaker=open;until=1x",
        "fleet-breaker=closed;until=1800000030000",
        "fleet-breaker=open;until=" + "9" * 400,
        "\x00" * 40,
    ],
)
def test_foreign_commit_metadata_is_not_a_mark(metadata: str) -> None:
    assert read_mark(metadata) is None


def test_the_latest_mark_of_all_partitions_counts_and_a_cleared_one_does_not() -> None:
    marks = Marks()
    first, second = breaker_mark(int((NOW + 10) * 1000)), breaker_mark(int((NOW + 20) * 1000))
    assert marks.take({P0: first, P1: second}, NOW) == (NOW + 20, 0.0)
    assert marks.take({P0: first, P1: ""}, NOW + 1) == (NOW + 10, 0.0)
    assert marks.take({P0: "", P1: ""}, NOW + 2) == (0.0, 0.0)


def test_mark_of_a_worker_with_a_wrong_clock_still_expires() -> None:
    marks, far = Marks(), breaker_mark(999_999_999_999_999)
    assert marks.take({P0: far}, NOW).open_until == NOW + OPEN_LIMIT_S
    assert marks.take({P0: far}, NOW + 600).open_until == NOW + OPEN_LIMIT_S


def test_closed_breaker_of_a_worker_with_a_wrong_clock_hides_no_outage_for_long() -> None:
    marks, far = Marks(), closed_mark(999_999_999_999_999)
    assert marks.take({P0: far}, NOW).closed_until == NOW + CLOSED_LIMIT_S
    assert marks.take({P0: far}, NOW + CLOSED_LIMIT_S).closed_until == 0.0


def test_majority_of_marked_partitions_decides() -> None:
    """One bad worker of several must not stop retries; what is over or silent has no say."""
    opened, closed = breaker_mark(int((NOW + 20) * 1000)), closed_mark(int((NOW + 10) * 1000))
    over = closed_mark(int((NOW - 1) * 1000))
    assert Marks().take({P0: opened, P1: closed, P2: closed}, NOW) == (0.0, NOW + 10)
    assert Marks().take({P0: opened, P1: closed}, NOW) == (0.0, NOW + 10), "somebody proves that records succeed"
    assert Marks().take({P0: opened, P1: opened, P2: closed}, NOW) == (NOW + 20, 0.0)
    assert Marks().take({P0: opened, P1: over, P2: ""}, NOW) == (NOW + 20, 0.0)
    assert Marks().take({P1: over, P2: ""}, NOW) == (0.0, 0.0)


def test_mark_of_the_longest_cooldown_counts_until_it_is_renewed() -> None:
    marks, longest = Marks(), NOW + 3_600 + MARK_S
    assert marks.take({P0: breaker_mark(int(longest * 1000))}, NOW).open_until == longest
