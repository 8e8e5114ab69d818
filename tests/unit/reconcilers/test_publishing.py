"""The end of a reconcile whose object has changed meanwhile, or is not there any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.reconcilers.context import CONFLICT_SECONDS, URGENT_FIELDS, Context, publish
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

RESYNC_S = 600.0
BODY = {
    "apiVersion": CONSUMER_GROUP.api_version,
    "kind": CONSUMER_GROUP.kind,
    "metadata": {"namespace": "shop", "name": "orders"},
    "spec": {"clusterRef": {"name": "main"}},
}


@pytest.mark.parametrize("namesake", [False, True])
def test_deleted_object_leaves_the_cache_on_a_failed_status_write(namesake: bool) -> None:
    async def main() -> None:
        kube, clock = MemoryKube(), VirtualClock(asyncio.get_running_loop())
        store = Store(kube, clock, WATCHED)
        statuses = StatusWriter(store, clock, Metrics(), writes_per_second=5.0, urgent_fields=URGENT_FIELDS)
        context = cast("Context", SimpleNamespace(store=store, statuses=statuses))
        ghost = await kube.create(BODY)
        store.learn(CONSUMER_GROUP, ghost)
        kube.objects.clear()
        if namesake:
            await kube.create(BODY)
        assert await publish(context, ghost, {"state": "Stable"}) is None
        assert store.get(CONSUMER_GROUP, ("shop", "orders")) is None
        assert not any("status" in body for body in kube.objects.values())

    run_virtual(main())


def test_status_of_a_suspended_operator_does_not_replace_that_of_the_next_one() -> None:
    """It is older, whatever it says."""

    async def main() -> None:
        kube, clock = MemoryKube(), VirtualClock(asyncio.get_running_loop())
        stale, fresh = Store(kube, clock, WATCHED), Store(kube, clock, WATCHED)
        first = await kube.create(BODY)
        for store in (stale, fresh):
            store.learn(CONSUMER_GROUP, first)
        done = {"state": "Stable", "memberCount": 1}
        assert await publish(context_of(fresh, clock), first, done) == RESYNC_S
        late = context_of(stale, clock)
        assert await publish(late, first, {"state": "Empty", "memberCount": 2}) == CONFLICT_SECONDS
        seen = stale.get(CONSUMER_GROUP, ("shop", "orders"))
        assert seen is not None
        assert seen["status"] == done
        assert await publish(late, seen, done | {"memberCount": 2}) == RESYNC_S

    run_virtual(main())


def test_status_is_written_where_only_spec_or_metadata_have_changed_since() -> None:
    async def main() -> None:
        kube, clock = MemoryKube(), VirtualClock(asyncio.get_running_loop())
        store = Store(kube, clock, WATCHED)
        first = await kube.create(BODY)
        store.learn(CONSUMER_GROUP, first)
        metadata = {**first["metadata"], "finalizers": ["consumerfleet.io/deletion"]}
        store.learn(CONSUMER_GROUP, await kube.replace({**first, "metadata": metadata}))
        assert await publish(context_of(store, clock), first, {"state": "Stable"}) == RESYNC_S
        ((_, body),) = kube.objects.items()
        assert body["status"] == {"state": "Stable"}
        assert body["metadata"]["finalizers"] == ["consumerfleet.io/deletion"]

    run_virtual(main())


def context_of(store: Store, clock: VirtualClock) -> Context:
    statuses = StatusWriter(store, clock, Metrics(), writes_per_second=5.0, urgent_fields=URGENT_FIELDS)
    events = SimpleNamespace(record=lambda event: None)
    return cast("Context", SimpleNamespace(store=store, statuses=statuses, events=events, resync=lambda: RESYNC_S))
