"""The operator's objects: their common head, owner reference and JSON content, and their adoption by another owner.

Backups restore objects without owner references, or with references to deleted objects. `kubectl delete
--cascade=orphan` leaves a running fleet without its owner. Such a fleet does not automatically belong to a new
ConsumerGroup of the same name, because somebody may be about to delete the fleet. An annotation of the new
ConsumerGroup requests the adoption.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fleet_operator.api.v1alpha1.model import ADOPT_ANNOTATION, API_VERSION, PAUSED_ANNOTATION
from fleet_operator.planning.labels import GROUP_LABEL, MANAGED_BY_LABEL, MANAGER


class Owner(NamedTuple):
    """The custom resource that controls a child in its namespace."""

    kind: str
    namespace: str
    name: str
    uid: str


def child_head(api_version: str, kind: str, name: str, *, owner: Owner, labels: Mapping[str, str]) -> dict[str, Any]:
    """Build a child's type, name, labels and controller reference. Kubernetes deletes the child after its owner."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"name": name, "namespace": owner.namespace, "labels": dict(labels), "ownerReferences": [reference]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def has_owner(child: Mapping[str, Any], uid: str) -> bool:
    """True if the owner with this uid owns an object. A deleted owner of the same name has another uid."""
    return any(owner.get("uid") == uid for owner in child["metadata"].get("ownerReferences") or ())


def to_json(value: Mapping[str, Any]) -> str:
    """Canonical JSON for ConfigMaps, indented for people."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


KIND: Final = "ConsumerGroup"


def asks_to_adopt(owner: Mapping[str, Any]) -> bool:
    """True if the owner's annotation requests the adoption of a former fleet of its name, and the owner is not
    paused."""
    annotations = owner["metadata"].get("annotations") or {}
    return annotations.get(ADOPT_ANNOTATION) == "true" and annotations.get(PAUSED_ANNOTATION) != "true"


def is_adoptable(child: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """True if this operator created an object for a ConsumerGroup of this name, and no existing object owns it."""
    metadata, name = child["metadata"], owner["metadata"]["name"]
    labels = metadata.get("labels") or {}
    if owner.get("kind") != KIND or metadata.get("deletionTimestamp") or owner["metadata"].get("deletionTimestamp"):
        return False
    if labels.get(GROUP_LABEL) != name or labels.get(MANAGED_BY_LABEL) != MANAGER:
        return False
    return all(_is_former(reference, owner) for reference in metadata.get("ownerReferences") or ())


def _is_former(reference: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """True for a reference to a deleted ConsumerGroup of this name. Names are unique, so another uid means that the
    referenced object was deleted."""
    same = (reference.get("kind"), reference.get("name")) == (KIND, owner["metadata"]["name"])
    of_ours = str(reference.get("apiVersion", "")).split("/")[0] == API_VERSION.split("/")[0]
    return same and of_ours and reference.get("uid") != owner["metadata"]["uid"]


def adopted(child: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """The patch that makes an object a child of this owner. The API server rejects it with a conflict if the object
    changed after it was read."""
    metadata, of = child["metadata"], owner["metadata"]
    new = Owner(KIND, of["namespace"], of["name"], of["uid"])
    body = child_head(child["apiVersion"], child["kind"], metadata["name"], owner=new, labels={})
    del body["metadata"]["labels"]
    body["metadata"] |= {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    return body
