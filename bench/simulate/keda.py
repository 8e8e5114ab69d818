"""KEDA's Kafka scaler with the HPA that follows it, both at their defaults."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from bench.simulate.rules import Choice
from bench.simulate.sight import Sight

DEFAULT_THRESHOLD: Final = 10
"""`lagThreshold` of KEDA's Kafka scaler."""
SYNC_S: Final = 15.0
"""Interval of the HPA's controller (`--horizontal-pod-autoscaler-sync-period`)."""
SYNC_PHASE_S: Final = 7.0
"""Second of the first sync: neither that of a commit nor that of a poll of ours."""
POLL_S: Final = 30.0
"""KEDA's `pollingInterval`, in which it checks whether to wake a fleet or to let it sleep."""
POLL_PHASE_S: Final = 11.0
COOLDOWN_S: Final = 300.0
"""KEDA's `cooldownPeriod`: time without lag after which a fleet sleeps."""
TOLERANCE: Final = 0.1
"""Deviation of the metric from its target that changes nothing."""
DOWN_S: Final = 300.0
"""Stabilization window of the HPA for fewer replicas."""
UP_PODS: Final = 4
"""Most replicas that are added within `SYNC_S`, or as many as there are."""


@dataclass(slots=True)
class KedaRule:
    """A ScaledObject with a Kafka trigger and its HPA (KEDA 2.19, Kubernetes 1.35).

    - The metric is the total lag. With `allowIdleConsumers: false` and `limitToPartitionsWithLag: false` it is capped
      so that no replica is without a partition; one partition that does not answer fails all of it (KEDA,
      `pkg/scalers/apache_kafka_scaler.go`, `getTotalLag`, and `kafka_scaler.go`, `getProducerOffsets`).
    - Its type is AverageValue: the wanted number is the metric by the threshold, rounded up, and the present one while
      the metric for each replica is within a tenth of the threshold (Kubernetes, `replica_calculator.go`,
      `GetExternalPerPodMetricReplicas`). The HPA has each value from the scaler itself, as `useCachedMetrics` is false.
    - More replicas come at once, at most twice as many or four more every 15 s. Fewer come only to the largest number
      of five minutes (Kubernetes, Horizontal Pod Autoscaling, "Default Behavior", and `horizontal.go`,
      `stabilizeRecommendationWithBehaviors`). Without a metric the HPA changes nothing.
    - From and to no replica it is KEDA that scales: at a poll with more lag than `activationLagThreshold`, 0, and
      after `cooldownPeriod` without (KEDA, "Scaling Deployments", and `pkg/scaling/executor/scale_scaledobjects.go`).
    """

    threshold: int
    least: int
    most: int
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _active_at: float = 0.0

    @property
    def name(self) -> str:
        return f"keda/{self.threshold}"

    def choose(self, sight: Sight) -> Choice:
        if (sight.now - POLL_PHASE_S) % POLL_S == 0.0:
            return self._poll(sight)
        if (sight.now - SYNC_PHASE_S) % SYNC_S == 0.0 and sight.pods:
            return self._sync(sight)
        return Choice(sight.pods)

    def _poll(self, sight: Sight) -> Choice:
        """Wake and let sleep."""
        current, offsets = sight.pods, sight.offsets()
        if offsets is None:
            return Choice(current)
        if offsets.lag > 0:
            self._active_at = sight.now
            return Choice(current or max(1, self.least), f"lag {offsets.lag}")
        if current and not self.least and sight.now - self._active_at >= COOLDOWN_S:
            self._wanted.clear()  # the HPA is off while nothing runs
            return Choice(0, f"no lag for {COOLDOWN_S:g} s")
        return Choice(current)

    def _sync(self, sight: Sight) -> Choice:
        """Follow the metric. An HPA never goes below one replica."""
        current, offsets = sight.pods, sight.offsets()
        if offsets is None:
            return Choice(current)
        lag = offsets.lag
        if lag // self.threshold > sight.partitions:
            lag = self.threshold * sight.partitions
        wanted = current
        if abs(lag / (self.threshold * current) - 1.0) > TOLERANCE:
            wanted = math.ceil(lag / self.threshold)
        wanted = max(self.least, 1, min(wanted, self.most))
        if not self._wanted:
            self._wanted.append((sight.now, current))
        self._wanted.append((sight.now, wanted))
        while self._wanted[0][0] <= sight.now - DOWN_S:
            self._wanted.popleft()
        if wanted > current:
            return Choice(min(wanted, max(2 * current, current + UP_PODS)), f"lag {lag}")
        return Choice(min(current, max(count for _, count in self._wanted)), f"lag {lag}")
