"""Results of commits on the user's thread; the callbacks of commits may raise."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.consumer.commits import Commits, Offsets
from fleet_consumer.consumer.engine import CallGuard, Engine
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import CallBack, CallBackKind, Commit, FinishCommit
from tests.unit.consumer.lab import ONE, OTHER


class Group:
    """Stores every commit at once, and reports it after the changes that are queued already."""

    def __init__(self) -> None:
        self.changes: deque[Any] = deque()

    def commit(self, offsets: Offsets, deadline: float | None, **_: Any) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        ticket.end(None)
        self.changes.append(FinishCommit(Commit(offsets, deadline, ticket), None))
        return ticket


def commits_of(group: Group) -> Commits:
    engine: Any = SimpleNamespace(
        settings=SimpleNamespace(group_id="g", auto_commit_interval_ms=None),
        clock=SystemClock(),
        group=group,
        positions=None,
        manual=False,
        fatal=None,
        check_group=lambda call: None,
        started=lambda: None,
    )
    return Commits(cast(Engine, engine), CallGuard(cast(Engine, engine)))


def test_callback_of_a_commit_that_raises_loses_no_other_changes() -> None:
    """A lost rebalance callback would leave its partitions unread, or the rebalance waiting permanently."""
    group, finished = Group(), list[str]()
    commits = commits_of(group)
    assigned = CallBack(CallBackKind.ASSIGNED, (OTHER,))
    group.changes.append(assigned)

    def raises(offsets: Offsets, error: Exception | None) -> None:
        raise ValueError("the user's")

    commits.commit_async({ONE: OffsetAndMetadata(1)}, raises)
    commits.commit_async({ONE: OffsetAndMetadata(2)}, lambda offsets, error: finished.append("second"))
    with pytest.raises(ValueError, match="the user's"):
        commits.commit({ONE: OffsetAndMetadata(3)}, 1.0)
    assert list(group.changes) == [assigned]
    assert finished == ["second"]
