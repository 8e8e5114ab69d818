"""Annotations that make a kubelet renew a running pod's mounted files at once.

One patch names all of them: in a server-side apply, an annotation that is left out is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_operator.planning.labels import POLICIES_ANNOTATION, SKIP_ANNOTATION

NOTICES: Final = (POLICIES_ANNOTATION, SKIP_ANNOTATION)

Notices = Mapping[str, Mapping[str, str]]
"""New annotations by the uid of the pod."""


def notices(pods: Iterable[Mapping[str, Any]], *wanted: Notices) -> list[dict[str, Any]]:
    """Patches for the pods that want an annotation; each keeps what the pod has of the others."""
    patches = []
    for pod in pods:
        metadata = pod["metadata"]
        new = {key: value for each in wanted for key, value in each.get(metadata["uid"], {}).items()}
        if not new or metadata.get("deletionTimestamp"):
            continue
        known = metadata.get("annotations") or {}
        where = {key: metadata[key] for key in ("name", "namespace", "uid")}
        annotations = {key: known[key] for key in NOTICES if key in known} | new
        patches.append({"apiVersion": "v1", "kind": "Pod", "metadata": {**where, "annotations": annotations}})
    return patches
