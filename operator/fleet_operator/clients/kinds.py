"""The kinds of Kubernetes objects the operator touches, and their addresses in the API.

A closed list: RBAC in the chart is written against it. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

JsonObject = dict[str, Any]
"""One Kubernetes object, as its JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A namespaced kind; `group` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of one object, or of a subresource of it; namespace None spans them all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/".join(parts)

    def __str__(self) -> str:
        return self.kind


KAFKA_CLUSTER: Final = Kind("consumerfleet.io", "v1alpha1", "KafkaCluster", "kafkaclusters")
CONSUMER_GROUP: Final = Kind("consumerfleet.io", "v1alpha1", "ConsumerGroup", "consumergroups")
RETRY_POLICY: Final = Kind("consumerfleet.io", "v1alpha1", "RetryPolicy", "retrypolicies")
REDRIVE: Final = Kind("consumerfleet.io", "v1alpha1", "Redrive", "redrives")
BACKFILL: Final = Kind("consumerfleet.io", "v1alpha1", "Backfill", "backfills")
OFFSET_RESET: Final = Kind("consumerfleet.io", "v1alpha1", "OffsetReset", "offsetresets")
OPERATOR_STATE: Final = Kind("consumerfleet.io", "v1alpha1", "OperatorState", "operatorstates")
STATEFUL_SET: Final = Kind("apps", "v1", "StatefulSet", "statefulsets")
JOB: Final = Kind("batch", "v1", "Job", "jobs")
POD: Final = Kind("", "v1", "Pod", "pods")
SERVICE: Final = Kind("", "v1", "Service", "services")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
POD_DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
SERVICE_ACCOUNT: Final = Kind("", "v1", "ServiceAccount", "serviceaccounts")
ROLE: Final = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
SPARK_APPLICATION: Final = Kind("sparkoperator.k8s.io", "v1beta2", "SparkApplication", "sparkapplications")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT: Final = Kind("events.k8s.io", "v1", "Event", "events")

KINDS: Final = tuple(each for each in tuple(globals().values()) if isinstance(each, Kind))
_BY_TYPE: Final = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(body: JsonObject) -> Kind:
    """The kind of an object, by its `apiVersion` and `kind`; KeyError for one outside the closed list."""
    return _BY_TYPE[body["apiVersion"], body["kind"]]


def identity(body: JsonObject) -> JsonObject:
    """The beginning of a patch of this very version of an object."""
    metadata = {name: body["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}


def annotated(body: JsonObject, name: str, value: str) -> JsonObject:
    """An object with one more annotation; the given one stays as it is."""
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), name: value}}}


_METADATA: Final = "application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1"


LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def _whole(body: JsonObject) -> JsonObject:
    """An object without what nobody here reads and what is as large as the rest of it. Changes the object."""
    body["metadata"].pop("managedFields", None)
    annotations = body["metadata"].get("annotations")
    if annotations is not None:
        annotations.pop(LAST_APPLIED, None)
    return body


@dataclass(frozen=True, slots=True)
class View:
    """A part of each object of a kind. `trim` makes it of a whole one, and leaves what is such a part as it is.

    Anybody may label a ConfigMap or a pod so that the operator's watch selects it, and may make it as large as the API
    server accepts. These cannot fill the operator's memory: lists are fetched in pages of a bounded size, and each
    object is cut before the next page is asked for. Where only the metadata is needed, nothing else is asked for.
    """

    trim: Callable[[JsonObject], JsonObject] = _whole
    metadata_only: bool = False

    def accepts(self, *, many: bool) -> str:
        """The Accept header of a list (`many`), or of a watch or a read of one object."""
        return _METADATA.format(suffix="List" if many else "") if self.metadata_only else "application/json"


WHOLE: Final = View()
