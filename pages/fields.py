"""Generates the page docs/fields.md from the CRDs: a row for each field of the custom resources."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pages.markdown import code, escaped, table

Schema = Mapping[str, Any]

HEAD: Final = """\
# Fields

<!-- Generated from crds/ by `make pages`. -->

This page lists every field of the kinds that you write, with the same descriptions as `kubectl explain`. `[]` is an
item of a list, and `{}` is a value of a map. A default applies only if the parent of the field is present. Fields of
Kubernetes types are omitted, because Kubernetes documents them.
"""


class Field(NamedTuple):
    path: str
    schema: Schema
    required: bool


def fields_page(crds: Iterable[Schema]) -> str:
    """Return the page. `crds`: the CustomResourceDefinitions, in the order of the page."""
    lines = [HEAD]
    for crd in crds:
        (version,) = crd["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        lines += [f"## {crd['spec']['names']['kind']}", "", escaped(schema["description"]), ""]
        for part in ("spec", "status"):
            rows = [_row(field) for field in fields_of(schema["properties"][part], part)]
            lines += [*table(("Field", "Type", "Default", "Values", "Meaning"), rows), ""]
    return "\n".join(lines)


def fields_of(schema: Schema, path: str) -> Iterator[Field]:
    """Yield the fields below an object that have a description. Fields of Kubernetes types have none."""
    for name, field in (schema.get("properties") or {}).items():
        if "description" not in field:
            continue
        place = f"{path}.{name}"
        yield Field(place, field, name in schema.get("required", ()))
        for mark, inner in (("[]", field.get("items")), ("{}", field.get("additionalProperties")), ("", field)):
            if isinstance(inner, Mapping):
                yield from fields_of(inner, place + mark)


def _row(field: Field) -> tuple[str, ...]:
    schema = field.schema
    default = code(_value(schema["default"])) if "default" in schema else "required" if field.required else ""
    return code(field.path), type_of(schema), default, "; ".join(values_of(schema)), escaped(schema["description"])


def type_of(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'])}s"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {type_of(schema['additionalProperties'])}s"
    return "time" if schema.get("format") == "date-time" else str(schema.get("type", "any"))


def values_of(schema: Schema) -> Iterator[str]:
    """Yield the bounds of a field's value and of a list's items. Patterns are omitted: the meanings describe them."""
    if "enum" in schema:
        yield ", ".join(code(_value(each)) for each in schema["enum"])
    yield from _range("", schema.get("minimum"), schema.get("maximum"))
    yield from _range(" characters", schema.get("minLength"), schema.get("maxLength"))
    yield from _range(" items", schema.get("minItems"), schema.get("maxItems"))
    yield from _range(" entries", schema.get("minProperties"), schema.get("maxProperties"))
    if schema.get("type") == "array":
        yield from (f"each {each}" for each in values_of(schema["items"]))


def _range(unit: str, least: int | None, most: int | None) -> Iterator[str]:
    if least is not None and most is not None:
        yield f"{least} to {most}{unit}"
    elif most is not None:
        yield f"at most {most}{unit}"
    elif least is not None:
        yield f"at least {least}{unit}"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
