"""The container of an HTTP handler as a native sidecar of the worker.

The user names it `handler` in `template.spec.containers`. As a native sidecar (a restartable init container), the
handler starts before the worker and stops after it, so the handler still answers while the worker drains.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, Template

HANDLER_CONTAINER: Final = "handler"

WORKER_PORT: Final = 8080
SPARE_WORKER_PORT: Final = 8081


def handler_container(template: Template) -> Mapping[str, Any] | None:
    """The container named `handler`; None without one. An init container of this name counts only if it already is a
    native sidecar."""
    sidecars = (each for each in template.spec.init_containers if each.get("restartPolicy") == "Always")
    served = (each for each in (*template.spec.containers, *sidecars) if each.get("name") == HANDLER_CONTAINER)
    return next(served, None)


def containers_of(group: ConsumerGroup) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The init containers, and the containers that run next to the worker. The container of an HTTP handler becomes the
    last init container, because the other init containers may prepare the pod for the handler."""
    template = group.spec.template
    first, others = (copy.deepcopy(list(each)) for each in (template.spec.init_containers, template.other_containers))
    if group.spec.handler.http is None:
        return first, others
    moved = [{**each, "restartPolicy": "Always"} for each in others if each.get("name") == HANDLER_CONTAINER]
    return [*first, *moved], [each for each in others if each.get("name") != HANDLER_CONTAINER]


def worker_port(group: ConsumerGroup) -> int:
    """Port of the worker: the usual port, or a spare port if the handler uses the usual port. Containers of a pod share
    ports."""
    http = group.spec.handler.http
    return SPARE_WORKER_PORT if http is not None and http.port == WORKER_PORT else WORKER_PORT
