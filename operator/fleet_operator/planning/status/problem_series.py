"""Finds the conditions that report a problem; metrics show them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.planning.offsets.expiry import INTENDED

GROUP_PROBLEMS: Final = frozenset({c.DEGRADED, c.STALLED, c.STUCK, c.GROUP_SHARED, c.OFFSETS_KEPT, c.RETRIES_KEPT})
"""Conditions of a ConsumerGroup. Conditions that only repeat the state of its KafkaCluster are left out, because each
group would add a metric series in an outage."""
CLUSTER_PROBLEMS: Final = frozenset({c.READY, c.OFFSETS_TOPIC_SIZED, c.COORDINATORS_AVAILABLE, c.COORDINATORS_BALANCED})
"""Conditions of a KafkaCluster."""


def find_problems(conditions: Sequence[Mapping[str, Any]], types: Collection[str]) -> list[tuple[str, str]]:
    """Return the type and reason of each condition of these types that reports a problem. Reasons that a user intended
    are left out."""
    return [
        (condition["type"], condition["reason"])
        for condition in conditions
        if condition["type"] in types
        and condition["status"] not in (c.GOOD[condition["type"]], "Unknown")
        and condition["reason"] not in INTENDED
    ]
