"""Features that this version does not have yet, and its behaviour in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fleet_consumer import assignors
from fleet_consumer.librdkafka.settings import ALLOWED_PRODUCER_PROPERTIES, ALLOWED_PROPERTIES

CRD = Path(__file__).resolve().parents[3] / "crds" / "consumerfleet.io_consumergroups.yaml"


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky", "cooperative-weighted"])
def test_assignors_that_the_crd_names_exist(name: str) -> None:
    crd = yaml.safe_load(CRD.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    items = spec["properties"]["consumer"]["properties"]["classic"]["properties"]["assignors"]["items"]
    assert name in items["pattern"]
    assert assignors.load(name).name == name


@pytest.mark.parametrize(
    ("part", "allowed"), [("consumer", ALLOWED_PROPERTIES), ("producer", ALLOWED_PRODUCER_PROPERTIES)]
)
def test_crd_lists_the_librdkafka_settings_that_workers_accept(part: str, allowed: frozenset[str]) -> None:
    """The API server refuses what the check would refuse later; the two lists must be one."""
    crd = yaml.safe_load(CRD.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    (rule,) = spec["properties"][part]["properties"]["properties"]["x-kubernetes-validations"]
    listed = rule["rule"].partition("[")[2].partition("]")[0]
    assert {name.strip().strip("'") for name in listed.split(",")} == allowed
