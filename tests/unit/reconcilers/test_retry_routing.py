"""Objects that are reconciled again when a policy or a group changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, RETRY_POLICY, Kind
from fleet_operator.clients.kube import KubeClient
from fleet_operator.reconcilers.registry import CONTROLLERS, WATCHED
from fleet_operator.reconcilers.routing import Router
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Dispatcher
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from tests.support.clock import StillClock


class Queue(Dispatcher):
    """Takes down the keys of one kind."""

    def __init__(self, kind: Kind, queued: list[tuple[Kind, Key]]) -> None:
        self.of, self.queued = kind, queued

    def add(self, key: Key) -> None:
        self.queued.append((self.of, key))

    add_new = add

    def add_after(self, key: Key, delay: float) -> None:
        self.queued.append((self.of, key))


class World:
    """Caches, and the keys that were queued."""

    def __init__(self) -> None:
        self.queued: list[tuple[Kind, Key]] = []
        # No call goes out: routing only reads caches.
        self.store = Store(cast("KubeClient", None), StillClock(), WATCHED)
        self._version = 0
        queues = {each.kind: Queue(each.kind, self.queued) for each in CONTROLLERS}
        self.router = Router(self.store, WATCHED, queues, Metrics())

    def seen(self, kind: Kind, name: str, spec: Mapping[str, Any], *, gone: bool = False) -> set[tuple[Kind, str]]:
        """Deliver an object; returns what was queued for it, as kind and name."""
        self.queued.clear()
        self._version += 1
        metadata = {"name": name, "namespace": "shop", "uid": f"u-{name}", "generation": self._version}
        metadata["resourceVersion"] = str(self._version)
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": dict(spec)}
        self.router.observed(kind, body, gone)
        return {(kind, key[1]) for kind, key in self.queued}


def group(policy: str | None = None, group_id: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"clusterRef": {"name": "main"}, "handler": {"http": {}}}
    return spec | ({"retry": {"policyRef": {"name": policy}}} if policy else {}) | {"groupId": group_id}


@pytest.fixture
def world() -> World:
    made = World()
    made.seen(RETRY_POLICY, "standard", {})
    made.seen(RETRY_POLICY, "other", {})
    made.seen(CONSUMER_GROUP, "orders", group("standard"))
    made.seen(CONSUMER_GROUP, "returns", group("other"))
    return made


def test_policy_requeues_the_groups_that_refer_to_it(world: World) -> None:
    assert world.seen(RETRY_POLICY, "standard", {}) == {(RETRY_POLICY, "standard"), (CONSUMER_GROUP, "orders")}
    assert world.seen(RETRY_POLICY, "standard", {}, gone=True) == {
        (RETRY_POLICY, "standard"),
        (CONSUMER_GROUP, "orders"),
    }


def test_changed_group_requeues_all_policies_it_may_have_left(world: World) -> None:
    policies = {(RETRY_POLICY, "standard"), (RETRY_POLICY, "other")}
    assert policies <= world.seen(CONSUMER_GROUP, "orders", group("other"))
    assert policies <= world.seen(CONSUMER_GROUP, "orders", group(), gone=True)


def test_group_requeues_owners_of_a_kafka_group_it_may_need(world: World) -> None:
    world.seen(CONSUMER_GROUP, "namesake", group(group_id="shop.orders.retry"))
    assert (CONSUMER_GROUP, "namesake") in world.seen(CONSUMER_GROUP, "orders", group("standard"))
    assert (CONSUMER_GROUP, "orders") in world.seen(CONSUMER_GROUP, "namesake", group(group_id="shop.orders.retry"))
    assert (CONSUMER_GROUP, "returns") not in world.seen(CONSUMER_GROUP, "orders", group("standard"))
