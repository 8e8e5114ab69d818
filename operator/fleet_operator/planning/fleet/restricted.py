"""The pod security level "restricted" for what users add to the workers' pods.

The CRD refuses all of this, with a message that names the field. The cluster may have an older CRD than this operator,
so what would weaken a pod, or take over what is the operator's, is refused here again. Only what is known to be
harmless passes: a type of volume that a later Kubernetes invents does not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleet_consumer.contract import pod
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import Template, TemplateMetadata
from fleet_operator.planning.labels import COMPONENT_LABEL, CONTAINER, INSTANCE_LABEL, MANAGED_BY_LABEL, NAME_LABEL
from fleet_operator.planning.problem import Problem

VOLUME_TYPES: Final = frozenset(
    {
        "configMap",
        "secret",
        "emptyDir",
        "persistentVolumeClaim",
        "ephemeral",
        "downwardAPI",
        "projected",
        "csi",
        "image",
    }
)
"""The types of the Pod Security Standards' level "restricted"."""
PROJECTED_TYPES: Final = frozenset({"configMap", "secret", "downwardAPI"})
"""Sources of a projected volume. The others give the pod an identity in Kubernetes, or are too new to judge."""
OWN_VOLUMES: Final = "consumer-fleet-"
"""Prefix of the operator's volumes, which hold settings and credentials."""
OWN_KEYS: Final = "consumerfleet.io/"
"""Prefix of the operator's labels and annotations."""
STANDARD_LABELS: Final = frozenset({NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL, MANAGED_BY_LABEL})
OWN_VARIABLES: Final = frozenset({pod.POD_NAME, pod.POD_UID, "POD_NAMESPACE"})
SETTINGS_PATHS: Final = re.compile(r"^/?etc/(consumer-fleet|fleet)(/|\Z)")
"""The kubelet takes a path without a slash in front for one with it."""
ROUNDABOUT_PATHS: Final = re.compile(r"(^|/)[.][.]?(/|\Z)|//")
WORKER_FIELDS: Final = frozenset({"name", "resources", "env", "envFrom", "volumeMounts"})
"""Fields that users may add to the worker's own container."""
CONTAINER_FIELDS: Final = WORKER_FIELDS | {
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "workingDir",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "restartPolicy",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "securityContext",
}
"""Fields of users' own containers; others are dropped, as the API server drops them."""

APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of annotations that can take a container's profile away."""

RESTRICTED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SECCOMP_TYPES: Final = frozenset({"RuntimeDefault", "Localhost"})
ADDED_CAPABILITY: Final = "NET_BIND_SERVICE"
"""The only capability that the level allows to add."""


def find_template_problem(template: Template) -> Problem | None:
    """The first part of a template that no pod may have."""
    message = next(_refusals(template), None)
    return Problem(conditions.TEMPLATE_REFUSED, message) if message is not None else None


def _refusals(template: Template) -> Iterator[str]:
    yield from _metadata_refusals(template.metadata)
    if template.spec.security_context.run_as_non_root is False:
        yield "spec.template.spec.securityContext.runAsNonRoot must be true: change or remove it"
    for volume in template.spec.volumes:
        yield from _volume_refusals(volume)
    for field, containers in (
        ("containers", template.spec.containers),
        ("initContainers", template.spec.init_containers),
    ):
        for container in containers:
            yield from _container_refusals(
                container, f"spec.template.spec.{field}: container {container.get('name')!r}"
            )
    if any(each.get("name") == CONTAINER for each in template.spec.init_containers):
        yield f"spec.template.spec.initContainers must not contain one named {CONTAINER!r}: choose another name"
    twice = {str(each.get("name")) for each in template.spec.containers} & {
        str(each.get("name")) for each in template.spec.init_containers
    }
    if twice:
        yield (
            f"spec.template.spec: {min(twice)!r} names a container and an init container, and a pod's names are "
            "unique: rename one of them"
        )
    yield from _worker_refusals(template.worker)


def _metadata_refusals(metadata: TemplateMetadata) -> Iterator[str]:
    where = "spec.template.metadata"
    for field, keys, names in (
        ("labels", metadata.labels, STANDARD_LABELS),
        ("annotations", metadata.annotations, frozenset[str]()),
    ):
        taken = min((key for key in keys if key.startswith(OWN_KEYS) or key in names), default=None)
        if taken is not None:
            yield f"{where}.{field} must not set {taken}, which is the operator's: choose another key"
    if any(key.startswith(APPARMOR) for key in metadata.annotations):
        yield f"{where}.annotations must not set AppArmor profiles: remove those of {APPARMOR}"


def _container_refusals(container: Mapping[str, Any], where: str) -> Iterator[str]:
    for mount in container.get("volumeMounts") or ():
        if str(mount.get("name")).startswith(OWN_VOLUMES):
            yield f"{where} must not mount {mount['name']!r}, which is the operator's: use a volume of your own"
    if any(_names_host(container.get(each)) for each in ("livenessProbe", "readinessProbe", "startupProbe")) or any(
        _names_host(hook) for hook in (container.get("lifecycle") or {}).values()
    ):
        yield f"{where} must not name a host in a probe or hook: remove it, and the pod itself is asked"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{where} must not take a port of the node: remove hostPort and use a Service"
    weak = sorted(_weaknesses(container.get("securityContext") or {}))
    if weak:
        yield f"{where} must not set {', '.join(weak)} in its securityContext like this: remove it"


def _weaknesses(context: Mapping[str, Any]) -> Iterator[str]:
    """Fields of a container's security context with values that the level does not have."""
    yield from (key for key in ("privileged", "allowPrivilegeEscalation") if context.get(key))
    if context.get("runAsNonRoot") is False:
        yield "runAsNonRoot"
    if context.get("runAsUser") == 0:
        yield "runAsUser"
    if (context.get("seccompProfile") or {}).get("type", "RuntimeDefault") not in SECCOMP_TYPES:
        yield "seccompProfile"
    if set((context.get("capabilities") or {}).get("add") or ()) - {ADDED_CAPABILITY}:
        yield "capabilities"


def _worker_refusals(worker: Mapping[str, Any]) -> Iterator[str]:
    """Fields and values that other containers may have, and the worker's own may not."""
    where = f"spec.template.spec.containers: container {CONTAINER!r}"
    foreign = worker.keys() - WORKER_FIELDS
    if foreign:
        yield f"{where} takes only {', '.join(sorted(WORKER_FIELDS))}: remove {', '.join(sorted(foreign))}"
    for variable in worker.get("env") or ():
        if variable.get("name") in OWN_VARIABLES:
            yield f"{where} must not set {variable['name']} in env, which is the operator's: choose another name"
    for mount in worker.get("volumeMounts") or ():
        path = str(mount.get("mountPath"))
        if SETTINGS_PATHS.search(path) or ROUNDABOUT_PATHS.search(path):
            yield (
                f"{where} must not mount anything at {path!r}: choose a path outside of /etc/consumer-fleet and "
                "/etc/fleet, where its settings are, and without //, /./ and /../"
            )


def _volume_refusals(volume: Mapping[str, Any]) -> Iterator[str]:
    where = f"spec.template.spec.volumes: volume {volume.get('name')!r}"
    if str(volume.get("name")).startswith(OWN_VOLUMES):
        yield f"{where} has a name that is the operator's: choose another name"
    kinds = volume.keys() - {"name"}
    if len(kinds) != 1 or not kinds <= VOLUME_TYPES:
        seen = ", ".join(sorted(kinds)) or "none"
        yield f"{where} must be of exactly one of the types {', '.join(sorted(VOLUME_TYPES))}, and not {seen}"
    for source in (volume.get("projected") or {}).get("sources") or ():
        if len(source) != 1 or not source.keys() <= PROJECTED_TYPES:
            seen = ", ".join(sorted(source)) or "none"
            yield f"{where} may project {', '.join(sorted(PROJECTED_TYPES))}, and not {seen}"


def _names_host(probe: Any) -> bool:
    calls = [probe.get(kind) for kind in ("httpGet", "tcpSocket")] if isinstance(probe, Mapping) else []
    return any(isinstance(call, Mapping) and call.get("host") for call in calls)


def restricted(container: Mapping[str, Any]) -> dict[str, Any]:
    """A user's container at the restricted level: no privilege, no root, no port of the node."""
    allowed = {key: copy.deepcopy(value) for key, value in container.items() if key in CONTAINER_FIELDS}
    allowed["securityContext"] = _restricted_context(container.get("securityContext") or {})
    for port in allowed.get("ports") or ():
        port.pop("hostPort", None)
        port.pop("hostIP", None)
    return allowed


def _restricted_context(own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a container may set itself; the pod forbids or defaults the rest."""
    context: dict[str, Any] = copy.deepcopy(RESTRICTED)
    if own.get("runAsUser"):
        context["runAsUser"] = own["runAsUser"]
    context |= {key: own[key] for key in ("runAsGroup", "readOnlyRootFilesystem") if own.get(key) is not None}
    if (own.get("seccompProfile") or {}).get("type") in SECCOMP_TYPES:
        context["seccompProfile"] = copy.deepcopy(own["seccompProfile"])
    if ADDED_CAPABILITY in ((own.get("capabilities") or {}).get("add") or ()):
        context["capabilities"]["add"] = [ADDED_CAPABILITY]
    return context
