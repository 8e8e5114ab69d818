"""The console's Service selects the pod of the leader: the operator labels its own pod."""

from __future__ import annotations

import asyncio

import pytest

from fleet_consumer.clock import SystemClock
from fleet_operator import app as app_module
from fleet_operator.app import App
from fleet_operator.clients.kinds import POD, JsonObject
from fleet_operator.clients.kube import KubeError
from fleet_operator.console import CONSOLE_LABEL
from fleet_operator.runtime.settings import Settings
from tests.unit.runtime.memory_kube import MemoryKube

SETTINGS = Settings(leader_elect=True, identity="operator-7d-x_0a1b2c3d", lease_namespace="fleets")


class Pods(MemoryKube):
    """Records merge patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[JsonObject] = []

    async def merge(self, body: JsonObject) -> JsonObject:
        self.patches.append(body)
        return body


class Silent(MemoryKube):
    """An API server that does not answer."""

    async def merge(self, body: JsonObject) -> JsonObject:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it never ends")


async def test_leader_labels_its_own_pod_and_a_former_leader_removes_the_label() -> None:
    kube = Pods()
    operator = App(SETTINGS, kube, kube, SystemClock(), kube)
    assert operator._console is not None
    for leads in (True, False):
        await operator._lead_console(leads=leads)
        assert operator._console.leads is leads
    assert [(patch["kind"], patch["metadata"]) for patch in kube.patches] == [
        (POD.kind, {"namespace": "fleets", "name": "operator-7d-x", "labels": {CONSOLE_LABEL: label}})
        for label in ("true", None)
    ]


class Refusing(Pods):
    """An API server that refuses the first attempts."""

    async def merge(self, body: JsonObject) -> JsonObject:
        await super().merge(body)
        if len(self.patches) < 3:
            raise KubeError("the server is starting", status=503)
        return body


async def test_a_refused_label_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "LABEL_SECONDS", 0.0)
    monkeypatch.setattr(app_module, "LABEL_AGAIN_SECONDS", 0.0)
    kube = Refusing()
    operator = App(SETTINGS, kube, kube, SystemClock(), kube)
    await operator._lead_console(leads=True)
    assert operator._labelling is not None
    await asyncio.wait_for(operator._labelling, 30)
    assert len(kube.patches) == 3


async def test_without_the_console_no_pod_is_labelled() -> None:
    kube = Pods()
    await App(SETTINGS, kube, kube, SystemClock())._lead_console(leads=True)
    assert kube.patches == []


async def test_a_silent_api_server_delays_the_leader_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "LABEL_SECONDS", 0.05)
    kube = Silent()
    operator = App(SETTINGS, kube, kube, SystemClock(), kube)
    await asyncio.wait_for(operator._lead_console(leads=True), 30)
    assert operator._console is not None
    assert operator._console.leads
