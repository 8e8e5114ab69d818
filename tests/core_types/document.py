"""The part of Kubernetes' OpenAPI document (`/openapi/v3/api/v1`) that a pod template needs, without descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["DOCUMENT", "read", "reduced"]

DOCUMENT: Final = Path(__file__).with_name("core-v1.json")
"""The committed part. A test on a real API server compares it with what that server publishes."""

CORE: Final = "io.k8s.api.core.v1."
ROOTS: Final = (
    *("Affinity", "Container", "EnvFromSource", "EnvVarSource", "HostAlias", "LifecycleHandler"),
    *("PodDNSConfig", "Probe", "Toleration", "TopologySpreadConstraint", "VolumeMount"),
    *("ConfigMapProjection", "DownwardAPIProjection", "SecretProjection"),
    *("ConfigMapVolumeSource", "CSIVolumeSource", "DownwardAPIVolumeSource", "EmptyDirVolumeSource"),
    *("EphemeralVolumeSource", "ImageVolumeSource", "PersistentVolumeClaimVolumeSource", "SecretVolumeSource"),
)
POD_SPEC: Final = f"{CORE}PodSpec"
POD_SPEC_FIELDS: Final = ("hostAliases", "tolerations", "topologySpreadConstraints")
"""Lists of a pod's spec, which say there how they are merged."""


def read() -> dict[str, Any]:
    """The committed schemas, by the full name of their type."""
    schemas: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return schemas


def reduced(published: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas behind `ROOTS` of a whole document, by the full name of their type."""
    schemas = published["components"]["schemas"]
    fields = {name: schemas[POD_SPEC]["properties"][name] for name in POD_SPEC_FIELDS}
    found = {POD_SPEC: _bare({"type": "object", "properties": fields})}
    waiting = [CORE + name for name in ROOTS]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _bare(schemas[name])
            waiting += _references(found[name])
    return dict(sorted(found.items()))


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "description" or not isinstance(value, str)}
    return {key: _bare(value) for key, value in kept.items()}


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for each in schema.values():
            yield from _references(each)
