"""Fleets of readers of committed records, which see neither lag nor arrival behind an open transaction."""

from __future__ import annotations

from fleet_operator.planning.observation import HANGS_S, OpenTransaction
from fleet_operator.planning.scaling import decision as limits
from tests.unit.planning.scaling.scenes import NOW, TOPIC, Scene


def opened(stood_s: float) -> dict[tuple[str, int], OpenTransaction]:
    return {(TOPIC, 7): OpenTransaction(offset=1_000_000, since=NOW, stood_s=stood_s, end_offset=1_000_500)}


def words(scene: Scene, seconds: float) -> tuple[int, str]:
    decision = scene.pass_time(seconds)
    return decision.replicas, decision.limit


def test_fleet_does_not_sleep_while_an_open_transaction_holds_records_back() -> None:
    """For readers of committed records lag and arrival are 0 meanwhile. Fewer workers may be enough, none is not."""
    scene = Scene(spec={"minReplicas": 0}, current=4, arrival=0.0, open_transactions=opened(20.0))
    assert words(scene, 900) == (1, limits.NO_LIMIT)
    scene.open_transactions = {}
    scene.pass_time(290)
    assert scene.current == 1
    assert words(scene, 30) == (0, limits.SCALED_TO_ZERO)


def test_fleet_does_not_shrink_while_a_transaction_hangs() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=4, arrival=0.0, open_transactions=opened(HANGS_S))
    assert words(scene, 900) == (4, limits.UNKNOWN)
    assert scene.decision is not None
    assert "behind an open transaction in orders-7 is unknown" in scene.decision.reason
    scene.open_transactions = {}
    scene.pass_time(290)
    assert scene.current == 4
    assert words(scene, 30) == (0, limits.SCALED_TO_ZERO)


def test_fleet_grows_by_what_arrives_next_to_a_transaction_that_hangs() -> None:
    scene = Scene(current=4, arrival=420.0, handled=240.0, open_transactions=opened(HANGS_S))
    scene.pass_time(90)
    assert scene.current == 12


def test_sleeping_fleet_says_that_a_transaction_hangs_and_wakes_for_its_records() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=0.0, open_transactions=opened(HANGS_S))
    assert words(scene, 100) == (0, limits.UNKNOWN)
    scene.open_transactions, scene.arrival, scene.handled = {}, 100.0, 0.0
    scene.pass_time(5)
    assert scene.current > 0
