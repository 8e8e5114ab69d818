"""Cuts of children, and of what is labelled as one, to the fields that the operator reads, each of a bounded size.

Their labels are all that the API server selects them by, so any of them may be somebody else's, and large. What a cut
leaves out, no decision may rest on: a new reading of a field belongs here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.planning.fleet.pod_template import CONTAINER, RETRY_VOLUME
from fleet_operator.planning.labels import (
    CHANGED_ANNOTATION,
    COMPONENT_LABEL,
    GROUP_LABEL,
    HASH_ANNOTATION,
    KNOWN_ANNOTATION,
    POLICIES_ANNOTATION,
    POLICY_LABEL,
    RATE_ANNOTATION,
    REDRIVE_LABEL,
    REVISION_ANNOTATION,
)

LABELS: Final = (GROUP_LABEL, POLICY_LABEL, COMPONENT_LABEL, HANDLER_LABEL, REDRIVE_LABEL)
CONFIG_MAP_ANNOTATIONS: Final = (REVISION_ANNOTATION, HASH_ANNOTATION)
POD_ANNOTATIONS: Final = (REVISION_ANNOTATION, POLICIES_ANNOTATION)
STATEFUL_SET_ANNOTATIONS: Final = (REVISION_ANNOTATION, CHANGED_ANNOTATION)
JOB_ANNOTATIONS: Final = (RATE_ANNOTATION,)
IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
REPLICA_COUNTS: Final = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas")
CONDITIONS: Final = ("Ready", "PodScheduled")

TEXT_CHARACTERS_MAX: Final = 4096
"""The kubelet cuts termination messages to so many bytes."""
KNOWN_CHARACTERS_MAX: Final = 65_536
"""The digests of several hundred revisions; a fleet keeps a few."""
ENTRIES_MAX: Final = 32
"""Of owners, containers, ports: more than any object of ours has."""


def trim_config_map(body: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap's identity, owners and the annotations that say of what it is a record. The data is left out."""
    return {**_head(body), "metadata": _metadata(body["metadata"], CONFIG_MAP_ANNOTATIONS)}


def trim_pod(body: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's identity and owners, the worker's ports, the volume by which it has retries, and its state."""
    spec = body.get("spec") or {}
    return {
        **_head(body),
        "metadata": _metadata(body["metadata"], POD_ANNOTATIONS),
        "spec": {
            "containers": [
                {"name": CONTAINER, "ports": _each(each.get("ports"), "name", "containerPort")}
                for each in spec.get("containers") or ()
                if each.get("name") == CONTAINER
            ],
            "volumes": _retry_volumes(spec),
        },
        "status": _pod_status(body.get("status") or {}),
    }


def trim_stateful_set(body: Mapping[str, Any]) -> dict[str, Any]:
    """A StatefulSet's identity, owners and revisions, its counts, and the volume by which its pods have retries."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    metadata = _metadata(body["metadata"], STATEFUL_SET_ANNOTATIONS) | _fields(body["metadata"], "generation")
    known = (body["metadata"].get("annotations") or {}).get(KNOWN_ANNOTATION)
    if known is not None:
        # Cut short it would be no JSON, and so name no revision: the same, for less memory.
        metadata["annotations"][KNOWN_ANNOTATION] = known if len(known) <= KNOWN_CHARACTERS_MAX else ""
    pods = (spec.get("template") or {}).get("spec") or {}
    return {
        **_head(body),
        "metadata": metadata,
        "spec": {**_fields(spec, "replicas"), "template": {"spec": {"volumes": _retry_volumes(pods)}}},
        "status": _fields(status, "observedGeneration", "currentRevision", "updateRevision", *REPLICA_COUNTS),
    }


def trim_job(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Job's identity, owners and rate, and whether it is suspended or has ended, and why."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return {
        **_head(body),
        "metadata": _metadata(body["metadata"], JOB_ANNOTATIONS) | _fields(body["metadata"], "generation"),
        "spec": _fields(spec, "suspend"),
        "status": {"conditions": _each(status.get("conditions"), "type", "status", "reason", "message")},
    }


def _retry_volumes(pod_spec: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": RETRY_VOLUME}] if any(v["name"] == RETRY_VOLUME for v in pod_spec.get("volumes") or ()) else []


def _pod_status(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [each for each in status.get("conditions") or () if each.get("type") in CONDITIONS]
    return {
        **_fields(status, "phase", "reason", "message", "podIP"),
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
    # As these two are compared to find out what changed, they are there even where they are empty.
    kept["labels"] = _fields(metadata.get("labels") or {}, *LABELS)
    kept["annotations"] = _fields(metadata.get("annotations") or {}, *annotations)
    if metadata.get("ownerReferences"):
        kept["ownerReferences"] = _each(metadata["ownerReferences"], "apiVersion", "kind", "name", "uid", "controller")
    return kept


def _each(entries: Iterable[Mapping[str, Any]] | None, *keys: str) -> list[dict[str, Any]]:
    return [_fields(entry, *keys) for entry in islice(entries or (), ENTRIES_MAX)]


def _fields(body: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """These fields, of texts the end: a worker's report is the last line of what it left."""
    return {key: _short(body[key]) for key in keys if key in body}


def _short(value: Any) -> Any:
    return value[-TEXT_CHARACTERS_MAX:] if isinstance(value, str) else value
