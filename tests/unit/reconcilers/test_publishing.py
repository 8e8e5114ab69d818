"""The end of a reconcile whose object is not there any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context, publish
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

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
