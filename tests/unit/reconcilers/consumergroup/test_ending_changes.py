"""Groups that are not reconciled as such any more are not followed: an observation would show their metrics again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.reconcilers.consumergroup.deletion import DeletionWork
from fleet_operator.reconcilers.consumergroup.offset_changes import show_group
from fleet_operator.reconcilers.consumergroup.reconciler import ConsumerGroupReconciler
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from tests.unit.planning.builders import facts, observation
from tests.unit.reconcilers.consumergroup.test_metrics import KEY, gauges, problems
from tests.unit.reconcilers.consumergroup.test_offset_changes import CLUSTER
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

FINALIZER = "consumerfleet.io/retry-topics"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"metadata": {"deletionTimestamp": "2027-01-01T00:00:00Z", "finalizers": [FINALIZER]}}, set()),
        ({"spec": {"replicas": "many"}}, {("Degraded", "SpecInvalid"), ("Stalled", "Refused")}),
    ],
    ids=["deleted", "invalid"],
)
def test_moved_offsets_do_not_bring_back_the_metrics(
    change: dict[str, Any], shown: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain(work: DeletionWork, session: GroupSession, body: JsonObject) -> float | None:
        return 5.0

    monkeypatch.setattr(DeletionWork, "end", drain)

    async def main() -> None:
        kube, clock, metrics = MemoryKube(), VirtualClock(asyncio.get_running_loop()), Metrics()
        store = Store(kube, clock, WATCHED)
        seen = observation()
        here = SimpleNamespace(
            settings=Settings(),
            clock=clock,
            store=store,
            metrics=metrics,
            observers=SimpleNamespace(latest=lambda cluster: seen),
            statuses=StatusWriter(store, clock, metrics, writes_per_second=5.0, urgent_fields=URGENT_FIELDS),
            events=SimpleNamespace(record=lambda event: None),
            queues={CONSUMER_GROUP: SimpleNamespace(add=lambda key: None, add_after=lambda key, delay: None)},
            moved=[],
            ending=AsyncExitStack(),
            background_tasks=[],
            resync=lambda: 600.0,
            defaulted=lambda group: group,
        )
        reconciler = ConsumerGroupReconciler(cast("Context", here))
        (moved,) = here.moved
        found = facts(observation=seen)
        show_group(metrics.groups, KEY, found, {})
        metrics.group_problems.show(KEY, [("Stuck", "PartitionStuck")])
        reconciler._changes.follow(reconciler._sessions.open(KEY), found, CLUSTER)
        head = {"apiVersion": CONSUMER_GROUP.api_version, "kind": CONSUMER_GROUP.kind}
        metadata = {"namespace": KEY[0], "name": KEY[1], "uid": "u", "generation": 1, **change.get("metadata", {})}
        body = {**head, "metadata": metadata, "spec": change.get("spec", {}), "status": {}}
        store.learn(CONSUMER_GROUP, await kube.create(body))
        await reconciler.reconcile(KEY)
        assert gauges(metrics) == {}
        assert moved(KEY), "as long as it is there, each move may be its last"
        assert gauges(metrics) == {}
        assert problems(metrics) == shown

    run_virtual(main())
