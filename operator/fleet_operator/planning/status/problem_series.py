"""Finds the conditions that report a problem; metrics show them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.planning.offsets.expiry import INTENDED

PROBLEMS: Final[Mapping[str, c.Status]] = {
    c.DEGRADED: "True",
    c.STALLED: "True",
    c.STUCK: "True",
    c.GROUP_SHARED: "True",
    c.OFFSETS_KEPT: "False",
    c.RETRIES_KEPT: "False",
    c.OFFSETS_TOPIC_SIZED: "False",
    c.COORDINATORS_AVAILABLE: "False",
    c.COORDINATORS_BALANCED: "False",
}
"""Types of conditions that can report a problem, each with the status that means a problem."""


def find_problems(conditions: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the type and reason of each condition that reports a problem. Reasons that a user intended are left
    out."""
    return [
        (condition["type"], condition["reason"])
        for condition in conditions
        if PROBLEMS.get(condition["type"]) == condition["status"] and condition["reason"] not in INTENDED
    ]
