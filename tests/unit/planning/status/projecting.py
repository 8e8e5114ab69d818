"""Projections of ConsumerGroup statuses in tests, and what stands in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_operator.api.v1alpha1.conditions import find_condition
from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.observation import (
    TopicObservation,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.consumergroup import project_consumergroup_status
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from tests.unit.planning.builders import (
    NOW,
    facts,
)

Status = Mapping[str, Any]
MISSING = TopicObservation(partitions=0, error="TopicNotFound")
FAILED_TOPIC = {"_fleet.orders.failed": TopicObservation(partitions=4)}


def project(given: ConsumerGroupFacts, previous: Status | None = None, now: float = NOW) -> dict[str, Any]:
    return project_consumergroup_status(given, previous or {}, now)


def condition(status: Status, kind: str) -> tuple[str, str]:
    found = find_condition(status["conditions"], kind)
    assert found is not None
    return found["status"], found["reason"]


def message(status: Status, kind: str) -> str:
    found = find_condition(status["conditions"], kind)
    assert found is not None
    return str(found["message"])


def brand_new(**changes: Any) -> ConsumerGroupFacts:
    """The first visit: nothing is known, nothing runs, the check is being started."""
    checking = RolloutDecision(phase=RolloutPhase.CHECKING, target=None, run_check=True)
    return facts(**({"observation": None, "rollout": checking, "fleet": None, "pods": ()} | changes))


def cause(phase: RolloutPhase, reason: str, *, target: str | None = None) -> RolloutDecision:
    return RolloutDecision(phase=phase, target=target, cause=Problem(reason, "what to do"))
