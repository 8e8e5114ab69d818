"""The kinds of Kubernetes objects that the operator reads or writes, and their URL paths. No I/O.

The list is complete, because the chart's RBAC rules grant permissions for exactly these kinds.

Decision: docs/decisions/0029-trimmed-caches.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

JsonObject = dict[str, Any]
"""One Kubernetes object as parsed JSON."""


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
        """The URL path of a collection, of one object (`name`), or of an object's subresource. If `namespace` is None,
        the path is for all namespaces."""
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
TOKEN_REVIEW: Final = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews")
SUBJECT_ACCESS_REVIEW: Final = Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews")
"""A review is answered by the API server but not stored, and has no namespace."""

KINDS: Final = tuple(each for each in tuple(globals().values()) if isinstance(each, Kind))
_BY_TYPE: Final = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(body: JsonObject) -> Kind:
    """The kind of an object. Raises KeyError for a kind that this module does not define."""
    return _BY_TYPE[body["apiVersion"], body["kind"]]


def identity(body: JsonObject) -> JsonObject:
    """The metadata of a patch that applies only to this version of the object: name, namespace, uid and
    resourceVersion."""
    metadata = {name: body["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}


def annotated(body: JsonObject, name: str, value: str) -> JsonObject:
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), name: value}}}


_METADATA: Final = "application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def _whole(body: JsonObject) -> JsonObject:
    """Remove two large fields that the operator does not read. Changes the object in place."""
    body["metadata"].pop("managedFields", None)
    annotations = body["metadata"].get("annotations")
    if annotations is not None:
        annotations.pop(LAST_APPLIED, None)
    return body


@dataclass(frozen=True, slots=True)
class View:
    """The fields of a kind's objects that are kept. `trim` reduces an object to these fields, and is idempotent.

    Anybody may label a ConfigMap or a pod so that the operator's watch selects it, and make it as large as the API
    server accepts. Such objects must not fill the operator's memory. Therefore each page of a list has a bounded size,
    and is trimmed before the next page is requested. With `metadata_only`, only metadata is requested.
    """

    trim: Callable[[JsonObject], JsonObject] = _whole
    metadata_only: bool = False

    def accepts(self, *, many: bool) -> str:
        """The value of the Accept header: for a list if `many`, otherwise for a watch or a read of one object."""
        return _METADATA.format(suffix="List" if many else "") if self.metadata_only else "application/json"


WHOLE: Final = View()
