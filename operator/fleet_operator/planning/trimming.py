"""Trims objects to the fields that the operator reads, each of a bounded size.

The API server selects children by label only, so any of them may be somebody else's, and large. No decision may rest on
a field that is cut: a new reader of a field adds it here. A spec is cut as a whole: nothing is decided from it then.
"""

from __future__ import annotations

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
IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
REPLICA_COUNTS: Final = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas")
CONDITIONS: Final = ("Ready", "PodScheduled", "PodReadyToStartContainers", "DisruptionTarget")

TEXT_CHARACTERS_MAX: Final = 4096
"""The kubelet's limit of termination messages, in bytes."""
KNOWN_CHARACTERS_MAX: Final = 65_536
"""Enough for the digests of several hundred revisions; a fleet keeps a few."""
ENTRIES_MAX: Final = 32
"""Most owners, containers and ports kept: more than any own object has."""
SPEC_BYTES_MAX: Final = 65_536
"""Limit of a spec as JSON. One of this size takes 30 ms to plan, on the thread that serves everybody; the largest of
honest ones seen, with a dozen sidecars, have a third of it."""
BULK_BYTES_MAX: Final = {"offsets": 524_288, "range": 131_072}
"""Fields of specs with a limit of their own: offsets of thousands of partitions."""
OWN_PREFIX: Final = f"{GROUP}/"


def trim_resource(body: dict[str, Any]) -> dict[str, Any]:
    """A custom resource with the labels, annotations and finalizers that are read, and without the fields of its spec
    that are too large to be planned, in whose place it says so. Changes the object.

    The largest fields go first: references and names stay, by which others find the object.
    """
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
    except orjson.JSONEncodeError:  # half surrogate pairs, and deep nesting
        return len(json.dumps(value))


def _cut(body: dict[str, Any], field: str, size: int, limit: int, where: str = "") -> None:
    body[TOO_LARGE] = f"{field} has {size} bytes as JSON{where}, and more than {limit} are refused: make it smaller"


def trim_config_map(body: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap's identity, owners and record annotations, without its data."""
    return {**_head(body), "metadata": _metadata(body["metadata"], CONFIG_MAP_ANNOTATIONS) | _edited(body["metadata"])}


def trim_pod(body: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's identity and owners, the worker's ports, the kinds of its init containers, the volume of retry policies,
    its state, and who has changed its containers."""
    spec = body.get("spec") or {}
    edited = body["metadata"].get(EDITED) or changed_by(body["metadata"])
    return {
        **_head(body),
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
    """A StatefulSet's identity, owners, revisions and counts, its workers' image and their volume of retry policies."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    metadata = _metadata(body["metadata"], STATEFUL_SET_ANNOTATIONS) | _fields(body["metadata"], "generation")
    metadata |= _edited(body["metadata"])
    known = labels.annotation_of(body, labels.KNOWN_ANNOTATION)
    if known is not None:
        # Cut short it would be no JSON and name no revision: empty has the same effect in less memory.
        metadata["annotations"][labels.KNOWN_ANNOTATION] = known if len(known) <= KNOWN_CHARACTERS_MAX else ""
    pods = (spec.get("template") or {}).get("spec") or {}
    workers = [each for each in pods.get("containers") or () if each.get("name") == labels.CONTAINER]
    kept_pods = {"containers": _each(workers, "name", "image"), "volumes": _retry_volumes(pods)}
    return {
        **_head(body),
        "metadata": metadata,
        "spec": {**_fields(spec, "replicas"), "template": {"spec": kept_pods}},
        "status": _fields(status, "observedGeneration", "currentRevision", "updateRevision", *REPLICA_COUNTS),
    }


def trim_job(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Job's identity, owners, rate, suspension and conditions."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return {
        **_head(body),
        "metadata": {
            **_metadata(body["metadata"], JOB_ANNOTATIONS),
            **_fields(body["metadata"], "generation"),
            **_edited(body["metadata"]),
        },
        "spec": _fields(spec, "suspend"),
        "status": {"conditions": _each(status.get("conditions"), "type", "status", "reason", "message")},
    }


def _retry_volumes(pod_spec: Mapping[str, Any]) -> list[dict[str, str]]:
    return (
        [{"name": labels.RETRY_VOLUME}]
        if any(v["name"] == labels.RETRY_VOLUME for v in pod_spec.get("volumes") or ())
        else []
    )


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


def _head(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": body["apiVersion"], "kind": body["kind"]}


def _metadata(metadata: Mapping[str, Any], annotations: tuple[str, ...]) -> dict[str, Any]:
    kept = _fields(metadata, *IDENTITY)
    # Both are compared to detect changes, so they are present even where they are empty.
    kept["labels"] = _fields(metadata.get("labels") or {}, *LABELS)
    kept["annotations"] = _fields(metadata.get("annotations") or {}, *annotations)
    if metadata.get("ownerReferences"):
        kept["ownerReferences"] = _each(metadata["ownerReferences"], "apiVersion", "kind", "name", "uid", "controller")
    return kept


def _edited(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Marks on an object in which others have set fields, and on one in which ours were not all set by an apply; an
    object that is trimmed already keeps them."""
    edited = {EDITED: True} if metadata.get(EDITED) or others_fields(metadata) else {}
    return edited | ({WRITTEN: True} if has_written(metadata) else {})


def _each(entries: Iterable[Mapping[str, Any]] | None, *keys: str) -> list[dict[str, Any]]:
    return [_fields(entry, *keys) for entry in islice(entries or (), ENTRIES_MAX)]


def _fields(body: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """These fields, long texts cut to their end: a worker's report is the last line of its message."""
    return {key: _short(body[key]) for key in keys if key in body}


def _short(value: Any) -> Any:
    return value[-TEXT_CHARACTERS_MAX:] if isinstance(value, str) else value
