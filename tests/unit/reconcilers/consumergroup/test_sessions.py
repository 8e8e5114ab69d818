"""A session is of one object: it ends with it, also where the deletion was never seen."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.offsets.expiry import ExpiryMemory
from fleet_operator.reconcilers.consumergroup.session import GroupSessions, Memory
from tests.support.clock import StillClock
from tests.unit.reconcilers.consumergroup.sessions import KEY, fresh_session

if TYPE_CHECKING:
    from fleet_operator.reconcilers.context import Context


def body(uid: str) -> JsonObject:
    head: dict[str, Any] = {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup"}
    return {**head, "metadata": {"namespace": KEY[0], "name": KEY[1], "uid": uid}, "spec": {"topics": ["orders"]}}


def sessions() -> GroupSessions:
    queues = {CONSUMER_GROUP: SimpleNamespace(add=lambda key: None)}
    return GroupSessions(cast("Context", SimpleNamespace(clock=StillClock(), queues=queues, ending=AsyncExitStack())))


def test_session_stays_while_its_object_is_there() -> None:
    found = sessions()
    session = found.open(KEY)
    session.refer_to(body("a"))
    assert not found.is_of_namesake(KEY, "a")
    assert found.open(KEY) is session


def test_object_that_takes_the_place_of_a_namesake_has_a_session_of_its_own() -> None:
    """`kubectl replace --force` while the watch was away: the deletion is never seen."""
    found = sessions()
    found.open(KEY).refer_to(body("a"))
    assert found.is_of_namesake(KEY, "b")
    assert found.drop(KEY) is not None
    assert not found.is_of_namesake(KEY, "b")


def test_visit_that_ends_while_a_plan_is_made_is_not_forgotten() -> None:
    """A plan of a large group is made in a thread."""
    session = fresh_session()
    since, visited = session.findings, ExpiryMemory(visited_at=1.0)
    session.visited(MAIN, visited)
    session.remember(Memory(), {MAIN: ExpiryMemory()}, since)
    assert session.findings.visits[MAIN] == visited
    session.remember(Memory(), {MAIN: ExpiryMemory()}, session.findings)
    assert session.findings.visits[MAIN] == ExpiryMemory()
