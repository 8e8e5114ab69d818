"""The CRDs and the models that parse them say the same: names, types, required, enums, bounds, defaults."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fleet_operator.api.v1alpha1.backfill import BackfillSpec
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroupSpec
from fleet_operator.api.v1alpha1.kafkacluster import KafkaClusterSpec
from fleet_operator.api.v1alpha1.model import QUANTITY
from fleet_operator.api.v1alpha1.offsetreset import OffsetResetSpec
from fleet_operator.api.v1alpha1.redrive import RedriveSpec
from fleet_operator.api.v1alpha1.retrypolicy import RetryPolicySpec

CRDS: Final = Path(__file__).resolve().parents[3] / "crds"
KINDS: Final[Mapping[str, type[BaseModel]]] = {
    "backfills": BackfillSpec,
    "consumergroups": ConsumerGroupSpec,
    "kafkaclusters": KafkaClusterSpec,
    "offsetresets": OffsetResetSpec,
    "redrives": RedriveSpec,
    "retrypolicies": RetryPolicySpec,
}

OPAQUE: Final = frozenset({"resources", "affinity", "env", "envFrom", "volumes", "volumeMounts", "tolerations"}) | {
    "topologySpreadConstraints",
    "dnsConfig",
    "hostAliases",
    "initContainers",
    "containers",
}
"""Kubernetes' own types: the models pass them on as dicts, so only their outer type is compared."""

TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean", dict: "object", tuple: "array"}
BOUNDS: Final[Mapping[str, Mapping[str, str]]] = {
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "integer": {"ge": "minimum", "le": "maximum"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
SERVER_ONLY: Final = frozenset({"pattern", "maxItems", "maxProperties", "maxLength", "minLength"})
"""Bounds that only protect the API server's stores and rules may be missing in a model."""


@cache
def schema_of(plural: str) -> dict[str, Any]:
    """The schema of one CRD; read once, for a YAML file of this size takes a second."""
    crd = yaml.safe_load((CRDS / f"consumerfleet.io_{plural}.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def differences(schema: Mapping[str, Any], model: type[BaseModel], path: str) -> Iterator[str]:
    """Every difference between an object schema and a model, as readable lines."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    properties = schema.get("properties", {})
    for name in sorted(fields.keys() ^ properties.keys()):
        yield f"{path}.{name}: only in the {'model' if name in fields else 'CRD'}"
    required = {name for name, field in fields.items() if field.is_required()}
    if required != set(schema.get("required", ())):
        yield f"{path}: required {sorted(required)} in the model, {sorted(schema.get('required', ()))} in the CRD"
    for name in sorted(fields.keys() & properties.keys()):
        yield from field_differences(properties[name], fields[name], f"{path}.{name}", name)


def field_differences(schema: Mapping[str, Any], field: FieldInfo, path: str, name: str) -> Iterator[str]:
    wanted = default_of(field)
    if wanted != schema.get("default"):
        yield f"{path}: default {wanted!r} in the model, {schema.get('default')!r} in the CRD"
    yield from value_differences(schema, field.annotation, field.metadata, path, opaque=name in OPAQUE)


def value_differences(
    schema: Mapping[str, Any], annotation: Any, metadata: list[Any], path: str, *, opaque: bool = False
) -> Iterator[str]:
    annotation, metadata = unwrap(annotation, metadata)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if schema.get("type") != "object":
            yield f"{path}: an object in the model, {schema.get('type')} in the CRD"
        yield from differences(schema, annotation, path)
        return
    if get_origin(annotation) is Literal:
        if list(get_args(annotation)) != schema.get("enum"):
            yield f"{path}: enum {get_args(annotation)} in the model, {schema.get('enum')} in the CRD"
        return
    plain = get_origin(annotation) or annotation
    if schema.get("x-kubernetes-int-or-string"):  # a quantity, which a model keeps as its text
        schema = {**schema, "type": "string", "pattern": schema.get("pattern", QUANTITY)}
    if TYPES[plain] != schema.get("type"):
        yield f"{path}: {TYPES[plain]} in the model, {schema.get('type')} in the CRD"
    if "enum" in schema:
        yield f"{path}: an enum in the CRD only"
    if not opaque:
        yield from bound_differences(schema, metadata, path)
        if plain is tuple:
            yield from value_differences(schema["items"], get_args(annotation)[0], [], f"{path}[]")


def unwrap(annotation: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    """The bare type without `Annotated` and `| None`, and all constraints that were on it."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata = [*metadata, *more]
        elif get_origin(annotation) in (Union, types.UnionType):
            (annotation,) = (part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation, metadata


def bound_differences(schema: Mapping[str, Any], metadata: list[Any], path: str) -> Iterator[str]:
    flat = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    for attribute, keyword in BOUNDS.get(schema["type"], {}).items():
        found = next((value for part in flat if (value := getattr(part, attribute, None)) is not None), None)
        missing_is_fine = found is None and keyword in SERVER_ONLY
        if found != schema.get(keyword) and not missing_is_fine:
            yield f"{path}: {keyword} {found!r} in the model, {schema.get(keyword)!r} in the CRD"


def default_of(field: FieldInfo) -> Any:
    """A model's default in the CRD's terms; an empty container counts as no default, an object of defaults as {}."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None:
        return None
    if isinstance(value, BaseModel):
        return {} if any(default_of(inner) is not None for inner in type(value).model_fields.values()) else None
    if isinstance(value, tuple | dict):
        return (list(value) if isinstance(value, tuple) else value) or None
    return value


def test_every_crd_has_a_model() -> None:
    plurals = {*KINDS, "operatorstates"}  # the form of a state belongs to the operator alone
    assert {f"consumerfleet.io_{plural}" for plural in plurals} == {path.stem for path in CRDS.glob("*.yaml")}


@pytest.mark.parametrize("plural", KINDS)
def test_model_and_crd_agree(plural: str) -> None:
    """Whoever changes one of the two learns here about the other."""
    assert list(differences(schema_of(plural)["properties"]["spec"], KINDS[plural], "spec")) == []


def test_comparison_sees_each_kind_of_drift() -> None:
    """A comparison that cannot fail proves nothing."""
    schema = copy.deepcopy(schema_of("kafkaclusters")["properties"]["spec"])
    topic = schema["properties"]["offsetsTopic"]["properties"]
    topic["partitions"] |= {"default": 49, "maximum": 7}
    topic["manage"] = {**topic["manage"], "enum": ["Observe"]}
    topic["surprise"] = {"type": "string"}
    topic["segmentBytes"]["type"] = "string"
    del schema["required"]
    found = "\n".join(differences(schema, KafkaClusterSpec, "spec"))
    for line in ("partitions: default", "partitions: maximum", "manage: enum", "surprise: only in the CRD"):
        assert line in found
    assert "segmentBytes: integer in the model, string in the CRD" in found
    assert "spec: required" in found
