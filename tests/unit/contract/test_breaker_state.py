"""The breaker's state in commits: read strictly, and never used for longer than is sensible."""

from __future__ import annotations

import pytest

from fleet_consumer.contract.breaker_state import (
    CLOSED_LIMIT_S,
    OPEN_LIMIT_S,
    closed_breaker_state,
    open_breaker_state,
    read_breaker_state,
)
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.breaker.pacing import STATE_S
from fleet_consumer.worker.breaker.watch import BreakerStates

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
NOW = 1_800_000_000.0


def test_a_state_is_read_as_it_was_written() -> None:
    assert read_breaker_state(open_breaker_state(1_800_000_030_000)) == 1_800_000_030_000


def test_a_state_is_read_next_to_others() -> None:
    assert read_breaker_state(f"{open_breaker_state(1_800_000_030_000)} fleet-replay-epoch=7") == 1_800_000_030_000
    assert read_breaker_state(f"fleet-replay-epoch=7 {open_breaker_state(1_800_000_030_000)}") == 1_800_000_030_000


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
def test_foreign_commit_metadata_is_not_a_state(metadata: str) -> None:
    assert read_breaker_state(metadata) is None


def test_the_latest_state_of_all_partitions_counts_and_a_cleared_one_does_not() -> None:
    states = BreakerStates()
    first, second = open_breaker_state(int((NOW + 10) * 1000)), open_breaker_state(int((NOW + 20) * 1000))
    assert states.combine({P0: first, P1: second}, NOW) == (NOW + 20, 0.0)
    assert states.combine({P0: first, P1: ""}, NOW + 1) == (NOW + 10, 0.0)
    assert states.combine({P0: "", P1: ""}, NOW + 2) == (0.0, 0.0)


def test_state_of_a_worker_with_a_wrong_clock_still_expires() -> None:
    states, far = BreakerStates(), open_breaker_state(999_999_999_999_999)
    assert states.combine({P0: far}, NOW).open_until == NOW + OPEN_LIMIT_S
    assert states.combine({P0: far}, NOW + 600).open_until == NOW + OPEN_LIMIT_S


def test_closed_breaker_of_a_worker_with_a_wrong_clock_hides_no_outage_for_long() -> None:
    states, far = BreakerStates(), closed_breaker_state(999_999_999_999_999)
    assert states.combine({P0: far}, NOW).closed_until == NOW + CLOSED_LIMIT_S
    assert states.combine({P0: far}, NOW + CLOSED_LIMIT_S).closed_until == 0.0


def test_majority_of_partitions_with_a_state_decides() -> None:
    """One bad worker of several must not stop retries; what is over or silent has no say."""
    opened, closed = open_breaker_state(int((NOW + 20) * 1000)), closed_breaker_state(int((NOW + 10) * 1000))
    over = closed_breaker_state(int((NOW - 1) * 1000))
    assert BreakerStates().combine({P0: opened, P1: closed, P2: closed}, NOW) == (0.0, NOW + 10)
    assert BreakerStates().combine({P0: opened, P1: closed}, NOW) == (0.0, NOW + 10), (
        "somebody proves that records succeed"
    )
    assert BreakerStates().combine({P0: opened, P1: opened, P2: closed}, NOW) == (NOW + 20, 0.0)
    assert BreakerStates().combine({P0: opened, P1: over, P2: ""}, NOW) == (NOW + 20, 0.0)
    assert BreakerStates().combine({P1: over, P2: ""}, NOW) == (0.0, 0.0)


def test_state_of_the_longest_cooldown_counts_until_it_is_renewed() -> None:
    states, longest = BreakerStates(), NOW + 3_600 + STATE_S
    assert states.combine({P0: open_breaker_state(int(longest * 1000))}, NOW).open_until == longest
