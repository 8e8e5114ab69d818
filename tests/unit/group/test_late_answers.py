"""Answers that come when the member has already gone."""

from __future__ import annotations

import pytest

from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import CloseRequested, ForHeartbeat
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import HeartbeatResponse
from tests.unit.group.lab import Lab


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NOT_COORDINATOR,
    ],
)
@pytest.mark.parametrize("leave", [True, False])
def test_heartbeat_answered_after_the_close_changes_nothing(code: ErrorCode, leave: bool) -> None:
    """Heartbeat and LeaveGroup overtake each other on the broker: it answers that the member is unknown, as it is."""
    lab = Lab().beating()
    lab.feed(CloseRequested(leave=leave))
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=code))
    assert lab.state is State.LEFT
    assert lab.machine.closed is not leave
