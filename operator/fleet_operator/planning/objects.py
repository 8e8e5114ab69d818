"""Objects that the operator makes: common head, owner reference, and JSON content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fleet_operator.api.v1alpha1.model import API_VERSION


class Owner(NamedTuple):
    """The custom resource that controls a child in its namespace."""

    kind: str
    namespace: str
    name: str
    uid: str


def child_head(api_version: str, kind: str, name: str, *, owner: Owner, labels: Mapping[str, str]) -> dict[str, Any]:
    """Type, name, labels and controller reference of a child; Kubernetes deletes the child after its owner."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": owner.namespace,
        "labels": dict(labels),
        "ownerReferences": [reference],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def to_json(value: Mapping[str, Any]) -> str:
    """Canonical JSON for ConfigMaps, indented for readers."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
