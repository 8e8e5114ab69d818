"""Number of main workers, and the limit that holds it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup

NO_LIMIT: Final = "None"


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """The wanted number of main workers. `limit` is the word of `status.limit`."""

    replicas: int
    limit: str = NO_LIMIT


def decide_scale(group: ConsumerGroup, partition_counts: Mapping[str, int] | None, *, stopped: bool) -> ScaleDecision:
    """`spec.replicas`, or 0 while suspended or `stopped`.

    A fleet is stopped while another Kafka cluster answers, and while an older ConsumerGroup owns the Kafka group: two
    fleets in one group would process each other's records. `partition_counts` is None while unknown.
    """
    replicas = 0 if stopped else group.wanted_replicas
    if group.spec.suspend:
        return ScaleDecision(replicas, "Suspended")
    limited = partition_counts is not None and replicas > sum(partition_counts.values())
    return ScaleDecision(replicas, "Partitions" if limited else NO_LIMIT)
