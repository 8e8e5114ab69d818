"""The policy of a local run, held to the CRD and to a real API server's answers."""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_consumer.contract.policies import PolicyInvalid, parse_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker.local.policy import LocalPolicy, parse_manifest, policy_of
from fleet_operator.api.v1alpha1 import RetryPolicy
from fleet_operator.planning.retry.policy import expand
from tests.apiserver.test_crd_rules import ACCEPTED, REFUSED_BY_RULE, REFUSED_BY_SCHEMA

ROOT = Path(__file__).resolve().parents[4]
EVERYTHING: dict[str, Any] = {
    "sequence": ["90s", "60s", "1m", "24h"],
    "classify": [
        {"when": {"exception": "shop.errors.OutOfStock"}, "then": "Retry"},
        {"when": {"httpStatus": "4xx"}, "then": "Fail"},
        {"when": {"messageRegex": "duplicate (key|row)"}, "then": "Drop"},
    ],
    "undecodable": "Drop",
    "maxTotalSeconds": 3600,
    "headerProfile": "Spring",
    "budget": {"action": "Fail", "minRecords": 7},
}
SPECS: list[dict[str, Any]] = [
    {"sequence": ["5m", "5m", "30m", "30m", "30m", "1h"]},
    {"sequence": ["7d"] * 100},
    {"generate": {"initial": "1s", "count": 16, "max": "7d"}},
    {"generate": {"initial": "10s", "factorPercent": 150, "count": 6}},
    {"sequence": ["1s"], "budget": {}},
    EVERYTHING,
]


def manifest(spec: Any, name: Any = "standard") -> dict[str, Any]:
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "RetryPolicy",
        "metadata": {"name": name, "labels": {"team": "shop"}},
        "spec": spec,
    }


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        parse_manifest(document)
    return str(caught.value)


def asked(**options: str | None) -> LocalPolicy | None:
    return policy_of(argparse.Namespace(**{"retry": None, "retry_policy": None, **options}))


def asked_in_vain(**options: str | None) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        asked(**options)
    return str(caught.value)


@pytest.mark.parametrize("spec", SPECS)
def test_file_is_one_that_workers_read(spec: dict[str, Any]) -> None:
    found = parse_manifest(manifest(spec))
    document = found.file(delays=sorted(set(found.sequence)), partitions=4, max_message_bytes=70_000)
    policies = parse_policies(document)
    assert policies.newest.label == f"standard@{document['current']}"
    assert (policies.partitions, policies.max_message_bytes) == (4, 70_000)
    assert sum(policies.newest.sequence) == found.total_seconds


@pytest.mark.parametrize("spec", SPECS)
def test_models_of_the_operator_give_the_content_of_the_manifest(spec: dict[str, Any]) -> None:
    found = parse_manifest(manifest(spec))
    assert expand(RetryPolicy.model_validate(manifest(spec))).content == found.content


def test_delays_alone_are_a_policy_with_all_defaults() -> None:
    found = asked(retry="5s, 60s,1m")
    assert found is not None
    assert found.content == {
        "sequence": ["5s", "1m", "1m"],
        "classify": [],
        "undecodable": "Fail",
        "maxTotalSeconds": 86_400,
        "headerProfile": "Native",
        "budget": None,
    }
    assert found.name == "local"
    assert asked() is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "--retry[0]: '' is no delay"),
        ("5s,,5s", "--retry[1]: '' is no delay"),
        ("5s;5s", "'5s;5s' is no delay"),
        ("8d", "'8d' is too long; the longest delay is 7d"),
        (",".join(["1s"] * 101), "--retry: has 101 delays; at most 100"),
        (",".join(f"{n}s" for n in range(1, 18)), "--retry: has 17 different delays, and each needs a topic"),
    ],
)
def test_delays_that_cannot_be_used_are_named(text: str, told: str) -> None:
    assert told in asked_in_vain(retry=text)


def test_only_one_of_both_ways_is_taken() -> None:
    assert asked_in_vain(retry="5s", retry_policy="x.yaml").startswith(
        "--retry: cannot be given together with --retry-policy"
    )


WITHOUT = object()
"""As a value: take the field out."""


def changed(path: str, value: object) -> dict[str, Any]:
    """A good manifest with one field changed; parts of `path` are names or numbers."""
    document = copy.deepcopy(manifest({**EVERYTHING}))
    *parents, last = path.split(".")
    target: Any = document
    for part in parents:
        target = target[int(part) if part.isdigit() else part]
    if value is WITHOUT:
        del target[last]
    else:
        target[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("apiVersion", "consumerfleet.io/v2", "apiVersion: is 'consumerfleet.io/v2'; this version reads"),
        ("sequence", [], "sequence: is no field of a RetryPolicy"),
        ("metadata", WITHOUT, "metadata: is missing"),
        ("metadata.name", WITHOUT, "metadata.name: is missing"),
        ("metadata.name", "Standard", "metadata.name: is 'Standard'; it must be a DNS label"),
        ("metadata.name", "a" * 64, "metadata.name: is"),
        ("spec", WITHOUT, "spec: is missing"),
        ("spec", [], "spec: must be an object, not a list"),
        ("spec.sequence", WITHOUT, "spec: must have exactly one of sequence, generate"),
        ("spec.generate", {"initial": "1s", "count": 1}, "spec: must have exactly one of sequence, generate"),
        ("spec.sequence", [], "spec.sequence: must be a list of delays"),
        ("spec.sequence", "5m", "spec.sequence: must be a list of delays"),
        ("spec.sequence.1", "5x", "spec.sequence[1]: '5x' is no delay; write a whole number and one of"),
        ("spec.sequence.1", 60, "spec.sequence[1]: '60' is no delay"),
        ("spec.sequence.1", "05s", "spec.sequence[1]: '05s' is no delay"),
        ("spec.sequence.1", "200h", "spec.sequence[1]: '200h' is too long"),
        ("spec.sequnce", [], "spec.sequnce: is not a setting that this version knows"),
        ("spec.classify", {}, "spec.classify: must be a list of at most 50 rules"),
        ("spec.classify.1.then", "Explode", "spec.classify[1].then: is 'Explode'; allowed are Retry, Fail, Drop"),
        ("spec.classify.1.then", WITHOUT, "spec.classify[1].then: is missing"),
        ("spec.classify.1.when", {}, "spec.classify[1].when: must have exactly one of exception, httpStatus"),
        ("spec.classify.1.when.exception", "X", "spec.classify[1].when: must have exactly one of"),
        ("spec.classify.0.when.exception", "not a class", "spec.classify[0].when.exception: is 'not a class'"),
        ("spec.classify.1.when.httpStatus", 409, "spec.classify[1].when.httpStatus: must be a non-empty string"),
        ("spec.classify.1.when.httpStatus", "600", "spec.classify[1].when.httpStatus: is '600'"),
        ("spec.classify.2.when.messageRegex", "(?=a)a", "spec.classify[2].when.messageRegex: '(?=a)a' is no"),
        ("spec.classify.2.when.messageRegex", "a" * 513, "spec.classify[2].when.messageRegex: has 513 characters"),
        ("spec.undecodable", "Retry", "spec.undecodable: is 'Retry'; allowed are Fail, Drop"),
        ("spec.maxTotalSeconds", 0, "spec.maxTotalSeconds: must be 1 to 2147483647, not 0"),
        ("spec.maxTotalSeconds", 1.5, "spec.maxTotalSeconds: must be a whole number"),
        ("spec.headerProfile", "Both", "spec.headerProfile: is 'Both'; allowed are Native, Spring"),
        ("spec.budget.action", "Stop", "spec.budget.action: is 'Stop'; allowed are Pause, Fail, None"),
        ("spec.budget.maxFailure", 5, "spec.budget.maxFailure: is not a setting"),
        ("spec.budget", {7: 5}, "spec.budget: has the field 7, whose name is no text"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_by_its_field(path: str, value: object, told: str) -> None:
    assert told in refusal(changed(path, value))


def test_crd_worker_and_local_run_take_the_same_number_of_rules() -> None:
    """Fifty rules everywhere: a policy that works on one's own machine is one that the API server and workers take."""
    schema = yaml.safe_load((ROOT / "crds" / "consumerfleet.io_retrypolicies.yaml").read_text())["spec"]["versions"][0]
    limit = schema["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["classify"]["maxItems"]
    rule = {"when": {"exception": "ValueError"}, "then": "Fail"}
    most = parse_manifest(changed("spec.classify", [rule] * limit))
    file = most.file(delays=sorted(set(most.sequence)), partitions=1, max_message_bytes=1000)
    assert len(parse_policies(file).newest.rules) == limit
    assert f"at most {limit} rules" in refusal(changed("spec.classify", [rule] * (limit + 1)))
    file["revisions"][file["current"]]["classify"] *= 2
    with pytest.raises(PolicyInvalid, match=f"at most {limit} rules"):
        parse_policies(file)


def test_null_is_absent_as_the_api_server_prunes_it() -> None:
    assert parse_manifest(changed("spec.budget", None)).content["budget"] is None
    assert parse_manifest(changed("spec.undecodable", None)).content["undecodable"] == "Fail"
    assert "metadata.name: is missing" in refusal(changed("metadata.name", None))


def policies(table: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The RetryPolicies of a table with which a real API server is tried, each called by its first column."""
    rows = [pytest.param(row[1], id=row[0]) for row in table if row[1]["kind"] == "RetryPolicy"]
    assert rows
    return rows


@pytest.mark.parametrize("body", policies([*REFUSED_BY_RULE, *REFUSED_BY_SCHEMA]))
def test_what_a_real_api_server_refuses_is_refused(body: dict[str, Any]) -> None:
    assert refusal(body).startswith(("spec", "metadata"))


@pytest.mark.parametrize("body", policies(ACCEPTED))
def test_what_a_real_api_server_accepts_is_accepted(body: dict[str, Any]) -> None:
    assert parse_manifest(body).content == expand(RetryPolicy.model_validate(body)).content


def numbers(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, int, int]]:
    """Every whole number of the CRD with its bounds, by its path."""
    for name, field in schema.get("properties", {}).items():
        if field["type"] == "integer":
            yield f"{path}.{name}", field["minimum"], field["maximum"]
        elif field["type"] == "object":
            yield from numbers(field, f"{path}.{name}")


def test_numbers_have_the_bounds_of_the_crd() -> None:
    crd = yaml.safe_load((ROOT / "crds" / "consumerfleet.io_retrypolicies.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    good = manifest({"generate": {"initial": "1s", "max": "2s", "count": 3}, "budget": {}})
    checked = 0
    for path, least, most in numbers(schema, "spec"):
        for value, accepted in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
            document = copy.deepcopy(good)
            *parents, last = path.split(".")
            target: Any = document
            for part in parents:
                target = target[part]
            target[last] = value
            if accepted:
                parse_manifest(document)
            else:
                assert refusal(document).startswith(f"{path}: must be {least} to {most}, not {value}")
            checked += 1
    assert checked == 4 * 7


def write(folder: Path, text: str) -> str:
    file = folder / "policy.yaml"
    file.write_text(text)
    return str(file)


POLICY = yaml.safe_dump(manifest({"sequence": ["5s", "1m"]}))
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"


def test_policy_is_found_among_other_objects(tmp_path: Path) -> None:
    found = asked(retry_policy=write(tmp_path, f"---\n{OTHER}---\n{POLICY}---\n---\n{OTHER}"))
    assert found is not None
    assert (found.name, found.sequence) == ("standard", ("5s", "1m"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sequence: [5s]\n", "is no Kubernetes object: write `apiVersion: consumerfleet.io/v1alpha1`"),
        ("- 5s\n", "is no Kubernetes object"),
        ("", "holds 0 objects of kind RetryPolicy; exactly one must be there"),
        (OTHER, "holds 0 objects of kind RetryPolicy"),
        (f"{POLICY}---\n{POLICY}", "holds 2 objects of kind RetryPolicy"),
        (f"{OTHER}---\nsequence: [5s]\n", "is no Kubernetes object"),
        (POLICY.replace("5s", "5 s"), "spec.sequence[0]: '5 s' is no delay"),
        (f"{POLICY}kind: RetryPolicy\n", "is not YAML that can be read: 'kind' twice in line"),
        ("a: [\n", "is not YAML that can be read: "),
        ("a: !thing b\n", "is not YAML that can be read: "),
    ],
)
def test_file_without_exactly_one_good_policy_is_told_apart(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    message = asked_in_vain(retry_policy=path)
    assert message.startswith(f"--retry-policy {path}: ")
    assert told in message
    assert "\n" not in message


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "cannot be read: " in asked_in_vain(retry_policy=str(tmp_path / "gone.yaml"))


def test_without_pyyaml_json_is_read_and_yaml_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the worker's image."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "fleet_consumer.worker.local.manifest", raising=False)
    assert "pip install pyyaml" in asked_in_vain(retry_policy=write(tmp_path, POLICY))
    found = asked(retry_policy=write(tmp_path, json.dumps(manifest({"sequence": ["5s"]}))))
    assert found is not None
    assert found.sequence == ("5s",)
