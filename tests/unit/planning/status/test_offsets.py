"""Status and conditions of a group whose offsets are reset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord
from fleet_operator.planning.offsets.reset import ResetDecision
from fleet_operator.reconcilers.transitions import turns
from tests.unit.planning.builders import consumer_group, facts
from tests.unit.planning.status.projecting import condition, message, project

RECORD = ResetRecord(
    id="a",
    to="Earliest",
    previous={"orders": {0: 50}},
    offsets={"orders": {0: 10, 1: 20}},
    started_at="2026-11-23T08:00:00Z",
)
GROUP = consumer_group(offsets={"reset": {"id": "a", "to": "Earliest"}})


def status_of(record: ResetRecord, *, stop: bool = False) -> dict[str, Any]:
    given = replace(facts(), group=GROUP, reset=ResetDecision(last=record, stop=stop))
    return project(replace(given, scale=replace(given.scale, replicas=0)) if stop else given)


def test_fleet_that_is_down_for_a_reset_is_neither_ready_nor_complete() -> None:
    status = status_of(replace(RECORD, phase=ResetPhase.STANDING_DOWN, reason="StoppingWorkers"), stop=True)
    assert condition(status, "Ready") == ("False", "ResettingOffsets")
    assert condition(status, "Progressing") == ("True", "Waiting")
    assert condition(status, "Degraded")[0] == "False", "nobody has to look"


@pytest.mark.parametrize(
    ("phase", "reason", "words"),
    [
        (ResetPhase.PENDING, "ForeignMembers", "OffsetResetWaits"),
        (ResetPhase.STANDING_DOWN, "WorkersRemain", "OffsetResetWaits"),
        (ResetPhase.COMMITTING, "AuthorizationFailed", "OffsetResetWaits"),
        (ResetPhase.FAILED, "OffsetsRefused", "OffsetResetFailed"),
    ],
)
def test_reset_that_cannot_go_on_is_reported(phase: ResetPhase, reason: str, words: str) -> None:
    record = replace(RECORD, phase=phase, reason=reason, message="because of it")
    status = status_of(record, stop=phase is ResetPhase.COMMITTING)
    assert condition(status, "Degraded") == ("True", words)
    assert "because of it" in message(status, "Degraded")


def test_reset_that_is_done_or_was_removed_troubles_nobody() -> None:
    assert condition(status_of(replace(RECORD, phase=ResetPhase.SUCCEEDED)), "Degraded")[0] == "False"
    failed = replace(RECORD, id="other", phase=ResetPhase.FAILED, reason="OffsetsRefused", message="it")
    assert condition(status_of(failed), "Degraded")[0] == "False"


def test_end_of_a_reset_is_an_event_with_what_was_before() -> None:
    before = status_of(replace(RECORD, phase=ResetPhase.COMMITTING), stop=True)
    after = status_of(replace(RECORD, phase=ResetPhase.SUCCEEDED))
    (turn,) = (turn for turn in turns(before, after) if turn.reason == "OffsetsReset")
    assert turn.type == "Normal"
    assert turn.note == "reset a to Earliest; orders-0: 50 -> 10, orders-1: none -> 20"
    assert [turn for turn in turns(after, after) if turn.reason == "OffsetsReset"] == []
    failed = status_of(replace(RECORD, phase=ResetPhase.FAILED, message="it cannot be done"))
    (turn,) = (turn for turn in turns(before, failed) if turn.reason == "OffsetResetFailed" and "reset a" in turn.note)
    assert turn.type == "Warning"
