"""The container of an HTTP handler as a native sidecar of the worker.

The user writes it as a container `handler` of `template.spec.containers`. It becomes a native sidecar (an init
container that restarts): the kubelet starts it before the worker and stops it after the worker, so it still answers
while the worker drains.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, Template

HANDLER_CONTAINER: Final = "handler"
"""Name of the handler's container in the template."""

WORKER_PORT: Final = 8080
SPARE_WORKER_PORT: Final = 8081


def handler_container(template: Template) -> Mapping[str, Any] | None:
    """The handler's container, or None. An init container of that name counts if it is a native sidecar already."""
    for container in template.spec.containers:
        if container.get("name") == HANDLER_CONTAINER:
            return container
    for container in template.spec.init_containers:
        if container.get("name") == HANDLER_CONTAINER and container.get("restartPolicy") == "Always":
            return container
    return None


def containers_of(group: ConsumerGroup) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The user's init containers and those next to the worker; an HTTP handler's is moved to the end of the first.

    It is the last because init containers that prepare the pod may prepare the handler, too.
    """
    template = group.spec.template
    first, beside = [list(map(copy.deepcopy, each)) for each in (template.spec.init_containers, template.beside)]
    if group.spec.handler.http is None:
        return first, beside
    moved = [{**each, "restartPolicy": "Always"} for each in beside if each.get("name") == HANDLER_CONTAINER]
    return [*first, *moved], [each for each in beside if each.get("name") != HANDLER_CONTAINER]


def worker_port(group: ConsumerGroup) -> int:
    """Port of the worker's own pages. Containers of a pod share their ports, and the handler chooses first."""
    http = group.spec.handler.http
    return SPARE_WORKER_PORT if http is not None and http.port == WORKER_PORT else WORKER_PORT
