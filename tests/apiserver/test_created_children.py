"""Children that were created and are applied later, on a real API server: what is left out then goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_operator.clients.kinds import CONFIG_MAP, SERVICE, STATEFUL_SET, JsonObject, Kind
from fleet_operator.clients.kube import KubeClient
from fleet_operator.planning.drift import has_written
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.store import Store
from tests.apiserver.conftest import Site
from tests.support.apiserver import ApiServer

pytestmark = pytest.mark.together

LABELS = {"consumerfleet.io/group": "orders"}
WORKER = {"name": "worker", "image": "worker:1"}
POD = {"serviceName": "orders", "selector": {"matchLabels": LABELS}}


def pods(**spec: Any) -> dict[str, Any]:
    return {"spec": {**POD, "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [WORKER], **spec}}}}


def headless(**selector: str) -> dict[str, Any]:
    return {"spec": {"clusterIP": "None", "selector": {**LABELS, **selector}}}


CASES = [
    (STATEFUL_SET, pods(hostname="a", containers=[{**WORKER, "env": [{"name": "OLD", "value": "1"}]}]), pods()),
    (SERVICE, headless(old="1"), headless()),
    (CONFIG_MAP, {"data": {"kept": "1", "old": "1"}}, {"data": {"kept": "1"}}),
]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("kind", "before", "after"), CASES, ids=[str(kind) for kind, _, _ in CASES])
def test_field_of_a_creation_goes_with_the_first_apply_without_it(
    api: ApiServer, site: Callable[..., Site], kind: Kind, before: JsonObject, after: JsonObject, killed: bool
) -> None:
    """Also where the operator was killed after it had recorded all fields as applied."""
    metadata: dict[str, Any] = {"namespace": site("created").name, "name": "orders", "labels": LABELS}
    head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}

    async def main() -> tuple[JsonObject, JsonObject]:
        kube = await KubeClient.connect({"KUBECONFIG": str(api.kubeconfig)})
        try:
            store = Store(kube, SystemClock(), WATCHED, applied_annotation=APPLIED_ANNOTATION)
            await store.create({**head, **before})
            made = await kube.get(kind, metadata["namespace"], "orders")
            assert made is not None
            if killed:
                await store._record_as_applied(made)
                store = Store(kube, SystemClock(), WATCHED, applied_annotation=APPLIED_ANNOTATION)
                made = await kube.get(kind, metadata["namespace"], "orders")
                assert made is not None
                assert not has_written(made["metadata"])
            await store.apply({**head, **after}, over=made)
            found = await kube.get(kind, metadata["namespace"], "orders")
            assert found is not None
            return made, found
        finally:
            await kube.close()

    made, found = asyncio.run(main())
    assert has_written(made["metadata"]) is not killed
    assert not has_written(found["metadata"])
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    text = str({key: value for key, value in found.items() if key != "metadata"}).lower()
    assert "old" not in text
    assert "'hostname'" not in text
