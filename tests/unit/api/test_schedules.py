"""The CRD's rule for cron strings, with the engine that the API server uses: it and the operator take the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import re2
import yaml

from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.scaling.schedules import find_refused
from tests.apiserver.scaling_rules import CRON_REFUSED, SCALING_ACCEPTED, SCALING_RULES
from tests.unit.api.test_parity import CRDS


def pattern() -> str:
    """The expression of the rule, as CEL reads its text."""
    (version,) = yaml.safe_load((CRDS / "consumerfleet.io_consumergroups.yaml").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    cron = spec["scaling"]["properties"]["schedules"]["items"]["properties"]["cron"]
    (rule,) = cron["x-kubernetes-validations"]
    (text,) = re.findall(r"^self\.matches\('(.*)'\)$", rule["rule"])
    return str(text).replace("\\\\", "\\")


@pytest.fixture(scope="module")
def door() -> Any:
    return re2.compile(pattern())


REFUSED = [
    schedule["cron"]
    for _, body, message in SCALING_RULES
    if message == CRON_REFUSED
    for schedule in body["spec"]["scaling"]["schedules"]
]
ACCEPTED = [
    schedule["cron"] for _, body in SCALING_ACCEPTED for schedule in body["spec"]["scaling"].get("schedules", ())
]


@pytest.mark.parametrize(
    "cron", [*REFUSED, "", "*", "0 8 * * ?", "0 8 * * 1#2", "0 8 * * 5L", "0 8 LW * *", "-1 8 * * *"]
)
def test_door_refuses_other_forms(door: Any, cron: str) -> None:
    assert door.search(cron) is None


@pytest.mark.parametrize("cron", [*ACCEPTED, "* * * * *", "59 23 31 12 7", "0  8 * * 1", "5/15 00-09 01 JAN Sun"])
def test_door_and_operator_take_the_usual_forms(door: Any, cron: str) -> None:
    assert door.search(cron) is not None
    schedule = {"cron": cron, "durationSeconds": 60, "minReplicas": 1}
    assert find_refused(Scaling.model_validate({"schedules": [schedule]})) is None


@pytest.mark.parametrize("cron", ["9-5 * * * *", "0 0 31 feb *", "0 0 * * fri-sun"])
def test_operator_refuses_what_no_pattern_sees(door: Any, cron: str) -> None:
    assert door.search(cron) is not None
    schedule = {"cron": cron, "durationSeconds": 60, "minReplicas": 1}
    assert find_refused(Scaling.model_validate({"schedules": [schedule]})) is not None
