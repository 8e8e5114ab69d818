"""Sessions of ConsumerGroups for tests of single concerns."""

from __future__ import annotations

from collections.abc import Callable

from fleet_consumer.clock import Clock
from fleet_operator.reconcilers.consumergroup.session import GroupSession, new_session
from fleet_operator.runtime.background import Tasks
from tests.support.clock import StillClock

KEY = ("shop", "orders")


def fresh_session(
    clock: Clock | None = None,
    *,
    tasks: Tasks | None = None,
    again: Callable[[], None] = lambda: None,
    name: str = KEY[1],
) -> GroupSession:
    """A session of which nothing is known yet."""
    return new_session((KEY[0], name), clock or StillClock(), tasks or Tasks(), again)
