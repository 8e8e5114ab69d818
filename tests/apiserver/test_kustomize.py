"""The Kustomize base for a team's group: names follow prefixes and hashes, and the API server accepts the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.conftest import ROOT, Site
from tests.support.apiserver import ApiServer

EXAMPLE = ROOT / "examples" / "kustomize"
RUNS: dict[str, dict[str, str]] = {"Redrive": {}, "OffsetReset": {"to": "Earliest"}, "Backfill": {}}


def built(server: ApiServer, folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(server.kubectl("kustomize", str(folder))))


def names(bodies: list[dict[str, Any]], kind: str) -> list[str]:
    return [body["metadata"]["name"] for body in bodies if body["kind"] == kind]


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_overlay_refers_to_its_own_objects_and_is_accepted(
    quiet_api: ApiServer, quiet_site: Callable[..., Site], overlay: str
) -> None:
    bodies = built(quiet_api, EXAMPLE / "overlays" / overlay)
    (group,) = [body for body in bodies if body["kind"] == "ConsumerGroup"]
    spec = group["spec"]
    assert group["metadata"]["name"] == f"{overlay}-orders"
    assert [spec["clusterRef"]["name"]] == names(bodies, "KafkaCluster") == [f"{overlay}-main"]
    assert [spec["retry"]["policyRef"]["name"]] == names(bodies, "RetryPolicy") == [f"{overlay}-standard"]
    (source,) = names(bodies, "ConfigMap")
    assert spec["handler"]["python"]["configMapRef"]["name"] == source
    assert source.startswith(f"{overlay}-orders-handler-")
    site = quiet_site(f"kustomize-{overlay}")
    site.kubectl("apply", "-k", str(EXAMPLE / "overlays" / overlay))
    assert site.get("consumergroups", f"{overlay}-orders")["spec"]["topics"] == ["orders"]
    (network,) = names(bodies, "NetworkPolicy")
    assert network in site.kubectl("get", "networkpolicies", "-o", "name")


def test_edited_handler_gets_another_name_in_the_group(quiet_api: ApiServer, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "copy")
    before = names(built(quiet_api, tmp_path / "copy/overlays/staging"), "ConfigMap")
    with (tmp_path / "copy/base/handler.py").open("a") as source:
        source.write("# edited\n")
    bodies = built(quiet_api, tmp_path / "copy/overlays/staging")
    assert names(bodies, "ConfigMap") != before
    (group,) = [body for body in bodies if body["kind"] == "ConsumerGroup"]
    assert [group["spec"]["handler"]["python"]["configMapRef"]["name"]] == names(bodies, "ConfigMap")


def test_runs_name_the_group_with_its_prefix(quiet_api: ApiServer, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "copy")
    runs = [
        {
            "apiVersion": "consumerfleet.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": "run"},
            "spec": {"groupRef": {"name": "orders"}, **spec},
        }
        for kind, spec in RUNS.items()
    ]
    (tmp_path / "copy/base/runs.yaml").write_text(yaml.safe_dump_all(runs))
    file = tmp_path / "copy/base/kustomization.yaml"
    file.write_text(file.read_text().replace("- group.yaml\n", "- group.yaml\n- runs.yaml\n"))
    bodies = built(quiet_api, tmp_path / "copy/overlays/production")
    found = {body["kind"]: body["spec"]["groupRef"]["name"] for body in bodies if body["kind"] in RUNS}
    assert found == dict.fromkeys(RUNS, "production-orders")
