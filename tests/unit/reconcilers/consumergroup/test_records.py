"""The records of a group's revisions, next to ConfigMaps that somebody else put under its name."""

from __future__ import annotations

import asyncio
import json

from fleet_operator.clients.kinds import CONFIG_MAP, JsonObject
from fleet_operator.planning.labels import GROUP_LABEL, KNOWN_ANNOTATION, REVISION_ANNOTATION
from fleet_operator.reconcilers.consumergroup import gather
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

OWNER: JsonObject = {"metadata": {"namespace": "ns", "name": "orders", "uid": "owner"}}


def record(revision: str, text: str, name: str = "") -> JsonObject:
    metadata = {
        "namespace": "ns",
        "name": name or f"orders-fleet-{revision}",
        "labels": {GROUP_LABEL: "orders"},
        "annotations": {REVISION_ANNOTATION: revision},
        "ownerReferences": [{"uid": "owner"}],
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"pod-template.json": text}}


def test_records_are_read_up_to_a_limit_the_one_that_runs_first_then_those_that_are_named() -> None:
    async def main() -> None:
        kube = MemoryKube()
        store = Store(kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
        large = "x" * 1_000_000
        for revision in [f"a{number:03}" for number in range(30)]:
            store.learn(CONFIG_MAP, await kube.create(record(revision, large)))
        store.learn(CONFIG_MAP, await kube.create(record("f00d", "{}")))
        store.learn(CONFIG_MAP, await kube.create(record("f00d", large, "orders-fleet-f00d-handler")))
        store.learn(CONFIG_MAP, await kube.create(record("feed", "{}")))
        # Whoever may edit the StatefulSet may name as many as he likes.
        named = dict.fromkeys(["f00d", *(f"a{number:03}" for number in range(20))], "digest")
        annotations = {REVISION_ANNOTATION: "feed", KNOWN_ANNOTATION: json.dumps(named)}
        fleet = {"metadata": {"annotations": annotations}}
        seen = store.cache(CONFIG_MAP).having(("ns", "orders"))
        found = await gather.read_records(store, OWNER, seen, fleet)
        assert [body["metadata"]["name"] for body in found] == [body["metadata"]["name"] for body in seen]
        whole = {body["metadata"]["name"]: body for body in found if "data" in body}
        assert "orders-fleet-feed" in whole
        assert "orders-fleet-a000" in whole
        assert "orders-fleet-a020" not in whole
        assert "orders-fleet-f00d-handler" not in whole
        assert 1_000_000 * (len(whole) - 1) <= gather.CHARACTERS_MAX + 1_000_000

    run_virtual(main())
