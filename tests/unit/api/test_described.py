"""`kubectl explain` describes what people meet in statuses and on objects: conditions and annotations."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.model import PAUSED_ANNOTATION, RETRY_ROLLOUT_ANNOTATION
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.retry import project_retrypolicy_status
from tests.unit.api.test_parity import KINDS, schema_of


def types_of(status: dict[str, Any]) -> tuple[str, ...]:
    return tuple(condition["type"] for condition in status["conditions"])


REFUSED: Final = Problem(c.TOO_MANY_DELAYS, "x")
WRITTEN: Final = {
    "backfills": c.BACKFILL_CONDITIONS,
    "consumergroups": c.CONSUMER_GROUP_CONDITIONS,
    "kafkaclusters": c.KAFKA_CLUSTER_CONDITIONS,
    "offsetresets": c.RUN_CONDITIONS,
    "redrives": c.RUN_CONDITIONS,
    "retrypolicies": types_of(project_retrypolicy_status(REFUSED, generation=1, groups=0, previous={}, now=0.0)),
}
"""The types of conditions that the operator writes."""


@pytest.mark.parametrize("plural", KINDS)
def test_every_condition_is_described(plural: str) -> None:
    text = schema_of(plural)["properties"]["status"]["properties"]["conditions"]["description"]
    assert WRITTEN[plural]
    assert [kind for kind in WRITTEN[plural] if not re.search(rf"\b{kind} \(.{{10,}}?\)", text)] == []


def test_annotations_for_people_are_described() -> None:
    text = schema_of("consumergroups")["description"]
    assert [name for name in (PAUSED_ANNOTATION, RETRY_ROLLOUT_ANNOTATION) if name not in text] == []
