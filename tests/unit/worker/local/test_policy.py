"""The policy of a local run, held to the CRD and to a real API server's answers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_consumer.contract.naming import content_hash
from fleet_consumer.contract.policies import parse_policies, render_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker.local.policy import LocalPolicy, parse_manifest, policy_of
from fleet_operator.api.v1alpha1 import RetryPolicy
from fleet_operator.planning.retry.intent import expand
from tests.apiserver.crd_rules import ACCEPTED, REFUSED_BY_RULE, REFUSED_BY_SCHEMA


def manifest(spec: Any, name: Any = "standard") -> dict[str, Any]:
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "RetryPolicy",
        "metadata": {"name": name, "labels": {"team": "shop"}},
        "spec": spec,
    }


GOOD = manifest({"sequence": ["5s", "1m"]})


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


def test_file_is_one_that_workers_read() -> None:
    found = parse_manifest(GOOD)
    revision, delays = content_hash(found.content), ("5s", "1m", "1h")
    revisions = {revision: found.content}
    policies = parse_policies(
        render_policies(found.name, revisions, current=revision, delays=delays, partitions=4, max_message_bytes=70_000)
    )
    assert (policies.name, policies.newest.sequence, policies.delays) == ("standard", (5, 60), ("5s", "1m", "1h"))
    assert (policies.partitions, policies.max_message_bytes, found.total_seconds) == (4, 70_000, 65)


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
        ("", "--retry[0]: '' is not a delay"),
        ("5s,,5s", "--retry[1]: '' is not a delay"),
        ("5s;5s", "'5s;5s' is not a delay"),
        ("8d", "'8d' is too long; the longest delay is 7d"),
        (",".join(["1s"] * 101), "--retry: has 101 delays; at most 100"),
        (",".join(f"{n}s" for n in range(1, 18)), "--retry: has 17 different delays, and each needs its own topic"),
    ],
)
def test_delays_that_cannot_be_used_are_named(text: str, told: str) -> None:
    assert told in asked_in_vain(retry=text)


def test_only_one_of_both_ways_is_taken() -> None:
    assert asked_in_vain(retry="5s", retry_policy="x.yaml").startswith(
        "--retry: cannot be given together with --retry-policy"
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**GOOD, "apiVersion": "consumerfleet.io/v2"}, "apiVersion: is 'consumerfleet.io/v2'; this version reads"),
        ({**GOOD, "sequence": []}, "sequence: is not a field of a RetryPolicy"),
        ({**GOOD, "metadata": None}, "metadata: is missing"),
        ({**GOOD, "metadata": {"name": None}}, "metadata.name: is missing"),
        (manifest({}, "Standard"), "metadata.name: is 'Standard'; it must be a DNS label"),
        (manifest({}, "a" * 64), "metadata.name: is"),
        (manifest(None), "spec: is missing"),
        (manifest([]), "spec: must be an object, not a list"),
        (manifest({"sequence": ["5x"]}), "spec.sequence[0]: '5x' is not a delay"),
    ],
)
def test_schema_violations_are_refused_by_field(document: dict[str, Any], message: str) -> None:
    assert message in refusal(document)


def policies(table: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The RetryPolicies of a table with which a real API server is tried, each called by its first column."""
    rows = [pytest.param(row[1], id=row[0]) for row in table if row[1]["kind"] == "RetryPolicy"]
    assert rows
    return rows


@pytest.mark.parametrize("body", policies([*REFUSED_BY_RULE, *REFUSED_BY_SCHEMA]))
def test_policies_refused_by_a_real_api_server_are_refused(body: dict[str, Any]) -> None:
    assert refusal(body).startswith(("spec", "metadata"))


@pytest.mark.parametrize("body", policies(ACCEPTED))
def test_policies_accepted_by_a_real_api_server_are_accepted(body: dict[str, Any]) -> None:
    assert parse_manifest(body).content == expand(RetryPolicy.model_validate(body)).content


def write(folder: Path, text: str) -> str:
    file = folder / "policy.yaml"
    file.write_text(text)
    return str(file)


POLICY = yaml.safe_dump(GOOD)
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"


def test_policy_is_found_among_other_objects(tmp_path: Path) -> None:
    found = asked(retry_policy=write(tmp_path, f"---\n{OTHER}---\n{POLICY}---\n---\n{OTHER}"))
    assert found is not None
    assert (found.name, found.sequence) == ("standard", ("5s", "1m"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sequence: [5s]\n", "is not a Kubernetes object: write `apiVersion: consumerfleet.io/v1alpha1`"),
        ("- 5s\n", "is not a Kubernetes object"),
        ("", "holds 0 objects of kind RetryPolicy; it must hold exactly one"),
        (OTHER, "holds 0 objects of kind RetryPolicy"),
        (f"{POLICY}---\n{POLICY}", "holds 2 objects of kind RetryPolicy"),
        (f"{OTHER}---\nsequence: [5s]\n", "is not a Kubernetes object"),
        (POLICY.replace("5s", "5 s"), "spec.sequence[0]: '5 s' is not a delay"),
        (f"{POLICY}kind: RetryPolicy\n", "is not valid YAML: the field 'kind' is repeated in line"),
        ("a: [\n", "is not valid YAML: "),
        ("a: !thing b\n", "is not valid YAML: "),
    ],
)
def test_file_without_exactly_one_valid_policy_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    message = asked_in_vain(retry_policy=path)
    assert message.startswith(f"--retry-policy {path}: ")
    assert told in message
    assert "\n" not in message


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "cannot be read: " in asked_in_vain(retry_policy=str(tmp_path / "gone.yaml"))


def test_json_is_read_without_pyyaml_and_yaml_names_the_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the worker's image."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "fleet_consumer.worker.local.manifest", raising=False)
    assert "pip install pyyaml" in asked_in_vain(retry_policy=write(tmp_path, POLICY))
    found = asked(retry_policy=write(tmp_path, json.dumps(manifest({"sequence": ["5s"]}))))
    assert found is not None
    assert found.sequence == ("5s",)
