"""Pod template of the workers, with the user's additions in `spec.template`.

The Pod Security Standards' level "restricted" applies to every container, including the user's, because handlers and
their helpers need no privileges. Settings, handler source and credentials are in one projected volume, so that no mount
is inside another mount.

Decision: docs/decisions/0034-pods.md.
"""

import copy
from collections.abc import Collection, Iterable, Mapping
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
"""Volume for a Secret whose CA certificates are chosen by a pattern for key names. A separate volume is needed, because
the settings volume lists each key, and matching keys may be added later. For example, Strimzi keeps an old CA as
`ca-<date>.crt` (`InternalCa.createRenewOrReplace`)."""
SCRATCH_VOLUME: Final = "consumer-fleet-scratch"
SCRATCH_PATH: Final = "/tmp"
USER_ID: Final = 65532
"""Id of the unprivileged user and group of the project's images."""

CLOSING_S: Final = 15
"""Seconds by which a pod's grace period exceeds `drainSeconds`. The worker needs them for its last commit, for leaving
the group, and for closing its connections."""

CHECK_GRACE_S: Final = 5
"""Grace period of a check pod in seconds. The period is short, because the sidecars, which end last, have nothing to
drain."""

SERVING: Final = ("startupProbe", "readinessProbe", "livenessProbe", "ports")
"""Fields that are removed from the worker container if the worker serves no HTTP."""
ATTENDING: Final = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
"""Fields that are removed from the other containers if the worker serves no HTTP, because probes and hooks may wait for
an answer of the worker's HTTP server."""
STARTUP_S: Final = 600
"""Seconds within which a worker must import its handler. The pod is not ready before the import has succeeded."""

DEFAULT_RESOURCES: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}}
"""Resources of a worker if the spec sets none. No limit is set, because only the handler's author knows how much the
handler needs, and a low limit would kill workers while they process records."""


def pod_template(
    group: ConsumerGroup, cluster: KafkaCluster, *, handler_keys: Collection[str] | None, image: str
) -> dict[str, Any]:
    """Build the template, still without the revision's name. `handler_keys`: file names of the handler's source; None
    if the image contains the source."""
    extra = group.spec.template
    metadata = {
        "labels": {**extra.metadata.labels, **labels.child_labels(group.metadata.name, labels.WORKER)},
        "annotations": {**extra.metadata.annotations, REVISION_ANNOTATION: ""},
    }
    first, others = containers_of(group)
    # The ConfigMap with the skip list is optional, because most groups never have this ConfigMap. A ConfigMap that is
    # created later also reaches running pods.
    skips = {"name": naming.skip_config(group.metadata.name), "optional": True, "defaultMode": 0o440}
    own: list[tuple[dict[str, Any], str]] = [({"name": SKIP_VOLUME, "configMap": skips}, worker_config.SKIP_DIRECTORY)]
    if group.spec.retry is not None:
        # The policies are a separate volume, mounted as a directory, because the kubelet never updates files mounted by
        # `subPath`.
        policies = {"name": naming.retry_config(group.metadata.name), "defaultMode": 0o440}
        own.append(({"name": RETRY_VOLUME, "configMap": policies}, worker_config.RETRY_DIRECTORY))
    ca = cluster.spec.tls.ca_secret_ref if cluster.spec.tls is not None else None
    if ca is not None and ca.pattern is not None:
        # The Secret is mounted as a whole, because any key may hold a CA certificate.
        secret = {"secretName": ca.name, "defaultMode": 0o440}
        own.append(({"name": AUTHORITIES_VOLUME, "secret": secret}, worker_config.AUTHORITIES_DIRECTORY))
    settings = settings_volume(group, cluster, "", handler_keys)
    volumes = [settings, *_plain(extra.spec.volumes), *(volume for volume, _ in own)]
    mounts = [_mount(settings, pod.CONFIG_DIRECTORY), *_plain(extra.worker.get("volumeMounts") or ())]
    mounts += [_mount(volume, path) for volume, path in own]
    if not any(mount.get("mountPath", "").rstrip("/") == SCRATCH_PATH for mount in mounts):
        volumes.append({"name": SCRATCH_VOLUME, "emptyDir": {}})
        mounts.append({"name": SCRATCH_VOLUME, "mountPath": SCRATCH_PATH})
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": group.spec.drain_seconds + CLOSING_S,
        "securityContext": _pod_security(group),
        "containers": [_worker(group, image, mounts), *map(restricted, others)],
        "volumes": volumes,
    }
    if first:
        spec["initContainers"] = [*map(restricted, first)]
    return {"metadata": metadata, "spec": spec | _placement(group)}


def serve_nothing(spec: Mapping[str, Any], args: list[str]) -> dict[str, Any]:
    """Change the worker container in the spec to a command that serves no HTTP, and return this container."""
    worker: dict[str, Any] = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    for key in SERVING:
        worker.pop(key, None)
    worker["args"] = args
    return worker


def accompany(spec: dict[str, Any], worker: Mapping[str, Any]) -> None:
    """Turn a pod's other containers into native sidecars, in place, so that the pod ends with the worker."""
    others = [container for container in spec["containers"] if container is not worker]
    for container in others:
        for key in ATTENDING:
            container.pop(key, None)
        container["restartPolicy"] = "Always"
    if others:
        spec["initContainers"] = [*spec.get("initContainers", ()), *others]


def check_pod_spec(template: Mapping[str, Any]) -> dict[str, Any]:
    """Spec of a one-shot pod that checks the template's revision: the worker's pod with another command and without
    probes.

    The other containers run in the check too. Otherwise a wrong image, or a resource request that no node can meet,
    would be noticed only during the rollout. These containers become native sidecars (restartable init containers),
    which start before the check and end with it. Ordinary containers would keep the pod from ending, and the check
    could pass before their images are pulled. The sidecars' probes and hooks are removed, because they may need a
    worker that serves HTTP.

    Decision: docs/decisions/0041-check-pods.md.
    """
    spec = copy.deepcopy(dict(template["spec"]))
    worker = serve_nothing(spec, ["check", "--config", pod.WORKER_CONFIG])
    accompany(spec, worker)
    spec |= {"containers": [worker], "restartPolicy": "Never", "terminationGracePeriodSeconds": CHECK_GRACE_S}
    return spec


def _mount(volume: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {"name": volume["name"], "mountPath": path, "readOnly": True}


def _worker(group: ConsumerGroup, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    extra = group.spec.template.worker
    return {
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
        # The worker serves HTTP once it has imported the handler, which may take minutes on a busy machine.
        "startupProbe": _probe(pod.HEALTH_PAGE, period_s=1, failures=STARTUP_S),
        "readinessProbe": _probe(pod.READY_PAGE, period_s=2, failures=2),
        "livenessProbe": _probe(pod.HEALTH_PAGE, period_s=10, failures=6),
        "resources": copy.deepcopy(extra.get("resources", DEFAULT_RESOURCES)),
        "securityContext": {**copy.deepcopy(RESTRICTED), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **({"envFrom": _plain(extra["envFrom"])} if extra.get("envFrom") else {}),
    }


def settings_volume(
    group: ConsumerGroup, cluster: KafkaCluster, revision: str, handler_keys: Collection[str] | None
) -> dict[str, Any]:
    """Volume for `/etc/consumer-fleet`, readable only by the worker's Unix group."""
    name = group.metadata.name
    sources = [files_of("configMap", naming.revision_config(name, revision), [(pod.WORKER_FILE, pod.WORKER_FILE)])]
    if handler_keys is not None:
        paths = [(key, f"{worker_config.HANDLER_PATH}/{key}") for key in sorted(handler_keys)]
        sources.append(files_of("configMap", naming.revision_handler(name, revision), paths))
    sources += _credentials(cluster)
    return {"name": SETTINGS_VOLUME, "projected": {"defaultMode": 0o440, "sources": sources}}


def _credentials(cluster: KafkaCluster) -> list[dict[str, Any]]:
    """Sources for the Secret keys that the KafkaCluster names, each with a fixed file name."""
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
    """Build a source of a projected volume: keys of a ConfigMap or a Secret, each with its path in the volume."""
    return {kind: {"name": name, "items": [{"key": key, "path": path} for key, path in paths]}}


def _placement(group: ConsumerGroup) -> dict[str, Any]:
    """The fields of the group's spec about placement, runtime, DNS and service account, as fields of the pod spec."""
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
    """Security context of pods to which the platform assigns user and groups. It contains only the fields that the spec
    sets."""


def leave_users_to_platform(group: ConsumerGroup) -> ConsumerGroup:
    """A copy of the group whose pods get no default users: OpenShift refuses users outside a namespace's range."""
    spec = group.spec.template.spec
    named = PlatformSecurity.model_construct(**dict(spec.security_context))
    template = group.spec.template.model_copy(update={"spec": spec.model_copy(update={"security_context": named})})
    return group.model_copy(update={"spec": group.spec.model_copy(update={"template": template})})


def platform_gives_users(group: ConsumerGroup) -> bool:
    return isinstance(group.spec.template.spec.security_context, PlatformSecurity)


def _pod_security(group: ConsumerGroup) -> dict[str, Any]:
    """The fields that the spec sets, and the defaults of the project's images for all other fields."""
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
