"""Status is written when it says something new, and no more often than that is worth."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.reconcilers.context import URGENT_FIELDS
from fleet_operator.runtime.cache import WatchedKind
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.status_writer import (
    OBJECT_URGENT_BURST,
    OBJECT_URGENT_RATE,
    ROUTINE_SECONDS,
    SETTLING_SECONDS,
    URGENT_BURST,
    URGENT_FACTOR,
    StatusWriter,
    Weight,
    weigh,
)
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

BODY = {
    "apiVersion": "consumerfleet.io/v1alpha1",
    "kind": "ConsumerGroup",
    "metadata": {"namespace": "ns", "name": "flights"},
}


def status(*, ready: str = "True", message: str = "fine", lag: int = 0, observed_at: str = "1") -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": "Because", "message": message}
    return {"state": "Stable", "lagApproximate": lag, "observedAt": observed_at, "conditions": [condition]}


@pytest.mark.parametrize(
    ("after", "weight"),
    [
        (status(message="refused by port 41234"), Weight.WORDING),
        (status(message="refused by port 41234", observed_at="2"), Weight.WORDING),
        (status(lag=8), Weight.ROUTINE),
        (status(ready="False"), Weight.URGENT),
        (status() | {"state": "Empty"}, Weight.URGENT),
        (status() | {"replicas": 3}, Weight.URGENT),
    ],
)
def test_status_changes_are_weighed(after: dict[str, Any], weight: Weight) -> None:
    assert weigh(status(), after, URGENT_FIELDS) is weight


class Bench:
    """A writer over an API server in memory, which counts."""

    def __init__(self, *, writes_per_second: float = 5.0) -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        self.kube = MemoryKube()
        self.store = Store(self.kube, clock, [WatchedKind(kind=CONSUMER_GROUP)])
        self.metrics = Metrics()
        self.writer = StatusWriter(
            self.store, clock, self.metrics, writes_per_second=writes_per_second, urgent_fields=URGENT_FIELDS
        )

    async def make(self, name: str = "flights") -> None:
        unseen = {"observedGeneration": -1}  # as the API server makes it
        body = await self.kube.create(BODY | {"metadata": {"namespace": "ns", "name": name}, "status": unseen})
        self.store.learn(CONSUMER_GROUP, body)

    async def write(self, wanted: dict[str, Any], name: str = "flights", *, settling: bool = False) -> float | None:
        body = self.store.get(CONSUMER_GROUP, ("ns", name))
        assert body
        return await self.writer.write(body, wanted, settling=settling)

    @property
    def waiting(self) -> float | None:
        return self.metrics.registry.get_sample_value("consumer_fleet_operator_status_waiting")

    @property
    def writes(self) -> int:
        return sum(1 for verb, _, _ in self.kube.writes if verb == "apply_status")


@pytest.mark.parametrize("again", [status(), status(observed_at="2")])
def test_status_that_says_the_same_is_not_written_again(again: dict[str, Any]) -> None:
    async def main() -> int:
        bench = Bench()
        await bench.make()
        await bench.write(status())
        await asyncio.sleep(3600.0)
        assert await bench.write(again) is None
        return bench.writes

    assert run_virtual(main()) == 1


def test_error_with_changing_text_is_written_once_a_minute() -> None:
    async def main() -> int:
        bench = Bench()
        await bench.make()
        for attempt in range(600):
            await bench.write(status(ready="False", message=f"attempt {attempt} failed"))
            await asyncio.sleep(1.0)
        return bench.writes

    assert 10 <= run_virtual(main()) <= 11


def test_changes_of_a_settling_object_are_written_together_within_a_moment() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.make()
        await bench.write(status(ready="False"))
        await asyncio.sleep(60.0)
        assert await bench.write(status(ready="False") | {"state": "Dead"}, settling=True) == SETTLING_SECONDS
        await asyncio.sleep(SETTLING_SECONDS / 2)
        later = status(ready="False") | {"state": "Dead", "replicas": 1}
        assert await bench.write(later, settling=True) == SETTLING_SECONDS / 2
        assert bench.writes == 1
        await asyncio.sleep(SETTLING_SECONDS / 2)
        assert await bench.write(later, settling=True) is None
        assert bench.writes == 2

    run_virtual(main())


def test_first_status_and_the_end_of_settling_are_written_at_once() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.make()
        assert await bench.write(status(ready="False"), settling=True) is None
        assert await bench.write(status(ready="False") | {"state": "Dead"}, settling=True) == SETTLING_SECONDS
        assert await bench.write(status()) is None

    run_virtual(main())


def test_deferred_write_returns_when_to_requeue() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.make()
        assert await bench.write(status()) is None
        pause = await bench.write(status(lag=8))
        assert pause == pytest.approx(5.0)
        await asyncio.sleep(5.0)
        assert await bench.write(status(lag=8)) is None
        assert bench.writes == 2

    run_virtual(main())


def test_object_awaits_its_slot_while_the_budget_is_in_debt() -> None:
    """Until then it would be reconciled in vain."""

    async def main() -> None:
        bench = Bench()
        names = [f"g{number}" for number in range(100)]
        for name in names:
            await bench.make(name)
            await bench.write(status(), name)

        def waits(name: str = "g99") -> bool:
            return bench.writer.awaits_slot("ConsumerGroup", ("ns", name))

        assert not waits()
        pauses = [await bench.write(status(lag=8), name) for name in names]
        last = pauses[-1]
        assert last is not None
        assert last > 15, "a hundred writes, five a second"
        assert bench.waiting == len(names)
        await asyncio.sleep(last - 0.1)
        assert (waits(), bench.waiting) == (True, 1)
        await asyncio.sleep(0.1)
        assert not waits(), "it comes back now"
        assert await bench.write(status(lag=8), "g99") is None
        assert not waits()

    run_virtual(main())


def test_object_awaits_no_slot_once_an_urgent_write_took_its_change_along() -> None:
    async def main() -> None:
        bench = Bench()
        names = [f"g{number}" for number in range(100)]
        for name in names:
            await bench.make(name)
            await bench.write(status(), name)
            await bench.write(status(lag=8), name)
        assert bench.writer.awaits_slot("ConsumerGroup", ("ns", "g99"))
        await bench.write(status(ready="False", lag=8), "g99")
        assert not bench.writer.awaits_slot("ConsumerGroup", ("ns", "g99"))

    run_virtual(main())


def test_a_thousand_objects_share_one_budget_and_urgent_writes_pass_it() -> None:
    async def main() -> None:
        bench = Bench(writes_per_second=5.0)
        names = [f"g{number}" for number in range(1000)]
        for name in names:
            await bench.make(name)
            await bench.write(status(), name)
        assert bench.writes == 1000, "the first status of each object waits for nothing"
        await asyncio.sleep(1000.0)
        before = bench.writes
        for tick in range(60):
            for name in names:
                await bench.write(status(lag=tick + 1), name)
            await asyncio.sleep(1.0)
        assert bench.writes - before <= 60 * 5 + 100
        assert await bench.write(status(ready="False"), "g7") is None

    run_virtual(main())


def test_deferred_write_is_requeued_once() -> None:
    """A hundred objects have changes and no token is left: each reconcile that comes back must be able to write."""

    async def main() -> None:
        bench = Bench(writes_per_second=5.0)
        names = [f"g{number}" for number in range(200)]
        for name in names:
            await bench.make(name)
            await bench.write(status(), name)
        await asyncio.sleep(ROUTINE_SECONDS)
        before, reconciles = bench.writes, 0

        async def until_written(name: str) -> None:
            nonlocal reconciles
            while True:
                reconciles += 1
                wait = await bench.write(status(lag=8), name)
                if wait is None:
                    return
                await asyncio.sleep(wait)

        await asyncio.gather(*map(until_written, names))
        assert bench.writes - before == 200
        assert reconciles <= 2 * 200

    run_virtual(main())


def test_urgent_write_replaces_the_pending_routine_write_of_its_object() -> None:
    async def main() -> None:
        bench = Bench(writes_per_second=1.0)
        await bench.make()
        await bench.write(status())
        assert await bench.write(status(lag=8)) is not None
        assert await bench.write(status(lag=8, ready="False")) is None
        assert bench.writes == 2
        assert await bench.write(status(lag=8, ready="False")) is None
        assert bench.writes == 2

    run_virtual(main())


def test_flapping_object_is_written_at_a_bounded_rate_and_ends_correct() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.make()
        await bench.write(status())
        for second in range(600):
            await bench.write(status(ready="False" if second % 2 else "True"))
            await asyncio.sleep(1.0)
        assert bench.writes <= 1 + OBJECT_URGENT_BURST + 600 * OBJECT_URGENT_RATE
        wait = await bench.write(status(ready="Unknown"))
        await asyncio.sleep(wait or 0.0)
        await bench.write(status(ready="Unknown"))
        body = bench.store.get(CONSUMER_GROUP, ("ns", "flights"))
        assert body
        assert body["status"]["conditions"][0]["status"] == "Unknown"

    run_virtual(main())


def test_thousands_of_urgent_writes_at_once_are_spread() -> None:
    async def main() -> None:
        bench = Bench(writes_per_second=5.0)
        names = [f"g{number}" for number in range(2000)]
        for name in names:
            await bench.make(name)
            await bench.write(status(), name)
        before = bench.writes
        waits = [await bench.write(status(ready="Unknown"), name) or 0.0 for name in names]
        assert bench.writes - before == URGENT_BURST
        assert max(waits) == pytest.approx((2000 - URGENT_BURST) / (URGENT_FACTOR * 5.0))

    run_virtual(main())


def test_status_that_the_server_stores_differently_is_not_written_for_ever() -> None:
    """The server prunes what it does not know: what is stored then never equals what was meant."""

    class Pruning(MemoryKube):
        async def apply_status(self, body: dict[str, Any]) -> dict[str, Any]:
            known = {key: value for key, value in body["status"].items() if key != "unknown"}
            return await super().apply_status(body | {"status": known})

    async def main() -> int:
        bench = Bench()
        bench.kube = bench.store.kube = Pruning()
        await bench.make()
        for _ in range(100):
            await bench.write(status() | {"unknown": 1})
            await asyncio.sleep(60.0)
        return bench.writes

    assert run_virtual(main()) == 1


def test_status_changed_by_others_is_restored() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.make()
        await bench.write(status())
        body = bench.store.get(CONSUMER_GROUP, ("ns", "flights"))
        assert body
        tampered = await bench.kube.replace(body | {"status": status(ready="False")})
        bench.store.learn(CONSUMER_GROUP, tampered)
        assert await bench.write(status()) is None
        assert bench.writes == 2

    run_virtual(main())
