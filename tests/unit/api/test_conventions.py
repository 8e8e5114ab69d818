"""The rules of docs/api-conventions.md, held against every field of every CRD."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
CAMEL_CASE: Final = re.compile(r"[A-Z][A-Za-z0-9]*")
FIELD: Final = re.compile(r"[a-z][A-Za-z0-9]*")
SASL_MECHANISMS: Final = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"}
"""Enum values that Kafka spells otherwise; assignors and settings of librdkafka are no enums."""
KUBERNETES: Final = (
    "spec.template.spec.",
    "spec.sink.parquet.volume.csi.",
    "spec.sink.table.volume.csi.",
    "spec.spark.placement.tolerations[]",
)
"""Types of Kubernetes' own, with its words, units and defaults."""
OUR_WORDS: Final = re.compile(r"spec\.template\.spec\.((initContainers|containers|volumes)(\[\]\.)?)?\w*")
"""The parts of the pod template that our pages describe; what is inside them is described by Kubernetes."""
TIMES: Final = re.compile(r"\w+(At|Since|Time)|since|at")
UNITS: Final = re.compile(r"(?i)\w*(millis|milliseconds|Ms|minutes|hours|days|timeout|interval|duration|period|delay)")
ZERO: Final = {"replicas", "minReplicas", "partition", "offset", "retry", "scaleDownStabilizationSeconds"} | {
    "ttlSecondsAfterFinished",
    "lateSeconds",
    "from",
    "to",
}
"""Fields in which 0 is a number like others: no workers, the first partition, the first record, at once, in order."""
STATES: Final = {"Required", "Default: ", "Absent: ", "Exactly one of", "Only with"}
RATES: Final = {"recordsPerSecond", "ratePerSecond", "maxRebalancesPerHour"}


@dataclass(frozen=True, slots=True)
class Part:
    """A field, or the items of a list (`[]`), or the values of a map (`{}`)."""

    path: str
    schema: Mapping[str, Any]
    required: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def kind(self) -> str:
        return str(self.schema.get("type", ""))

    @property
    def text(self) -> str:
        return str(self.schema.get("description", ""))

    @property
    def is_field(self) -> bool:
        return not self.path.endswith(("[]", "{}"))

    @property
    def is_ours(self) -> bool:
        return not self.path.startswith(KUBERNETES) and ".resources." not in self.path

    @property
    def is_wanted(self) -> bool:
        """A field of a spec that people write."""
        return self.is_ours and self.is_field and self.path.startswith("spec.")


def walk(schema: Mapping[str, Any], path: str) -> Iterator[Part]:
    """Every part below a schema."""
    for name, inner in schema.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield Part(place, inner, name in schema.get("required", ()))
        yield from walk(inner, place)
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(inner := schema.get(word), dict):
            yield Part(path + mark, inner)
            yield from walk(inner, path + mark)


def crd(plural: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((ROOT / "crds" / f"consumerfleet.io_{plural}.yaml").read_text())
    return body


def parts_of(plural: str) -> list[Part]:
    (version,) = crd(plural)["spec"]["versions"]
    return list(walk(version["schema"]["openAPIV3Schema"], ""))


PARTS: Final = {path.stem.partition("_")[2]: parts_of(path.stem.partition("_")[2]) for path in ROOT.glob("crds/*.yaml")}


@pytest.fixture(params=sorted(PARTS))
def parts(request: pytest.FixtureRequest) -> list[Part]:
    return PARTS[request.param]


def test_every_field_has_a_camel_case_name_and_a_description(parts: list[Part]) -> None:
    """`kubectl explain` is the reference. Values of maps have no documentation of their own there."""
    assert [part.path for part in parts if part.is_field and not FIELD.fullmatch(part.name)] == []
    described = [part for part in parts if part.is_ours or OUR_WORDS.fullmatch(part.path)]
    nameless = [part.path for part in described if not part.text and not part.path.endswith("{}")]
    assert [path for path in nameless if path != "metadata"] == []


def test_enums_are_camel_case_or_kafkas(parts: list[Part]) -> None:
    values = [(part.path, value) for part in parts if part.is_ours for value in part.schema.get("enum", ())]
    bad = [(path, value) for path, value in values if not CAMEL_CASE.fullmatch(value) and value not in SASL_MECHANISMS]
    assert bad == []


def test_nothing_is_unbounded_and_nothing_is_a_float(parts: list[Part]) -> None:
    """An API client could fill it without limit; statuses included."""
    bad = []
    for part in (part for part in parts if part.path not in ("apiVersion", "kind")):
        schema = part.schema
        free = part.kind == "string" and not schema.keys() & {"maxLength", "enum", "format"}
        free |= part.kind == "array" and "maxItems" not in schema
        free |= "additionalProperties" in schema and "maxProperties" not in schema
        if free or part.kind == "number":
            bad.append(part.path)
    assert bad == []


def test_lists_say_how_they_are_merged(parts: list[Part]) -> None:
    """Sets of plain values, maps of objects by keys that each item must have, or atomic."""
    bad = []
    for part in (part for part in parts if part.kind == "array"):
        items, kind = part.schema["items"], part.schema.get("x-kubernetes-list-type")
        keys = set(part.schema.get("x-kubernetes-list-map-keys", ()))
        good = {
            "atomic": not keys,
            "set": not keys and items.get("type") != "object",
            "map": bool(keys) and keys <= {*items.get("required", ()), *defaulted(items)},
        }
        if not good.get(str(kind)):
            bad.append(f"{part.path}: {kind}")
    assert bad == []


def defaulted(items: Mapping[str, Any]) -> set[str]:
    return {name for name, field in items.get("properties", {}).items() if "default" in field}


def test_uniqueness_is_said_once(parts: list[Part]) -> None:
    """Sets and maps hold each item once; only a list whose order counts needs a rule for it."""
    bad = []
    for part in parts:
        for rule in part.schema.get("x-kubernetes-validations", ()):
            ruled = re.findall(r"self\.(\w+)\.exists_one\(", rule["rule"])
            types = {name: part.schema["properties"][name]["x-kubernetes-list-type"] for name in ruled}
            bad += [f"{part.path}.{name}" for name, kind in types.items() if kind != "atomic"]
    assert bad == []


def test_durations_are_whole_seconds_with_bounds(parts: list[Part]) -> None:
    bad = []
    for part in (part for part in parts if part.is_ours and part.kind == "integer"):
        if part.name.endswith("Seconds"):
            if part.path.startswith("spec.") and not {"minimum", "maximum"} <= part.schema.keys():
                bad.append(f"{part.path}: without bounds")
        elif UNITS.fullmatch(part.name) or ("Seconds " in part.text and part.name not in RATES):
            bad.append(f"{part.path}: a duration whose name does not end in Seconds")
    assert bad == []


def test_integers_have_a_format_and_wanted_ones_have_bounds(parts: list[Part]) -> None:
    integers = [part for part in parts if part.is_ours and part.kind == "integer" and part.is_field]
    assert [part.path for part in integers if part.schema.get("format") not in ("int32", "int64")] == []
    wanted = [part for part in integers if part.is_wanted]
    assert [part.path for part in wanted if not {"minimum", "maximum"} <= part.schema.keys()] == []


def test_zero_never_means_default(parts: list[Part]) -> None:
    zeros = [part for part in parts if part.is_wanted and part.schema.get("minimum", 1) <= 0]
    assert [part.path for part in zeros if part.name not in ZERO] == []


def test_times_are_rfc_3339(parts: list[Part]) -> None:
    times = [part for part in parts if part.is_ours and part.kind == "string" and TIMES.fullmatch(part.name)]
    assert [part.path for part in times if part.schema.get("format") != "date-time"] == []
    assert {part.schema["format"] for part in parts if part.kind == "string" and "format" in part.schema} <= {
        "date-time"
    }


def test_every_wanted_field_says_if_it_is_required_and_what_its_absence_means(parts: list[Part]) -> None:
    bad = []
    for part in (part for part in parts if part.is_wanted):
        default = part.schema.get("default")
        shown = str(default).lower() if isinstance(default, bool) else str(default).replace("'", "")
        if default not in (None, {}) and f"Default: {shown}" not in part.text:
            bad.append(f"{part.path}: its default {shown}")
        if part.required != ("Required" in part.text) and default is None:
            bad.append(f"{part.path}: that it is {'' if part.required else 'not '}required")
        if not part.required and part.kind != "object" and not any(word in part.text for word in STATES):
            bad.append(f"{part.path}: what its absence means")
    assert bad == []


def test_transition_rules_stand_on_what_cannot_be_taken_away(parts: list[Part]) -> None:
    """On an optional field such a rule does not see that the field is added or removed."""
    required = {"spec"}
    for part in parts:
        if part.required and part.path.rpartition(".")[0] in required:
            required.add(part.path)
    rules = [(part.path, rule["rule"]) for part in parts for rule in part.schema.get("x-kubernetes-validations", ())]
    assert [path for path, rule in rules if "oldSelf" in rule and path not in required] == []
    for path, rule in rules:
        for name in re.findall(r"self\.(\w+) == oldSelf\.\1\b", rule):
            (field,) = [part for part in parts if part.path == f"{path}.{name}"]
            seen = f"has(self.{name}) == has(oldSelf.{name})" in rule
            assert seen or field.required or "default" in field.schema, f"{path}: {name} can be added"


def test_expressions_of_users_name_their_syntax() -> None:
    """It is the syntax of decision 0027, and people know several others."""
    fields = [part for parts in PARTS.values() for part in parts if re.search("topicPattern|Regex$", part.name)]
    assert len(fields) == 5
    assert [part.path for part in fields if "RE2's syntax" not in part.text or "epetition" in part.text] == []


@pytest.mark.parametrize("plural", sorted(PARTS))
def test_objects_can_be_selected_by_every_reference(plural: str) -> None:
    """Whoever changes a ConfigMap or a Secret asks who uses it."""
    (version,) = crd(plural)["spec"]["versions"]
    selectable = {field["jsonPath"].removeprefix(".") for field in version.get("selectableFields", ())}
    references = {f"{part.path}.name" for part in PARTS[plural] if part.is_wanted and part.name.endswith("Ref")}
    assert references - selectable == set()


def test_page_names_every_exception() -> None:
    page = (ROOT / "docs" / "api-conventions.md").read_text()
    assert [word for word in sorted(SASL_MECHANISMS) if f"`{word}`" not in page] == []
