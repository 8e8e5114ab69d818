"""The guard of a Backfill: it pauses a run while the live group is behind."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.backfill.phase import control_of
from fleet_operator.planning.lag import Behind
from tests.unit.planning.backfill.things import backfill


@pytest.mark.parametrize(
    ("behind", "paused", "pause"),
    [
        (None, False, True),
        (Behind(59), False, False),
        (Behind(61), False, True),
        (Behind(59), True, True),
        (Behind(47), True, False),
        (Behind(3, at_least=True), False, True),
        (Behind(100, at_least=True), False, True),
    ],
)
def test_guard_pauses_above_its_limit_and_releases_well_below(behind: Any, paused: bool, pause: bool) -> None:
    body = backfill(guard={"maxLiveBehindSeconds": 60})
    guard = control_of(body, behind, at=1000.0, stop=False, paused=paused).guard
    assert guard is not None
    assert (guard.pause, bool(guard.message)) == (pause, pause)


def test_guard_changes_with_the_observation_in_steps() -> None:
    body = backfill(guard={"maxLiveBehindSeconds": 60})
    guards = [control_of(body, at=at, stop=False, paused=False).guard for at in (1005.0, 1019.0, 1020.0)]
    assert guards[0] == guards[1] != guards[2]


def test_orders_without_a_guard() -> None:
    control = control_of(backfill(rate={"recordsPerSecond": 5}), stop=True, paused=False)
    assert (control.suspend, control.records_per_second, control.guard) == (True, 5, None)
