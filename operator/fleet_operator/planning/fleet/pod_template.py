"""Pod template of the workers, with the additions of `spec.template`.

Pod security level "restricted" applies to every container, also to those that a user adds: handler code and its helpers
need no privilege. Settings, handler source and credentials come as one projected volume, so that no mount lies inside
another.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_consumer.contract import naming, pod
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, PodSecurityContext
from fleet_operator.api.v1alpha1.kafkacluster import CA_KEY, KafkaCluster
from fleet_operator.planning import labels
from fleet_operator.planning.fleet import worker_config
from fleet_operator.planning.fleet.restricted import RESTRICTED, restricted
from fleet_operator.planning.fleet.sidecar import containers_of, worker_port
from fleet_operator.planning.labels import CONTAINER, RETRY_VOLUME, REVISION_ANNOTATION, SKIP_VOLUME

SETTINGS_VOLUME: Final = "consumer-fleet-settings"
AUTHORITIES_VOLUME: Final = "consumer-fleet-authorities"
SCRATCH_VOLUME: Final = "consumer-fleet-scratch"
SCRATCH_PATH: Final = "/tmp"
USER_ID: Final = 65532
"""The unprivileged user of the project's images."""

CLOSING_S: Final = 15
"""Part of the termination grace after the drain: the last commit, leaving the group, and closing."""

CHECK_GRACE_S: Final = 5
"""Termination grace of a check: its sidecars have nothing to drain, and the pod ends with its last container."""

SERVING: Final = ("startupProbe", "readinessProbe", "livenessProbe", "ports")
"""Container fields of HTTP servers."""
ATTENDING: Final = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
"""Container fields that may wait for the worker's own pages."""
STARTUP_S: Final = 600
"""Time for the import of the handler. The pod is unready for all of it."""

DEFAULT_RESOURCES: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}}
"""Resources of a worker for which none are given. No limit: only the handler's author knows what it may need, and a
limit that is too low kills workers in the middle of records. See docs/decisions/0034."""


def pod_template(
    group: ConsumerGroup, cluster: KafkaCluster, *, handler_keys: tuple[str, ...] | None, image: str
) -> dict[str, Any]:
    """Pod template of a revision without a name, see `named`.

    `handler_keys` are the file names of the handler's source, None without one.
    """
    extra = group.spec.template
    metadata = {
        "labels": {**extra.metadata.labels, **labels.child_labels(group.metadata.name, labels.WORKER)},
        "annotations": {**extra.metadata.annotations, REVISION_ANNOTATION: ""},
    }
    first, beside = containers_of(group)
    mounts = extra.worker.get("volumeMounts") or ()
    own_scratch = any(mount.get("mountPath", "").rstrip("/") == SCRATCH_PATH for mount in mounts)
    volumes = [_settings_volume(group, cluster, "", handler_keys), *_plain(extra.spec.volumes)]
    # Optional, as most groups never have one; a list that comes later reaches running pods all the same.
    skips = {"name": naming.skip_config(group.metadata.name), "optional": True, "defaultMode": 0o440}
    volumes.append({"name": SKIP_VOLUME, "configMap": skips})
    if group.spec.retry is not None:
        # A volume of its own, mounted as a directory: files mounted alone are never renewed.
        policies = {"name": naming.retry_config(group.metadata.name), "defaultMode": 0o440}
        volumes.append({"name": RETRY_VOLUME, "configMap": policies})
    authorities = _authorities(cluster)
    if authorities is not None:
        volumes.append({"name": AUTHORITIES_VOLUME, "secret": {"secretName": authorities, "defaultMode": 0o440}})
    if not own_scratch:
        volumes.append({"name": SCRATCH_VOLUME, "emptyDir": {}})
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": group.spec.drain_seconds + CLOSING_S,
        "securityContext": _pod_security(group),
        "containers": [_worker(group, image, own_scratch, authorities is not None), *map(restricted, beside)],
        "volumes": volumes,
    }
    if first:
        spec["initContainers"] = [restricted(container) for container in first]
    spec |= _placement(group)
    return {"metadata": metadata, "spec": spec}


def named(
    template: Mapping[str, Any],
    group: ConsumerGroup,
    cluster: KafkaCluster,
    *,
    revision: str,
    handler_keys: tuple[str, ...] | None,
) -> dict[str, Any]:
    """A `pod_template` of the same arguments with the name of its revision, and its ConfigMaps."""
    metadata, spec = template["metadata"], template["spec"]
    annotations = {**metadata["annotations"], REVISION_ANNOTATION: revision}
    volumes = [_settings_volume(group, cluster, revision, handler_keys), *spec["volumes"][1:]]
    return {"metadata": {**metadata, "annotations": annotations}, "spec": {**spec, "volumes": volumes}}


def serve_nothing(spec: Mapping[str, Any], args: list[str]) -> dict[str, Any]:
    """Give the worker's container in a pod's spec a command that serves no HTTP; returns the container."""
    worker: dict[str, Any] = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    for key in SERVING:
        worker.pop(key, None)
    worker["args"] = args
    return worker


def accompany(spec: dict[str, Any], worker: Mapping[str, Any]) -> None:
    """Make native sidecars of the containers other than the worker's, so that the pod ends with the worker."""
    beside = [container for container in spec["containers"] if container is not worker]
    for container in beside:
        for key in ATTENDING:
            container.pop(key, None)
        container["restartPolicy"] = "Always"
    if beside:
        spec["initContainers"] = [*spec.get("initContainers", ()), *beside]


def check_pod_spec(template: Mapping[str, Any]) -> dict[str, Any]:
    """Spec of a pod that checks the template's revision once.

    It is the worker's pod with another command and without probes. The other containers are tried too, or a wrong image
    or a request that no node can meet would first show where it replaces a worker. As native sidecars (restartable init
    containers) they start before the check and end with it; their probes and hooks may need a worker that serves.
    """
    spec = copy.deepcopy(dict(template["spec"]))
    worker = serve_nothing(spec, ["check", "--config", pod.WORKER_CONFIG])
    accompany(spec, worker)
    spec |= {"containers": [worker], "restartPolicy": "Never", "terminationGracePeriodSeconds": CHECK_GRACE_S}
    return spec


def _worker(group: ConsumerGroup, image: str, own_scratch: bool, authorities: bool) -> dict[str, Any]:
    extra = group.spec.template.worker
    mounts = [
        {"name": SETTINGS_VOLUME, "mountPath": pod.CONFIG_DIRECTORY, "readOnly": True},
        *_plain(extra.get("volumeMounts") or ()),
    ]
    mounts.append({"name": SKIP_VOLUME, "mountPath": worker_config.SKIP_DIRECTORY, "readOnly": True})
    if group.spec.retry is not None:
        mounts.append({"name": RETRY_VOLUME, "mountPath": worker_config.RETRY_DIRECTORY, "readOnly": True})
    if authorities:
        path = worker_config.AUTHORITIES_DIRECTORY
        mounts.append({"name": AUTHORITIES_VOLUME, "mountPath": path, "readOnly": True})
    if not own_scratch:
        mounts.append({"name": SCRATCH_VOLUME, "mountPath": SCRATCH_PATH})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": group.spec.image_pull_policy,
        "command": ["fleet-consumer"],
        "args": ["run", "--config", pod.WORKER_CONFIG],
        "env": [
            *_plain(extra.get("env") or ()),
            _field(pod.POD_NAME, "metadata.name"),
            _field(pod.POD_UID, "metadata.uid"),
            _field("POD_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{"name": "http", "containerPort": worker_port(group), "protocol": "TCP"}],
        # The worker serves once it has imported the handler. Libraries that take minutes, or a machine without a
        # processor to spare, are no reason to kill it and start over.
        "startupProbe": _probe(pod.HEALTH_PAGE, period_s=1, failures=STARTUP_S),
        "readinessProbe": _probe(pod.READY_PAGE, period_s=2, failures=2),
        "livenessProbe": _probe(pod.HEALTH_PAGE, period_s=10, failures=6),
        "resources": copy.deepcopy(extra.get("resources", DEFAULT_RESOURCES)),
        "securityContext": {**copy.deepcopy(RESTRICTED), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if extra.get("envFrom"):
        container["envFrom"] = _plain(extra["envFrom"])
    return container


def _settings_volume(
    group: ConsumerGroup, cluster: KafkaCluster, revision: str, handler_keys: tuple[str, ...] | None
) -> dict[str, Any]:
    """Volume for `/etc/consumer-fleet`, readable by the worker's group only."""
    name = group.metadata.name
    sources = [files_of("configMap", naming.revision_config(name, revision), [(pod.WORKER_FILE, pod.WORKER_FILE)])]
    if handler_keys is not None:
        paths = [(key, f"{worker_config.HANDLER_PATH}/{key}") for key in sorted(handler_keys)]
        sources.append(files_of("configMap", naming.revision_handler(name, revision), paths))
    sources += _credentials(cluster)
    return {"name": SETTINGS_VOLUME, "projected": {"defaultMode": 0o440, "sources": sources}}


def _credentials(cluster: KafkaCluster) -> list[dict[str, Any]]:
    """Sources of the mounted credentials: the keys of the Secrets that the KafkaCluster chooses, under fixed names."""
    tls, sasl = cluster.spec.tls, cluster.spec.sasl
    sources = []
    if sasl is not None:
        paths = [(key, f"{worker_config.CREDENTIALS_PATH}/{file}") for file, key in sasl.secret_keys.items()]
        sources.append(files_of("secret", sasl.secret_ref.name, paths))
    ca = tls.ca_secret_ref if tls is not None else None
    if ca is not None and ca.pattern is None:
        sources.append(files_of("secret", ca.name, [(ca.key or CA_KEY, worker_config.CA_FILE)]))
    client = tls.client_cert_secret_ref if tls is not None else None
    if client is not None:
        chosen = [(client.cert_key, worker_config.CERT_FILE), (client.key_key, worker_config.KEY_FILE)]
        sources.append(files_of("secret", client.name, chosen))
    return sources


def files_of(kind: str, name: str, paths: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """A source of a projected volume: keys of a ConfigMap or a Secret, each with its path in the volume."""
    return {kind: {"name": name, "items": [{"key": key, "path": path} for key, path in paths]}}


def _authorities(cluster: KafkaCluster) -> str | None:
    """Name of a Secret of which any key may hold an authority, so that all of it is mounted."""
    ca = cluster.spec.tls.ca_secret_ref if cluster.spec.tls is not None else None
    return ca.name if ca is not None and ca.pattern is not None else None


def _placement(group: ConsumerGroup) -> dict[str, Any]:
    """Placement, runtime, names and account of the pods, as far as the spec sets them."""
    extra = group.spec.template.spec
    said: dict[str, Any] = {
        "imagePullSecrets": [{"name": secret.name} for secret in extra.image_pull_secrets],
        "nodeSelector": dict(extra.node_selector),
        "tolerations": _plain(extra.tolerations),
        "affinity": copy.deepcopy(extra.affinity),
        "topologySpreadConstraints": _plain(extra.topology_spread_constraints),
        "hostAliases": _plain(extra.host_aliases),
        "dnsPolicy": extra.dns_policy,
        "dnsConfig": copy.deepcopy(extra.dns_config),
        "runtimeClassName": extra.runtime_class_name,
        "schedulerName": extra.scheduler_name,
        "priorityClassName": extra.priority_class_name,
        "serviceAccountName": extra.service_account_name,
    }
    return {key: value for key, value in said.items() if value}


class PlatformSecurity(PodSecurityContext):
    """A pod's security context in a cluster that gives pods their user and groups: only what the group names is set."""


def leave_users_to_platform(group: ConsumerGroup) -> ConsumerGroup:
    """The group with pods that ask for no user unless it names one. OpenShift refuses users outside a namespace's
    range."""
    spec = group.spec.template.spec
    named = PlatformSecurity.model_construct(**dict(spec.security_context))
    template = group.spec.template.model_copy(update={"spec": spec.model_copy(update={"security_context": named})})
    return group.model_copy(update={"spec": group.spec.model_copy(update={"template": template})})


def platform_gives_users(group: ConsumerGroup) -> bool:
    return isinstance(group.spec.template.spec.security_context, PlatformSecurity)


def _pod_security(group: ConsumerGroup) -> dict[str, Any]:
    """The pod's security context: the wanted user, groups and filter over the defaults of the project's images."""
    given = group.spec.template.spec.security_context.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    users = {} if platform_gives_users(group) else dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), USER_ID)
    return {**users, "seccompProfile": {"type": "RuntimeDefault"}, **given, "runAsNonRoot": True}


def _plain(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [copy.deepcopy(dict(item)) for item in items]


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
