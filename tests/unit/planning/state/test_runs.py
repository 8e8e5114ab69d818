"""The same run: specs that the CRDs' rule of immutability holds to be equal."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fleet_operator.api.v1alpha1 import Backfill, OffsetReset, Redrive
from fleet_operator.planning.state.runs import digest_of
from tests.unit.api.backfill_objects import backfill, full_backfill
from tests.unit.api.crd_objects import full_redrive

CRDS: Final = Path(__file__).resolve().parents[4] / "crds"
Path_ = tuple[str, ...]


def reset(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "OffsetReset", "metadata": {"name": "again"}}
    return head | {"spec": {"groupRef": {"name": "orders"}} | spec}


RUNS: Final[dict[Any, list[dict[str, Any]]]] = {
    Redrive: [full_redrive()],
    Backfill: [
        full_backfill(),
        backfill({"spec.range": {"offsets": [{"partition": n, "from": 1, "to": 9} for n in (4, 2)]}}),
        backfill(
            {
                "spec.sink": {
                    "table": {
                        "format": "Parquet",
                        "path": "s3a://b/c",
                        "columns": [{"name": name, "type": "int"} for name in ("b", "a")],
                    }
                }
            }
        ),
        backfill(
            {"spec.compare": {"callable": "a:b", "ignoreFields": ["handledAt", "by"], "ignoreHeaders": ["x", "y"]}}
        ),
    ],
    OffsetReset: [
        reset(to="Time", time="2026-01-31T12:00:00Z", topics=["orders", "Orders"], notAfter="2026-03-31T12:00:00Z"),
        reset(to="Offsets", offsets=[{"topic": "orders", "partition": n, "offset": 5} for n in (1, 0)]),
    ],
}


def loose(schema: dict[str, Any], path: Path_ = ()) -> Iterator[Path_]:
    """The fields whose value may be written in several ways."""
    kind = schema.get("x-kubernetes-list-type", "")
    if kind in ("set", "map") or schema.get("format") == "date-time":
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from loose(inner, (*path, name))


def rewritten(spec: dict[str, Any], path: Path_) -> dict[str, Any] | None:
    """A spec with one of its fields written in another way; None if it does not have it."""
    changed = copy.deepcopy(spec)
    place: Any = changed
    for name in path[:-1]:
        place = place.get(name, {})
    value = place.get(path[-1])
    if isinstance(value, str):
        place[path[-1]] = value.replace("Z", ".000000Z") if "Z" in value else value.replace("+01:00", "00+01:00")
    elif value is not None:
        place[path[-1]] = value[::-1]
    return changed if changed != spec else None


@pytest.mark.parametrize("model", RUNS, ids=lambda model: model.__name__)
def test_run_is_the_same_in_whatever_way_its_spec_is_written(model: Any) -> None:
    (file,) = CRDS.glob(f"*_{model.__name__.lower()}s.yaml")
    (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path in loose(spec):
        tried = 0
        for body in RUNS[model]:
            other = rewritten(body["spec"], path)
            if other is not None:
                tried += 1
                assert digest_of(model.model_validate(body | {"spec": other})) == digest_of(model.model_validate(body))
        assert tried, f"no example has {path}"


def test_other_times_names_and_offsets_make_another_run() -> None:
    bodies = [
        reset(to="Time", time="2026-01-31T12:00:00Z"),
        reset(to="Time", time="2026-01-31T12:00:00.5Z"),
        reset(to="Latest", topics=["20260131"]),
        reset(to="Latest", topics=["2026-01-31"]),
        reset(to="Offsets", offsets=[{"topic": "a", "partition": 0, "offset": 1}]),
        reset(to="Offsets", offsets=[{"topic": "a", "partition": 1, "offset": 0}]),
    ]
    assert len({digest_of(OffsetReset.model_validate(body)) for body in bodies}) == len(bodies)
