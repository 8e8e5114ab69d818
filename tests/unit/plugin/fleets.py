"""ConsumerGroups and pods as the operator leaves them, with the changes of each test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_operator.planning import labels
from fleet_operator.planning.times import to_text

NOW = 1_800_000_000.0
GOOD = {"Ready": "FleetReady", "LagKnown": "AllPartitionsKnown", "Serving": "NewestRevision"}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message or f"{kind} is {status}",
        "lastTransitionTime": to_text(NOW - 60),
    }


def group(
    name: str = "orders",
    namespace: str = "shop",
    *conditions: Mapping[str, Any],
    spec: Mapping[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A ConsumerGroup whose conditions are good, but for the given ones."""
    given = {each["type"]: each for each in conditions}
    good = {kind: condition(kind, "True", reason) for kind, reason in GOOD.items()}
    shown = {
        "observedGeneration": 1,
        "groupId": f"{namespace}.{name}",
        "state": "Stable",
        "readyReplicas": 3,
        "replicas": 3,
        "targetReplicas": 3,
        "memberCount": 3,
        "lagApproximate": 0,
        "behindText": "0s",
        **status,
        "conditions": [*(good | given).values()],
    }
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"},
        "spec": {"clusterRef": {"name": "main"}, "topics": ["orders"], **(spec or {})},
        "status": shown,
    }


def pod(name: str, component: str = labels.WORKER, *, group: str = "orders", **container: Any) -> dict[str, Any]:
    """A pod of a fleet, whose worker runs unless `container` says otherwise."""
    worker = {"name": labels.CONTAINER, "state": {"running": {}}, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": labels.child_labels(group, component)},
        "spec": {"containers": [{"name": labels.CONTAINER, "env": [{"name": "PASSWORD", "value": "hunter2"}]}]},
        "status": {"phase": "Running", "containerStatuses": [worker]},
    }
