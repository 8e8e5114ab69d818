"""What this version does in place of what it does not have yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fleet_consumer import assignors
from fleet_consumer.fetch.librdkafka import ALLOWED_PROPERTIES
from fleet_operator.planning.support import ASSIGNORS, consumer_group_support, effective_assignors
from tests.unit.planning.builders import consumer_group

CRD = Path(__file__).resolve().parents[3] / "crds" / "consumerfleet.io_consumergroups.yaml"


@pytest.mark.parametrize(
    ("wanted", "used"),
    [
        (("cooperative-sticky",), ("range",)),
        (("sticky", "roundrobin", "range"), ("roundrobin", "range")),
        (("shop.assign:Mine",), ("range",)),
        (("roundrobin",), ("roundrobin",)),
    ],
)
def test_available_assignors_are_kept_in_their_order(wanted: tuple[str, ...], used: tuple[str, ...]) -> None:
    assert effective_assignors(wanted) == used


def test_assignors_that_are_promised_exist() -> None:
    assert [assignors.load(name).name for name in ASSIGNORS] == list(ASSIGNORS)


def test_plain_group_asks_for_nothing_that_is_missing() -> None:
    assert consumer_group_support(consumer_group().spec).complete


def test_crd_lists_the_librdkafka_settings_that_workers_accept() -> None:
    """The API server refuses what the check would refuse later; the two lists must be one."""
    crd = yaml.safe_load(CRD.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    (rule,) = spec["properties"]["consumer"]["properties"]["properties"]["x-kubernetes-validations"]
    listed = rule["rule"].partition("[")[2].partition("]")[0]
    assert {name.strip().strip("'") for name in listed.split(",")} == ALLOWED_PROPERTIES
