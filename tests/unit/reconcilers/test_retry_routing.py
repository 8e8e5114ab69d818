"""Who is looked at again when a policy or a group changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, RETRY_POLICY, Kind
from fleet_operator.clients.kube import KubeClient
from fleet_operator.reconcilers.routing import INDEXES, Queues, Router
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from tests.support.clock import StillClock


class World:
    """Caches, and the keys that were queued."""

    def __init__(self) -> None:
        self.queued: list[tuple[str, Key]] = []
        # No call goes out: routing only reads caches.
        self.store = Store(cast("KubeClient", None), StillClock(), INDEXES)
        self._version = 0
        found: dict[str, Any] = {
            name: lambda key, *_, name=name: self.queued.append((name, key)) for name in Queues.__dataclass_fields__
        }
        self.router = Router(self.store, Queues(**found), Metrics())

    def seen(self, kind: Kind, name: str, spec: Mapping[str, Any], *, gone: bool = False) -> set[tuple[str, str]]:
        """Deliver an object; returns who was queued for it, as queue and name."""
        self.queued.clear()
        self._version += 1
        metadata = {"name": name, "namespace": "shop", "uid": f"u-{name}", "generation": self._version}
        metadata["resourceVersion"] = str(self._version)
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": dict(spec)}
        self.router.observed(kind, body, gone)
        return {(queue, key[1]) for queue, key in self.queued}


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
    assert world.seen(RETRY_POLICY, "standard", {}) == {("policy", "standard"), ("group", "orders")}
    assert world.seen(RETRY_POLICY, "standard", {}, gone=True) == {("policy", "standard"), ("group", "orders")}


def test_changed_group_requeues_all_policies_it_may_have_left(world: World) -> None:
    policies = {("policy", "standard"), ("policy", "other")}
    assert policies <= world.seen(CONSUMER_GROUP, "orders", group("other"))
    assert policies <= world.seen(CONSUMER_GROUP, "orders", group(), gone=True)


def test_group_requeues_owners_of_a_kafka_group_it_may_need(world: World) -> None:
    world.seen(CONSUMER_GROUP, "namesake", group(group_id="orders.retry"))
    assert ("group", "namesake") in world.seen(CONSUMER_GROUP, "orders", group("standard"))
    assert ("group", "orders") in world.seen(CONSUMER_GROUP, "namesake", group(group_id="orders.retry"))
    assert ("group", "returns") not in world.seen(CONSUMER_GROUP, "orders", group("standard"))
