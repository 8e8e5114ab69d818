"""Conditions that metrics show as problems."""

from __future__ import annotations

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.status.problem_series import CLUSTER_PROBLEMS, GROUP_PROBLEMS, find_problems


def test_problems_are_conditions_with_the_bad_status_that_nobody_intended() -> None:
    found = [
        {"type": "Ready", "status": "False", "reason": "TopicNotFound"},
        {"type": "Degraded", "status": "True", "reason": "TopicNotFound"},
        {"type": "Stuck", "status": "Unknown", "reason": "NotYetObserved"},
        {"type": "Stalled", "status": "False", "reason": "NotRefused"},
        {"type": "OffsetsKept", "status": "False", "reason": "ExpiryAllowed"},
        {"type": "RetriesKept", "status": "False", "reason": "RetentionEnds"},
    ]
    expected = [("Degraded", "TopicNotFound"), ("RetriesKept", "RetentionEnds")]
    assert find_problems(found, GROUP_PROBLEMS) == expected
    assert find_problems(found, CLUSTER_PROBLEMS) == [("Ready", "TopicNotFound")]
    assert set(conditions.CONSUMER_GROUP_CONDITIONS) >= GROUP_PROBLEMS
    assert set(conditions.KAFKA_CLUSTER_CONDITIONS) >= CLUSTER_PROBLEMS
