"""Conditions that metrics show as problems."""

from __future__ import annotations

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.status.problem_series import PROBLEMS, find_problems


def test_problems_are_conditions_with_the_bad_status_that_nobody_intended() -> None:
    found = [
        {"type": "Ready", "status": "False", "reason": "TopicNotFound"},
        {"type": "Degraded", "status": "True", "reason": "TopicNotFound"},
        {"type": "Stuck", "status": "Unknown", "reason": "NotYetObserved"},
        {"type": "Stalled", "status": "False", "reason": "NotRefused"},
        {"type": "OffsetsKept", "status": "False", "reason": "ExpiryAllowed"},
        {"type": "RetriesKept", "status": "False", "reason": "RetentionEnds"},
    ]
    assert find_problems(found) == [("Degraded", "TopicNotFound"), ("RetriesKept", "RetentionEnds")]
    every = {*conditions.CONSUMER_GROUP_CONDITIONS, *conditions.KAFKA_CLUSTER_CONDITIONS}
    assert set(PROBLEMS) <= every
