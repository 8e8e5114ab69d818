"""The chart's parts agree with each other and with the rest of the repository. What Helm makes of it is tested on a
server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_operator.clients.kinds import KINDS

CHART = Path(__file__).resolve().parents[3] / "charts" / "consumer-fleet"


DRIVER_ROLE = '{{ include "consumer-fleet.sparkDriverRole" . }}'


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def templates() -> str:
    return "\n".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))


WHOLE = ("image", "resources", "podSecurityContext", "containerSecurityContext")


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the values that stand for themselves; images, and objects of Kubernetes' own such as
    resources, are one each."""
    for name, value in tree.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and value and name not in WHOLE:
            yield from leaves(value, here)
        else:
            yield here


def declared(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in tree.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        if inner.get("properties"):
            yield from declared(inner, here)
        else:
            yield here


def test_every_value_is_used_and_declared() -> None:
    """A value that no template reads is a promise that nobody keeps."""
    known = set(leaves(values()))
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", templates()))
    assert {name for name in known if name not in used} == set()
    assert {name for name in used if name not in known} == set()
    assert known == set(declared(schema())) - {"global", "enabled"}


@pytest.mark.parametrize("interval", ["30s", "1m", "1h", "1m30s", "500ms", "1d12h"])
def test_interval_is_any_duration_of_prometheus(interval: str) -> None:
    for monitor in ("serviceMonitor", "podMonitor"):
        pattern = schema()["properties"][monitor]["properties"]["interval"]["pattern"]
        assert re.search(pattern, interval)
        assert not any(re.search(pattern, wrong) for wrong in ("30", "s", "1s1m", "1.5h", "30 s"))


def test_every_value_is_explained() -> None:
    """The comment above a value is its documentation, and the schema has it for tools."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare = []
    for above, line in zip(["", *lines], lines, strict=False):
        key = re.match(r"( *)([A-Za-z]+):", line)
        top_level = key and not key[1]
        group = key and re.fullmatch(r" *[A-Za-z]+:", line)
        if key and not group and not above.strip().startswith("#") and not (top_level and re.match("[a-z]", above)):
            bare.append(line)
    assert [line for line in bare if not line.strip().startswith(("cpu:", "memory:"))] == []

    def silent(tree: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, inner in tree.get("properties", {}).items():
            if "properties" in inner and "description" not in inner:
                yield from silent(inner, f"{path}.{name}")
            elif not inner.get("description"):
                yield f"{path}.{name}"

    assert list(silent(schema(), "values")) == []


def test_priority_of_backfills_is_asked_for_below_the_workers_and_pushes_no_pod_away() -> None:
    given = values()["backfills"]["priorityClass"]
    assert (given["create"], given["value"] < 0) == (False, True)
    template = (CHART / "templates" / "priorityclass.yaml").read_text()
    assert template.startswith("{{- if and .Values.backfills.enabled .Values.backfills.priorityClass.create }}")
    assert "preemptionPolicy: Never" in template


def rules() -> list[dict[str, Any]]:
    """All that is granted where the operator serves ConsumerGroups."""
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    bodies = [
        text.split(f'{{{{- define "consumer-fleet.{part}" -}}}}')[1]
        for part in ("rules", "backfillRules", "secretRules", "consoleRules")
    ]
    plain = (body.split("{{- end }}")[0].replace(DRIVER_ROLE, "spark-driver") for body in bodies)
    return [rule for body in plain for rule in yaml.safe_load(body)]


def test_rights_cover_exactly_the_kinds_that_the_operator_touches() -> None:
    """The closed list of kinds is what rights are written against; the Lease has a Role of its own."""
    granted = {
        (group, resource.partition("/")[0])
        for rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    touched = {(kind.group, kind.plural) for kind in KINDS}
    bound = {("rbac.authorization.k8s.io", "clusterroles")}
    assert granted == touched - {("coordination.k8s.io", "leases")} | bound


def test_one_cluster_role_can_be_bound_and_none_changed() -> None:
    """The operator gives drivers of Backfills rights to pods; it cannot give anybody, or itself, any other."""
    (bind,) = [rule for rule in rules() if "clusterroles" in rule["resources"]]
    assert (bind["resourceNames"], bind["verbs"]) == (["spark-driver"], ["bind"])
    granted = {verb for rule in rules() for verb in rule["verbs"]}
    assert granted & {"escalate", "impersonate", "deletecollection"} == set()


def test_secrets_can_only_be_read_by_name() -> None:
    verbs = [rule["verbs"] for rule in rules() if "secrets" in rule["resources"]]
    assert verbs == [["get"]]


def test_every_granted_verb_is_used() -> None:
    statuses = [rule["verbs"] for rule in rules() if any(name.endswith("/status") for name in rule["resources"])]
    assert statuses == [["patch"], ["patch"]], "status is read with the object"
    lease = (CHART / "templates" / "rbac.yaml").read_text().split("-lease\n")[1].split("---")[0]
    assert [line.strip() for line in lease.splitlines() if "verbs:" in line or "Names:" in line] == [
        *("verbs: [create]", "resourceNames: [{{ $name }}-operator]", "verbs: [get, update]")
    ]


def test_no_rule_has_a_wildcard() -> None:
    assert [rule for rule in rules() if "*" in str(rule)] == []


def test_specs_of_users_are_never_written() -> None:
    """Nothing may write users' objects but their status; of ConsumerGroups and KafkaClusters finalizers too. The states
    are the operator's own.

    Redrives, Backfills and OffsetResets may be deleted, as spec.ttlSecondsAfterFinished asks for.
    """
    allowed = (
        (["consumergroups", "kafkaclusters", "offsetresets"], ["patch"]),
        (["redrives", "offsetresets"], ["delete"]),
        (["backfills"], ["delete"]),
        (["operatorstates"], ["get", "list", "watch", "create", "update", "patch"]),
    )
    own = [rule for rule in rules() if rule["apiGroups"] == ["consumerfleet.io"]]
    for rule in own:
        whole = [resource for resource in rule["resources"] if "/" not in resource]
        reading = set(rule["verbs"]) <= {"get", "list", "watch"}
        assert not whole or reading or (whole, rule["verbs"]) in allowed


def test_operator_that_starts_slowly_is_not_killed_meanwhile() -> None:
    """On a machine without a processor to spare its start took 44 s; the probe of liveness ended it again and again."""
    deployment = (CHART / "templates" / "deployment.yaml").read_text()
    (probe,) = re.findall(r"startupProbe:\n((?: {10}.*\n)+)", deployment)
    start = yaml.safe_load(probe)
    assert start["httpGet"] == {"path": "/healthz", "port": "health"}
    assert start["periodSeconds"] * start["failureThreshold"] == 600
