"""The labels by which the operator finds what it made, and by which people find it too."""

from __future__ import annotations

from typing import Final

GROUP_LABEL: Final = "consumerfleet.io/group"
POLICY_LABEL: Final = "consumerfleet.io/retry-policy"
"""On the ConfigMaps that keep what a RetryPolicy says; they belong to no group."""
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

APPLICATION: Final = "consumer-fleet-worker"
MANAGER: Final = "consumer-fleet"
"""Value of `managed-by`, and the field manager of server-side apply."""

WORKER: Final = "worker"
CHECK: Final = "check"
REVISION: Final = "revision"
HANDLER: Final = "handler-source"
RETRY: Final = "retry"
"""Of the retry workers and what stands beside them, their policies included."""
POLICY: Final = "retry-policy"


def child_labels(name: str, component: str) -> dict[str, str]:
    """Labels of a child of the ConsumerGroup with this name."""
    return {
        NAME_LABEL: APPLICATION,
        INSTANCE_LABEL: name,
        COMPONENT_LABEL: component,
        MANAGED_BY_LABEL: MANAGER,
        GROUP_LABEL: name,
    }


def worker_selector(name: str) -> dict[str, str]:
    """What selects the workers of a fleet, and not its check pods; a StatefulSet's selector can never change."""
    return {GROUP_LABEL: name, COMPONENT_LABEL: WORKER}


def selector_text(selector: dict[str, str]) -> str:
    """A selector as text, as the scale subresource and lists want it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def worker_selector_text(name: str) -> str:
    """What selects the workers, as text."""
    return selector_text(worker_selector(name))
