"""Trims cached objects to the fields that the operator reads, each of bounded size.

The API server selects children only by label, so any child may be large or belong to somebody else. Decisions may
depend only on fields that are kept here. If new code reads a field, add it here. A spec from which fields were removed
is not used for any decision.

Decision: docs/decisions/0029-trimmed-caches.md.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from fleet_operator.api.v1alpha1.model import GROUP, HANDLER_LABEL, TOO_LARGE
from fleet_operator.planning import labels
from fleet_operator.planning.drift import EDITED, WRITTEN, changed_by, has_written, others_fields

LABELS: Final = (
    *(labels.GROUP_LABEL, labels.POLICY_LABEL, labels.COMPONENT_LABEL, HANDLER_LABEL),
    *(labels.REDRIVE_LABEL, labels.BACKFILL_LABEL, labels.JOB_NAME_LABEL),
)
CONFIG_MAP_ANNOTATIONS: Final = (labels.REVISION_ANNOTATION, labels.HASH_ANNOTATION, labels.APPLIED_ANNOTATION)
POD_ANNOTATIONS: Final = (labels.REVISION_ANNOTATION, labels.POLICIES_ANNOTATION, labels.SKIP_ANNOTATION)
STATEFUL_SET_ANNOTATIONS: Final = (
    *(labels.REVISION_ANNOTATION, labels.INPUTS_ANNOTATION, labels.APPLIED_ANNOTATION, labels.SIBLINGS_ANNOTATION),
)
FINALIZERS: Final = (
    *(labels.FINALIZER, labels.CLUSTER_FINALIZER, labels.RESET_FINALIZER),
    *(labels.FOREGROUND, labels.ORPHAN),
)
JOB_ANNOTATIONS: Final = (labels.RATE_ANNOTATION,)
TYPE: Final = ("apiVersion", "kind")
IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
REPLICA_COUNTS: Final = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas")
CONDITIONS: Final = ("Ready", "PodScheduled", "PodReadyToStartContainers", "DisruptionTarget")

TEXT_CHARACTERS_MAX: Final = 4096
"""Maximum number of characters kept of a string. The number equals the kubelet's limit, in bytes, for termination
messages."""
KNOWN_CHARACTERS_MAX: Final = 65_536
"""Maximum length of the annotation KNOWN_ANNOTATION: enough for the digests of hundreds of revisions; a fleet keeps a
few."""
ENTRIES_MAX: Final = 32
"""Maximum number of owners, containers and ports that are kept. The operator's objects have fewer."""
SPEC_BYTES_MAX: Final = 65_536
"""Maximum bytes of a spec as JSON. Planning a spec of this size takes 30 ms on the thread that serves all groups. The
largest realistic spec seen, with a dozen sidecars, is a third of this size."""
BULK_BYTES_MAX: Final = {"offsets": 524_288, "range": 131_072}
"""Maximum bytes, as JSON, of the spec fields that may hold offsets of thousands of partitions."""
OWN_PREFIX: Final = f"{GROUP}/"


def trim_resource(body: dict[str, Any]) -> dict[str, Any]:
    """Trim a custom resource, in place, to the labels, annotations and finalizers that are read. If the spec is too
    large, its largest fields are removed and the field `TOO_LARGE` reports that. Small fields stay, such as references
    and names that are needed to find other objects."""
    metadata = body["metadata"]
    for part in ("managedFields", "ownerReferences"):
        metadata.pop(part, None)
    if "finalizers" in metadata:
        metadata["finalizers"] = [each for each in metadata["finalizers"] if each in FINALIZERS]
    for part in ("labels", "annotations"):
        if part in metadata:
            metadata[part] = {key: value for key, value in metadata[part].items() if key.startswith(OWN_PREFIX)}
    sizes = {field: _size(value) for field, value in (body.get("spec") or {}).items()}
    for field, limit in BULK_BYTES_MAX.items():
        if sizes.get(field, 0) > limit:
            _cut(body, f"spec.{field}", sizes[field], limit)
            del body["spec"][field]
        sizes.pop(field, None)
    total, largest = sum(sizes.values()), sorted(sizes, key=lambda field: -sizes[field])
    if total > SPEC_BYTES_MAX:
        _cut(body, "spec", total, SPEC_BYTES_MAX, f", {sizes[largest[0]]} of them in {largest[0]}")
    while total > SPEC_BYTES_MAX:
        field = largest.pop(0)
        total -= sizes[field]
        del body["spec"][field]
    return body


def _size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:  # unpaired surrogates, or deep nesting
        return len(json.dumps(value))


def _cut(body: dict[str, Any], field: str, size: int, limit: int, where: str = "") -> None:
    body[TOO_LARGE] = f"{field} has {size} bytes as JSON{where}, but more than {limit} are refused: make it smaller"


def trim_config_map(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = _metadata(body["metadata"], CONFIG_MAP_ANNOTATIONS) | _edited(body["metadata"])
    return {**_fields(body, *TYPE), "metadata": metadata}


def trim_pod(body: Mapping[str, Any]) -> dict[str, Any]:
    spec = body.get("spec") or {}
    edited = body["metadata"].get(EDITED) or changed_by(body["metadata"])
    return {
        **_fields(body, *TYPE),
        "metadata": _metadata(body["metadata"], POD_ANNOTATIONS) | ({EDITED: edited} if edited else {}),
        "spec": {
            "containers": [
                {"name": labels.CONTAINER, "ports": _each(each.get("ports"), "name", "containerPort")}
                for each in spec.get("containers") or ()
                if each.get("name") == labels.CONTAINER
            ],
            "initContainers": _each(spec.get("initContainers"), "name", "restartPolicy"),
            "volumes": _retry_volumes(spec),
        },
        "status": _pod_status(body.get("status") or {}),
    }


def trim_stateful_set(body: Mapping[str, Any]) -> dict[str, Any]:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    metadata = _metadata(body["metadata"], STATEFUL_SET_ANNOTATIONS) | _fields(body["metadata"], "generation")
    metadata |= _edited(body["metadata"])
    known = labels.annotation_of(body, labels.KNOWN_ANNOTATION)
    if known is not None:
        # A shortened annotation would not be valid JSON, and so would list no revision. An empty string has the same
        # effect.
        metadata["annotations"][labels.KNOWN_ANNOTATION] = known if len(known) <= KNOWN_CHARACTERS_MAX else ""
    pods = (spec.get("template") or {}).get("spec") or {}
    workers = [each for each in pods.get("containers") or () if each.get("name") == labels.CONTAINER]
    kept_pods = {"containers": _each(workers, "name", "image"), "volumes": _retry_volumes(pods)}
    return {
        **_fields(body, *TYPE),
        "metadata": metadata,
        "spec": {**_fields(spec, "replicas"), "template": {"spec": kept_pods}},
        "status": _fields(status, "observedGeneration", "currentRevision", "updateRevision", *REPLICA_COUNTS),
    }


def trim_job(body: Mapping[str, Any]) -> dict[str, Any]:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    metadata = _metadata(body["metadata"], JOB_ANNOTATIONS) | _fields(body["metadata"], "generation")
    return {
        **_fields(body, *TYPE),
        "metadata": metadata | _edited(body["metadata"]),
        "spec": _fields(spec, "suspend"),
        "status": {"conditions": _each(status.get("conditions"), "type", "status", "reason", "message")},
    }


def _retry_volumes(pod_spec: Mapping[str, Any]) -> list[dict[str, str]]:
    mounted = any(volume["name"] == labels.RETRY_VOLUME for volume in pod_spec.get("volumes") or ())
    return [{"name": labels.RETRY_VOLUME}] if mounted else []


def _pod_status(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [each for each in status.get("conditions") or () if each.get("type") in CONDITIONS]
    return {
        **_fields(status, "phase", "reason", "message", "podIP", "startTime"),
        "conditions": _each(conditions, "type", "status", "reason", "message", "lastTransitionTime"),
        **{
            key: [_container_status(each) for each in islice(status[key], ENTRIES_MAX)]
            for key in ("initContainerStatuses", "containerStatuses")
            if status.get(key)
        },
    }


def _container_status(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_fields(status, "name", "restartCount", "ready"),
        **{key: _state(status[key]) for key in ("state", "lastState") if status.get(key)},
    }


def _state(state: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("reason", "message", "exitCode", "signal", "startedAt", "finishedAt")
    return {
        key: _fields(state[key], *kept) for key in ("waiting", "running", "terminated") if state.get(key) is not None
    }


def _metadata(metadata: Mapping[str, Any], annotations: tuple[str, ...]) -> dict[str, Any]:
    kept = _fields(metadata, *IDENTITY)
    # Labels and annotations are compared to detect changes, so both fields are present even if they are empty.
    kept["labels"] = _fields(metadata.get("labels") or {}, *LABELS)
    kept["annotations"] = _fields(metadata.get("annotations") or {}, *annotations)
    if metadata.get("ownerReferences"):
        kept["ownerReferences"] = _each(metadata["ownerReferences"], "apiVersion", "kind", "name", "uid", "controller")
    return kept


def _edited(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the markers `EDITED` and `WRITTEN` (see `drift`). An object that is already trimmed keeps its markers."""
    edited = {EDITED: True} if metadata.get(EDITED) or others_fields(metadata) else {}
    return edited | ({WRITTEN: True} if has_written(metadata) else {})


def _each(entries: Iterable[Mapping[str, Any]] | None, *keys: str) -> list[dict[str, Any]]:
    return [_fields(entry, *keys) for entry in islice(entries or (), ENTRIES_MAX)]


def _fields(body: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Copy the named fields. If a string is too long, only its end is kept, because the last line of a message may be a
    worker's report."""
    kept = {key: body[key] for key in keys if key in body}
    return {key: value[-TEXT_CHARACTERS_MAX:] if isinstance(value, str) else value for key, value in kept.items()}
