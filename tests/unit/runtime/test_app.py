"""The operator's process around its Lease: nothing else holds up a renewal, and a lost one ends everything."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_operator import app as app_module
from fleet_operator.app import App
from fleet_operator.clients.kinds import LEASE, WHOLE, Kind, View
from fleet_operator.clients.kube import KubeForbiddenError, KubeUnavailableError, Listing
from fleet_operator.runtime import lease as lease_module
from fleet_operator.runtime.lease import LEASE_SECONDS, LeaseLostError
from fleet_operator.runtime.settings import Settings
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

SETTINGS = Settings(leader_elect=True, identity="here", lease_namespace="ns", health_port=0, metrics_port=0)


class Stuck(MemoryKube):
    """A client all of whose slots are taken by calls that do not end."""

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it never ends")


class Bare(MemoryKube):
    """A cluster without any object of ours."""

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        return Listing([], str(self.version))


class Unwatched:
    """Stands in for kopf and the informer: nothing is delivered."""

    end_seconds = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing is watched."""

    async def run(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(self.end_seconds)


class Silent:
    """Stands in for the health endpoints: sockets know nothing of a clock that jumps."""

    ports = (0, 0)

    def __init__(self, **_: Any) -> None:
        """No ports."""

    async def start(self) -> None:
        """Serves nothing."""

    stop = start


class Here:
    """Stands in for a thread with a loop: a clock that jumps is that of one loop."""

    run = staticmethod(asyncio.ensure_future)


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "Watcher", Unwatched)
    monkeypatch.setattr(app_module, "Informer", Unwatched)
    monkeypatch.setattr(app_module, "HealthServer", Silent)


class Refusing(Bare):
    """Two namespaces that it may not read, until `refused` has others."""

    refused: tuple[str, ...] = ("bank", "shop")

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        if namespace in self.refused:
            raise KubeForbiddenError(f"{kind.plural} is forbidden")
        return await super().list(kind, namespace)


@pytest.mark.parametrize("leader_elect", [True, False])
@pytest.mark.usefixtures("on_one_loop")
def test_operator_is_ready_once_one_namespace_is_served(leader_elect: bool) -> None:
    async def main() -> None:
        kube, clock = Refusing(), VirtualClock(asyncio.get_running_loop())
        settings = replace(SETTINGS, namespaces=("bank", "shop"), leader_elect=leader_elect)
        operator = App(settings, kube, kube, clock)
        running = asyncio.create_task(operator.run())
        await asyncio.sleep(100.0)
        seen = [operator._not_ready]
        kube.refused = ("bank",)
        await asyncio.sleep(100.0)
        assert [*seen, operator._not_ready] == ["no namespace could be listed yet: see the log", None]
        operator.stop()
        await running

    run_virtual(main())


@pytest.fixture
def on_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "LoopThread", lambda name: Here())


@pytest.mark.usefixtures("on_one_loop")
def test_lease_is_renewed_while_every_other_call_hangs() -> None:
    async def main() -> None:
        leases, asked = MemoryKube(), list[str]()
        stuck = Stuck()
        stuck.before = lambda verb, kind, name: asked.append(kind)
        clock = VirtualClock(asyncio.get_running_loop())
        operator = App(SETTINGS, stuck, leases, clock)
        running = asyncio.create_task(operator.run())
        await asyncio.sleep(10 * LEASE_SECONDS)
        assert not running.done()
        assert LEASE.kind not in asked
        assert sum(verb == "replace" for verb, _, _ in leases.writes) > 10
        operator.stop()
        await running
        assert leases.objects[LEASE.kind, "ns", "consumer-fleet-operator"]["spec"]["holderIdentity"] == ""

    run_virtual(main())


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 1.0)
    monkeypatch.setattr(lease_module, "RETRY_SECONDS", 0.02)


@pytest.mark.usefixtures("quickly")
async def test_lease_is_renewed_while_the_event_loop_is_blocked() -> None:
    kube, leases, renewing, renewed = Bare(), MemoryKube(), threading.Event(), threading.Event()
    leases.before = lambda verb, kind, name: renewing.set() if verb == "replace" else None
    operator = App(SETTINGS, kube, leases, SystemClock())
    running = asyncio.create_task(operator.run())
    assert await asyncio.to_thread(renewing.wait, 30.0)
    before = len(leases.writes)
    leases.before = lambda verb, kind, name: renewed.set() if len(leases.writes) > before + 5 else None
    assert renewed.wait(30.0), "the loop is blocked meanwhile"
    assert not running.done()
    operator._stop.set()
    running.cancel()


@pytest.mark.usefixtures("quickly")
async def test_loss_of_the_lease_is_reported_while_the_event_loop_is_blocked() -> None:
    kube, leases, renewing, lost = Bare(), MemoryKube(), threading.Event(), threading.Event()
    leases.before = lambda verb, kind, name: renewing.set() if verb == "replace" else None
    operator = App(SETTINGS, kube, leases, SystemClock())
    operator.lost = lambda error: lost.set()
    running = asyncio.create_task(operator.run())
    assert await asyncio.to_thread(renewing.wait, 30.0)

    def cut(verb: str, kind: str, name: str) -> None:
        raise KubeUnavailableError("no route")

    leases.before = cut
    assert lost.wait(30.0), "the loop is blocked meanwhile"
    with pytest.raises(LeaseLostError):
        await running
    await operator._worker_status.close()  # as the end of the process does


@pytest.mark.usefixtures("on_one_loop")
def test_lease_that_is_lost_during_an_orderly_stop_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work still in flight would write during the term of the next leader."""
    monkeypatch.setattr(Unwatched, "end_seconds", 600.0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        kube, clock = Bare(), VirtualClock(loop)
        operator = App(SETTINGS, kube, kube, clock)
        running = asyncio.create_task(operator.run())
        await asyncio.sleep(5.0)
        operator.stop()
        await asyncio.sleep(5.0)
        lease = kube.objects[LEASE.kind, "ns", "consumer-fleet-operator"]
        await kube.replace({**lease, "spec": {**lease["spec"], "holderIdentity": "there"}})
        began = loop.time()
        with pytest.raises(LeaseLostError):
            await running
        assert loop.time() - began < LEASE_SECONDS
        await operator._worker_status.close()  # as the end of the process does

    run_virtual(main())
