"""A type of Kubernetes as the structural schema of a CRD: references resolved, every text, list and map bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.core_types.document import CORE

__all__ = ["structural"]

ITEMS_MAX: Final = 64
TEXT_MAX: Final = 1024
LONG_TEXTS: Final[Mapping[str, int]] = {"command": 65_536, "volumeAttributes": 16_384}
"""Longest strings within these fields; the size of a spec bounds the object as a whole."""
KEPT: Final = (
    *("type", "format", "enum", "required"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
)
INT_OR_STRING: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
QUANTITY: Final = INT_OR_STRING | {
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
}
"""The pattern of the CRDs that Kubernetes' own tools make."""
WORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    "recursiveReadOnly": {"enum": ["Disabled", "IfPossible", "Enabled"]},
    "medium": {"pattern": "^(Memory|HugePages(-.+)?)?$"},
}
"""Words that Kubernetes checks in its code, so that its document does not list them."""
METADATA_FIELDS: Final = ("annotations", "labels")
"""Fields that the metadata of a claim's template may have; Kubernetes refuses the others."""


def structural(schemas: Mapping[str, Any], place: str, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Schema of a type (`Probe`) or of a field of it (`PodSpec.tolerations`), less the fields `without`."""
    name, _, field = place.partition(".")
    schema = schemas[CORE + name]
    return _Making(schemas, without).made(schema["properties"][field] if field else schema, "", field)


class _Making:
    def __init__(self, schemas: Mapping[str, Any], without: frozenset[str]) -> None:
        self._schemas, self._without = schemas, without

    def made(self, schema: Mapping[str, Any], path: str, field: str) -> dict[str, Any]:
        """The structural form of a schema that stands at `path`, within the field of that name."""
        if "allOf" in schema:
            (reference,) = schema["allOf"]
            schema = {key: value for key, value in schema.items() if key not in ("allOf", "default")} | reference
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name.endswith(".Quantity"):
                return QUANTITY
            target = self._schemas[name]
            if name.endswith(".ObjectMeta"):
                target = {**target, "properties": {key: target["properties"][key] for key in METADATA_FIELDS}}
            return self.made({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, path, field)
        if "oneOf" in schema:
            return INT_OR_STRING
        result = {key: schema[key] for key in KEPT if key in schema}
        if schema.get("default"):
            result["default"] = schema["default"]
        return result | self._inside(schema, path, field)

    def _inside(self, schema: Mapping[str, Any], path: str, field: str) -> dict[str, Any]:
        if "properties" in schema:
            places = {name: f"{path}.{name}".lstrip(".") for name in sorted(schema["properties"])}
            kept = {name: place for name, place in places.items() if place not in self._without}
            return {
                "properties": {name: self.made(schema["properties"][name], place, name) for name, place in kept.items()}
            }
        if "items" in schema:
            bound = {} if "x-kubernetes-list-type" in schema else {"x-kubernetes-list-type": "atomic"}
            return bound | {"maxItems": ITEMS_MAX, "items": self.made(schema["items"], path, field)}
        if "additionalProperties" in schema:
            values = self.made(schema["additionalProperties"], path, field)
            return {"maxProperties": ITEMS_MAX, "additionalProperties": values}
        if schema.get("type") == "string" and not schema.keys() & {"format", "enum"}:
            words = WORDS.get(field, {})
            return {**words} if "enum" in words else {**words, "maxLength": LONG_TEXTS.get(field, TEXT_MAX)}
        return {}
