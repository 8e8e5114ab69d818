"""What every object that the operator makes begins with: its place, its labels, and whose it is.

The owner reference lets the cluster clean up after an owner that is gone, so it must be the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_operator.api.v1alpha1.model import API_VERSION


def child_head(
    api_version: str,
    kind: str,
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    owner_kind: str,
    owner_name: str,
    owner_uid: str,
) -> dict[str, Any]:
    """The beginning of an object of this kind, controlled by one of our own kinds in the same namespace."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": owner_kind,
        "name": owner_name,
        "uid": owner_uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels), "ownerReferences": [owner]},
    }
