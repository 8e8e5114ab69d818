"""Polls of a Kafka cluster: patterns, objects without a memory, and the subscriptions that count."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.wire.groups import DescribeGroupsRequest, FindCoordinatorRequest
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.offsets import OffsetFetchRequest
from fleet_operator.observe.observer_pool import ObserverPool, _Post
from fleet_operator.observe.poll import Poll
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.observation import RetryObservation
from fleet_operator.planning.topic_pattern import TopicMatches
from tests.support.clock import StillClock
from tests.unit.observe.scripted_cluster import ScriptedCluster
from tests.unit.observe.watched import Watched
from tests.unit.runtime.virtual_time import run_virtual

TOPICS = ("orders.eu", "orders.us", "payments", "_fleet.orders.x")
PATTERN = compile_pattern("orders.*|_fleet.*")


def test_pattern_becomes_the_topics_that_match_now() -> None:
    matches = TopicMatches().update([PATTERN], TOPICS)
    assert GroupSubscription(group_id="pattern", pattern=PATTERN).resolved(matches).topics == ("orders.eu", "orders.us")
    named = GroupSubscription(group_id="named", topics=("payments",))
    assert named.resolved(matches) == named


def test_topics_left_by_a_predecessor_are_looked_up_once() -> None:
    left = ("retry.1h", "retry.30s", "redrive", "failed", "retry.60s", "retry.soon")
    others = ("_fleet.orders2.retry.5s", "_fleet.retry.7s", "orders.retry.9s", "_fleet.orders.retry.retry.8s")
    cluster = ScriptedCluster(1, {(name, 0): [] for name in (*(f"_fleet.orders.{name}" for name in left), *others)})
    memory, part = ClusterMemory(), PartMemory()

    def poll(*, discover: bool) -> RetryObservation:
        subscription = GroupSubscription(
            group_id="orders", retry=retry_subscription("orders", ["5s"], discover=discover)
        )
        taken = Poll(
            client=cast(Any, cluster),
            clock=StillClock(),
            subscriptions={"orders": subscription},
            last=None,
            cluster=memory,
            part=part,
            stopping=lambda: False,
        ).run()
        seen = taken.groups["orders"].retry
        assert seen is not None
        return seen

    assert [poll(discover=True).found_delays for _ in range(3)] == [("30s", "1h")] * 3
    assert cluster.listed == 1
    assert poll(discover=False).found_delays is None
    cluster.logs["_fleet.orders.retry.2h", 0] = []
    assert poll(discover=True).found_delays == ("30s", "1h", "2h"), "asked again by a group that asks again"


def test_of_two_objects_for_one_group_the_owners_subscription_counts() -> None:
    """The one that waits may come first by its name: the other's records would not be polled any more."""

    changes: list[Any] = []

    async def life() -> None:
        observers = ObserverPool(StillClock(), cast(Any, SimpleNamespace()))
        owner = GroupSubscription(group_id="orders", retry=retry_subscription("orders", ["1h"]), read_committed=True)
        other = replace(owner, retry=retry_subscription("orders", ["5s"]), read_committed=False, waits=True)
        observers.watch(("a", "orders"), ("a", "main"), other)
        observers.watch(("b", "orders"), ("a", "main"), owner)
        post = _Post(cast(Any, SimpleNamespace(watch=changes.append)))
        observers._add(post, ("a", "main"), observers._subscriptions["a", "main"])
        merged = changes[-1]["orders"]
        assert (merged.retry, merged.read_committed) == (owner.retry, True)

    run_virtual(life())


def test_group_of_another_protocol_is_unknown_and_not_dead() -> None:
    """DescribeGroups answers that it does not exist."""
    cluster = ScriptedCluster(1, {("orders", 0): []}, group_types={"orders": "Consumer", "old": "Classic"})
    subscriptions = {name: GroupSubscription(group_id=name, topics=("orders",)) for name in ("orders", "old")}
    taken = Poll(
        client=cast(Any, cluster),
        clock=StillClock(),
        subscriptions=subscriptions,
        last=None,
        cluster=ClusterMemory(),
        part=PartMemory(),
        stopping=lambda: False,
    ).run()
    found = {name: (group.state, group.error, len(group.transitions)) for name, group in taken.groups.items()}
    assert found == {"orders": ("Unknown", "GroupProtocolNotClassic", 0), "old": ("Empty", None, 1)}


@pytest.mark.parametrize("kind", [FindCoordinatorRequest, DescribeGroupsRequest, OffsetFetchRequest])
@pytest.mark.parametrize("refused", ["orders", "orders.retry"])
def test_refused_login_has_no_right_to_be_a_member(kind: type[Request[Any]], refused: str) -> None:
    """Without Describe even a group's coordinator is kept from it. Unknown, its claim would count."""
    retry = retry_subscription("orders", ["5s"])
    logs: dict[tuple[str, int], list[int]] = {(topic, 0): [] for topic in ("orders", *retry.flow)}
    cluster = ScriptedCluster(1, logs, refused={(kind, refused)})
    subscription = GroupSubscription(group_id="orders", topics=("orders",), retry=retry)
    watched = Watched(cluster, {"orders": subscription})
    for _ in range(2):
        seen = watched.group("orders")
        assert seen.retry is not None
        told = {"orders": (seen.may_read, seen.error), "orders.retry": (seen.retry.may_read, seen.retry.error)}
        assert told.pop(refused) == (False, "AuthorizationFailed")
        assert [right for right, _ in told.values()] == [None], "the brokers of this test say nothing of it"
    cluster.refused.clear()
    seen = watched.group("orders")
    assert seen.retry is not None
    assert (seen.error, seen.retry.error) == (None, None)
