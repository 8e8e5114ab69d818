"""The loads of the scaling benchmark: a step, a skewed topic, slow records. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from e2e.scaling.scene import PARTITIONS, SKEWED

MOST: Final = 12
"""`maxReplicas` of both sides; more pods would compete for the machine's processors."""
CALM_S: Final = 40.0
STEPPED_S: Final = 160.0
"""Seconds before and after the step. With the start of workers a run takes four minutes, and a case eight."""
KEDA_THRESHOLD: Final = 10
"""KEDA's default `lagThreshold`, as for a user who has not measured the handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A group under a load that steps up once. Rates are records per second of the whole topic.

    - `shares`: the share of each partition in the load.
    - `per_record_s`: handling time per record.
    - `start`: initial and minimum number of workers of both sides.
    - `threshold`: KEDA's `lagThreshold`.
    """

    name: str
    title: str
    shares: tuple[float, ...]
    per_record_s: float
    calm_rate: float
    stepped_rate: float
    start: int = 1
    threshold: int = KEDA_THRESHOLD

    @property
    def partitions(self) -> int:
        return len(self.shares)

    @property
    def busy_workers(self) -> float:
        """Workers that the load after the step keeps fully busy."""
        return self.stepped_rate * self.per_record_s

    @property
    def stretches(self) -> tuple[tuple[float, float], ...]:
        """Rates with their durations in seconds."""
        return (self.calm_rate, CALM_S), (self.stepped_rate, STEPPED_S)

    def scaling(self) -> dict[str, Any]:
        """`spec.scaling` of the operator's side; everything else is the default."""
        return {"minReplicas": self.start, "maxReplicas": MOST}

    def scaled_object(self, name: str) -> dict[str, Any]:
        """KEDA's ScaledObject for the group and namespace of this name; everything else is the default."""
        trigger = {
            "bootstrapServers": "kafka.kafka.svc.cluster.local:9092",
            "consumerGroup": name,
            "topic": name,
            "lagThreshold": str(self.threshold),
            "offsetResetPolicy": "earliest",
        }
        return {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": name},
            "spec": {
                "scaleTargetRef": {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup", "name": name},
                "minReplicaCount": self.start,
                "maxReplicaCount": MOST,
                "triggers": [{"type": "kafka", "metadata": trigger}],
            },
        }


CASES: Final = {
    case.name: case
    for case in (
        Case(
            name="step",
            title="six times the load at once",
            shares=(1.0 / PARTITIONS,) * PARTITIONS,
            per_record_s=0.04,
            calm_rate=18.0,
            stepped_rate=108.0,
        ),
        Case(
            name="skew",
            title="three busy partitions of 36, one of them with 28 % of the load",
            shares=SKEWED,
            per_record_s=0.04,
            calm_rate=12.0,
            stepped_rate=72.0,
        ),
        Case(
            name="slow",
            title="records of three seconds",
            shares=(1.0 / 24,) * 24,
            per_record_s=3.0,
            calm_rate=0.5,
            stepped_rate=2.0,
            start=2,
            # Ten of these records are half a minute of work, which KEDA would leave waiting per worker by default.
            threshold=3,
        ),
    )
}
