"""Status and conditions of a group that an OffsetReset holds down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.offsets.hold import Hold
from tests.unit.planning.builders import facts
from tests.unit.planning.status.projecting import condition, message, project


def held(reason: str = "", words: str = "") -> dict[str, Any]:
    given = replace(facts(), hold=Hold(name="again", reason=reason, message=words))
    return project(replace(given, scale=replace(given.scale, replicas=0)))


def test_fleet_that_is_down_for_a_reset_is_neither_ready_nor_complete() -> None:
    status = held("StoppingWorkers", "workers are leaving")
    assert condition(status, "Ready") == ("False", "ResettingOffsets")
    assert "OffsetReset 'again' is done: workers are leaving" in message(status, "Ready")
    assert condition(status, "Progressing") == ("True", "Waiting")


@pytest.mark.parametrize("reason", ["", "StoppingWorkers", "NotYetObserved"])
def test_reset_on_its_way_is_no_problem(reason: str) -> None:
    assert condition(held(reason), "Degraded")[0] == "False"


@pytest.mark.parametrize("reason", ["ForeignMembers", "WorkersRemain", "AuthorizationFailed", "OffsetsRefused"])
def test_reset_that_cannot_go_on_is_reported(reason: str) -> None:
    status = held(reason, "because of it")
    assert condition(status, "Degraded") == ("True", "OffsetResetWaits")
    assert message(status, "Degraded").endswith(f"OffsetReset 'again' waits: {reason}: because of it")
