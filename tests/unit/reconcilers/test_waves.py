"""The ledger of waves is told by reconciles, and wakes as many groups as have room."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.planning.fleet.waves import Slot, read_rollout_status
from fleet_operator.planning.state.group import Phase, Upgrade, UpgradeState
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.reconcilers.waves import Waves
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

NEW = "worker:2"


@dataclass
class Asked:
    """A queue that remembers what was asked for."""

    keys: list[Key] = field(default_factory=list)

    def add(self, key: Key) -> None:
        self.keys.append(key)

    def add_after(self, key: Key, delay: float) -> None:
        raise AssertionError("nothing waits")


class Place:
    """Caches of one operator with its waves."""

    def __init__(self, bound: int) -> None:
        self.store = Store(MemoryKube(), VirtualClock(asyncio.get_running_loop()), WATCHED)
        self.asked, self.metrics, self.version = Asked(), Metrics(), 0
        settings = Settings(consumer_image=NEW, max_concurrent_rollouts=bound)
        self.background_tasks: list[Any] = []
        self.told: list[Any] = []
        context = SimpleNamespace(
            settings=settings,
            store=self.store,
            metrics=self.metrics,
            queues={CONSUMER_GROUP: self.asked},
            background_tasks=self.background_tasks,
            clock=VirtualClock(asyncio.get_running_loop()),
            events=SimpleNamespace(record=self.told.append),
        )
        self.waves = Waves(cast(Context, context))

    def see(self, kind: Any, name: str, **body: Any) -> JsonObject:
        self.version += 1
        metadata = {"name": name, "namespace": "shop", "uid": name, "resourceVersion": str(self.version)}
        metadata["generation"] = body.pop("generation", 1)
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **body}
        self.store.learn(kind, whole)
        return whole

    def group(self, number: int, *, generation: int = 1, **state: Any) -> None:
        """The end of a reconcile of a group that is whole, apart from these changes."""
        self.slot(number, generation=generation)
        body = self.store.get(CONSUMER_GROUP, key(number))
        assert body is not None
        found = state.pop("conditions", WHOLE)
        pinned: dict[str, Any] = {"image": "worker:1", "source": "Operator", "connection": "c"}
        status = read_rollout_status(body, found, UpgradeState(**pinned | state), ("shop", "main"))
        self.waves.record_group(body, key(number), status)

    def slot(self, number: int, *, generation: int = 1, image: str = "worker:1") -> Slot:
        """The beginning of a reconcile."""
        body = self.see(CONSUMER_GROUP, f"g-{number}", spec={"clusterRef": {"name": "main"}}, generation=generation)
        return self.waves.slot(body, key(number), UpgradeState(image=image, source="Operator", connection="c"))

    def cached(self, *numbers: int) -> None:
        """Groups that the caches have when the operator begins to work."""
        for number in numbers:
            self.see(CONSUMER_GROUP, f"g-{number}", spec={"clusterRef": {"name": "main"}})

    def count(self, state: str) -> float | None:
        return self.metrics.registry.get_sample_value("consumer_fleet_operator_upgrades", {"state": state})


WHOLE = [
    {"type": kind, "status": "True", "reason": reason}
    for kind, reason in (
        ("Progressing", "Complete"),
        ("Serving", "NewestRevision"),
        ("ClusterReachable", "Reached"),
    )
]


def key(number: int) -> Key:
    return ("shop", f"g-{number}")


def test_freed_places_wake_the_next_groups_and_no_others() -> None:
    async def life() -> None:
        place = Place(bound=2)
        for number in range(9):
            place.group(number)
        assert set(place.asked.keys) == {key(0)}, "the canary"
        assert place.slot(0).image
        place.group(0, image=NEW, last=Upgrade(Phase.ROLLING, NEW))
        place.asked.keys.clear()
        place.group(0, image=NEW, last=Upgrade(Phase.ROLLING, NEW))
        assert place.asked.keys == [], "a reconcile that changes nothing here wakes nobody"
        place.group(0, image=NEW, last=Upgrade(Phase.COMPLETE, NEW))
        assert place.asked.keys == [key(1), key(2)]
        assert (place.count("waiting"), place.count("rolling"), place.count("failed")) == (8, 0, 0)
        place.group(1, image=NEW, last=Upgrade(Phase.FAILED, NEW))
        assert not place.slot(2).image
        place.asked.keys.clear()
        place.waves.drop_group(key(1))
        assert place.asked.keys == [key(2), key(3)], "the failed one was deleted"

    run_virtual(life())


def test_edited_cluster_begins_with_a_canary_and_an_unreadable_one_moves_nobody() -> None:
    async def life() -> None:
        place = Place(bound=3)
        cluster = place.see(KAFKA_CLUSTER, "main", spec={"bootstrapServers": ["kafka:9092"]})
        assert cluster
        for number in range(3):
            place.group(number, image=NEW)
        assert set(place.asked.keys) == {key(0)}, "none has the connection that it was planned with"
        assert place.slot(0).connection
        place.see(KAFKA_CLUSTER, "main", spec={"bootstrapServers": 7})
        assert not place.slot(1).begins

    run_virtual(life())


def test_group_that_failed_long_ago_is_told_of_and_the_next_one_woken() -> None:
    async def life() -> None:
        place = Place(bound=1)
        for number in range(3):
            place.group(number)
        place.group(0, image=NEW, last=Upgrade(Phase.FAILED, NEW))
        place.asked.keys.clear()
        keeping = asyncio.create_task(place.background_tasks[0]())
        await asyncio.sleep(3600 - 1)
        assert place.asked.keys == []
        await asyncio.sleep(60)
        keeping.cancel()
        assert place.asked.keys == [key(1)]
        assert [event.reason for event in place.told] == ["UpgradeOverdue"]

    run_virtual(life())


def test_fleet_that_goes_down_behind_its_cluster_is_woken_at_once() -> None:
    async def life() -> None:
        place = Place(bound=1)
        place.see(KAFKA_CLUSTER, "main", spec={"bootstrapServers": ["kafka:9092"]})
        for number in range(3):
            place.group(number, image=NEW)
        place.asked.keys.clear()
        down = [{"type": "Serving", "status": "False", "reason": "NoWorkerReady"}]
        place.group(2, image=NEW, conditions=down)
        assert key(2) in place.asked.keys
        assert place.slot(2).connection

    run_virtual(life())


def test_new_operator_begins_nothing_before_it_has_checked_all_groups_once() -> None:
    """The canary may be the last one that is reconciled, and any of them may be on its way."""

    async def life() -> None:
        place = Place(bound=1)
        place.cached(0, 1, 2)
        place.group(2)
        place.group(1)
        waiting = place.slot(1)
        assert not waiting.begins
        assert waiting.wait is not None
        assert waiting.wait.reason == "WaitingForWave"
        assert place.slot(1, image=NEW).wait is None, "there is nothing to wait for"
        assert place.asked.keys == []
        place.group(0, image=NEW, last=Upgrade(Phase.ROLLING, NEW))
        assert key(1) in place.asked.keys, "it shows that it waits for the first round"
        assert not place.slot(1).begins, "one is on its way"
        place.group(0, image=NEW, last=Upgrade(Phase.COMPLETE, NEW))
        assert place.slot(1).image

    run_virtual(life())


def test_group_that_is_never_reconciled_holds_up_upgrades_for_two_minutes_only() -> None:
    async def life() -> None:
        place = Place(bound=1)
        place.cached(0, 1)
        place.group(1)
        assert not place.slot(1).begins
        keeping = asyncio.create_task(place.background_tasks[0]())
        await asyncio.sleep(140)
        keeping.cancel()
        assert place.asked.keys == [key(1)]
        assert place.slot(1).image

    run_virtual(life())


def test_group_whose_spec_was_edited_begins_nothing_until_it_is_whole_again() -> None:
    async def life() -> None:
        place = Place(bound=1)
        place.group(0)
        assert not place.slot(0, generation=2).begins
        place.group(0, generation=2)
        assert place.slot(0, generation=2).image

    run_virtual(life())


def test_without_waves_nothing_is_recorded() -> None:
    async def life() -> None:
        place = Place(bound=0)
        place.group(1)
        assert place.asked.keys == []
        assert not place.slot(1).waves
        assert place.count("waiting") is None

    run_virtual(life())
