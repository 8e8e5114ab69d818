"""The Pod Security Standards' level "restricted", applied to the user's additions to the workers' pods.

The CRD refuses the same values, with a message that names the field. But the cluster may have an older CRD than this
operator. So this module also refuses everything that weakens a pod or replaces the operator's fields. It accepts only
values that are known to be harmless. For example, it refuses volume types of later Kubernetes versions.

Decision: docs/decisions/0034-pods.md.
"""

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
"""The volume types that the level "restricted" allows. Excluded are `nfs` and `iscsi`, because the namespace's network
policies do not cover their hosts, and `flexVolume`, because its driver runs as root on the node. `csi` is allowed,
because a driver accepts inline volumes only if its CSIDriver object permits inline volumes."""
PROJECTED_TYPES: Final = frozenset({"configMap", "secret", "downwardAPI"})
"""Allowed sources of a projected volume. Refused are a `serviceAccountToken`, which would give the pod an identity in
Kubernetes despite `automountServiceAccountToken: false`, and sources of later Kubernetes versions."""
OWN_VOLUMES: Final = "consumer-fleet-"
"""Prefix of the operator's volumes, which hold settings and credentials."""
OWN_KEYS: Final = "consumerfleet.io/"
"""Prefix of the operator's labels and annotations."""
STANDARD_LABELS: Final = frozenset({NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL, MANAGED_BY_LABEL})
OWN_VARIABLES: Final = frozenset({pod.POD_NAME, pod.POD_UID, "POD_NAMESPACE"})
SETTINGS_PATHS: Final = re.compile(r"^/?etc/(consumer-fleet|fleet)(/|\Z)")
"""Paths of the worker's settings. The leading slash is optional, because the kubelet adds a missing slash."""
ROUNDABOUT_PATHS: Final = re.compile(r"(^|/)[.][.]?(/|\Z)|//")
WORKER_FIELDS: Final = frozenset({"name", "resources", "env", "envFrom", "volumeMounts"})
"""Fields that users may set in the worker container."""
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
"""Fields that users may set in other containers. All other fields are removed without a message, as the API server does
with unknown fields."""

APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of annotations that can remove a container's AppArmor profile."""

RESTRICTED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SECCOMP_TYPES: Final = frozenset({"RuntimeDefault", "Localhost"})
ADDED_CAPABILITY: Final = "NET_BIND_SERVICE"
"""The only capability that a container may add at the level "restricted"."""


def find_template_problem(template: Template) -> Problem | None:
    message = next(_refusals(template), None)
    return Problem(conditions.TEMPLATE_REFUSED, message) if message is not None else None


def _refusals(template: Template) -> Iterator[str]:
    yield from _metadata_refusals(template.metadata)
    if template.spec.security_context.run_as_non_root is False:
        yield "spec.template.spec.securityContext.runAsNonRoot must be true: change or remove it"
    for volume in template.spec.volumes:
        yield from _volume_refusals(volume)
    lists = template.spec.containers, template.spec.init_containers
    for field, containers in zip(("containers", "initContainers"), lists, strict=True):
        for container in containers:
            where = f"spec.template.spec.{field}: container {container.get('name')!r}"
            yield from _container_refusals(container, where)
    names, first_names = ({str(each.get("name")) for each in containers} for containers in lists)
    if CONTAINER in first_names:
        yield f"spec.template.spec.initContainers must not contain a container {CONTAINER!r}: choose another name"
    if names & first_names:
        yield (
            f"spec.template.spec: {min(names & first_names)!r} is the name of a container and of an init container, "
            "but names must be unique in a pod: rename one of the two"
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
            yield f"{where}.{field} must not set {taken}, which the operator sets: choose another key"
    if any(key.startswith(APPARMOR) for key in metadata.annotations):
        yield f"{where}.annotations must not set AppArmor profiles: remove the annotations with prefix {APPARMOR}"


def _container_refusals(container: Mapping[str, Any], where: str) -> Iterator[str]:
    for mount in container.get("volumeMounts") or ():
        if str(mount.get("name")).startswith(OWN_VOLUMES):
            yield f"{where} must not mount {mount['name']!r}, a volume of the operator: use a volume of your own"
    if any(_names_host(container.get(each)) for each in ("livenessProbe", "readinessProbe", "startupProbe")) or any(
        _names_host(hook) for hook in (container.get("lifecycle") or {}).values()
    ):
        # If `httpGet` named a host, the kubelet would call that address from the node's network.
        yield f"{where} must not name a host in a probe or hook: remove the host, so that the kubelet calls the pod"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{where} must not use a host port: remove hostPort, and use a Service instead"
    weak = sorted(_weaknesses(container.get("securityContext") or {}))
    if weak:
        yield f"{where} has forbidden values in its securityContext: correct or remove {', '.join(weak)}"


def _weaknesses(context: Mapping[str, Any]) -> Iterator[str]:
    """Names of the fields in a container's security context whose values the level "restricted" forbids."""
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
    """Refusals of fields and values that are forbidden in the worker container, but allowed in the user's other
    containers."""
    where = f"spec.template.spec.containers: container {CONTAINER!r}"
    foreign = worker.keys() - WORKER_FIELDS
    if foreign:
        yield f"{where} allows only {', '.join(sorted(WORKER_FIELDS))}: remove {', '.join(sorted(foreign))}"
    for variable in worker.get("env") or ():
        if variable.get("name") in OWN_VARIABLES:
            yield f"{where} must not set {variable['name']} in env, which the operator sets: choose another name"
    for mount in worker.get("volumeMounts") or ():
        path = str(mount.get("mountPath"))
        if SETTINGS_PATHS.search(path) or ROUNDABOUT_PATHS.search(path):
            yield (
                f"{where} must not mount anything at {path!r}: choose a path outside of /etc/consumer-fleet and "
                "/etc/fleet, which hold the worker's settings, and without //, /./ and /../"
            )


def _volume_refusals(volume: Mapping[str, Any]) -> Iterator[str]:
    where = f"spec.template.spec.volumes: volume {volume.get('name')!r}"
    if str(volume.get("name")).startswith(OWN_VOLUMES):
        yield f"{where} has a name that is reserved for the operator: choose another name"
    kinds = volume.keys() - {"name"}
    if len(kinds) != 1 or not kinds <= VOLUME_TYPES:
        seen = ", ".join(sorted(kinds)) or "none"
        yield f"{where} must have exactly one of the types {', '.join(sorted(VOLUME_TYPES))}, and not {seen}"
    for source in (volume.get("projected") or {}).get("sources") or ():
        if len(source) != 1 or not source.keys() <= PROJECTED_TYPES:
            seen = ", ".join(sorted(source)) or "none"
            yield f"{where} may have only the sources {', '.join(sorted(PROJECTED_TYPES))}, and not {seen}"


def _names_host(probe: Any) -> bool:
    calls = [probe.get(kind) for kind in ("httpGet", "tcpSocket")] if isinstance(probe, Mapping) else []
    return any(isinstance(call, Mapping) and call.get("host") for call in calls)


def restricted(container: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a user's container that meets the restricted level: no privileges, no root, and no host ports."""
    allowed = {key: copy.deepcopy(value) for key, value in container.items() if key in CONTAINER_FIELDS}
    allowed["securityContext"] = _restricted_context(container.get("securityContext") or {})
    for port in allowed.get("ports") or ():
        port.pop("hostPort", None)
        port.pop("hostIP", None)
    return allowed


def _restricted_context(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `RESTRICTED` with the fields that the container may set. For other fields, the pod's security context or a
    default applies."""
    context: dict[str, Any] = copy.deepcopy(RESTRICTED)
    if own.get("runAsUser"):
        context["runAsUser"] = own["runAsUser"]
    context |= {key: own[key] for key in ("runAsGroup", "readOnlyRootFilesystem") if own.get(key) is not None}
    if (own.get("seccompProfile") or {}).get("type") in SECCOMP_TYPES:
        context["seccompProfile"] = copy.deepcopy(own["seccompProfile"])
    if ADDED_CAPABILITY in ((own.get("capabilities") or {}).get("add") or ()):
        context["capabilities"]["add"] = [ADDED_CAPABILITY]
    return context
