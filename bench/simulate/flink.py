"""The published rule of the autoscaler of Flink's Kubernetes operator, at its defaults."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bench.simulate.rules import Choice
from bench.simulate.sight import Sight

COLLECT_S: Final = 10.0
WINDOW_S: Final = 900.0
"""`job.autoscaler.metrics.window`; no decision comes before it is full."""
SETTLE_S: Final = 300.0
"""`job.autoscaler.stabilization.interval`: time after each change from which nothing is collected."""
CATCH_UP_S: Final = 1800.0
"""`job.autoscaler.catch-up.duration`."""
RESTART_S: Final = 300.0
"""`job.autoscaler.restart.time`, in which records pile up."""
TARGET: Final = 0.7
"""`job.autoscaler.target.utilization`."""
LEAST_USE: Final = 0.4
"""`target.utilization` less its boundary of 0.3, below which it takes fewer."""
MOST_USE: Final = 1.0
"""`target.utilization` and its boundary, above which it takes more."""
DOWN_S: Final = 3600.0
"""`job.autoscaler.scale-down.interval`."""
DOWN_SHARE: Final = 0.6
"""`job.autoscaler.scale-down.max-factor`: the part that one change takes away at most."""
BACKLOG_S: Final = 300.0
"""`job.autoscaler.backlog-processing.lag-threshold`: seconds of lag with which it takes no fewer."""


class _Sample(NamedTuple):
    at: float
    arrived: int
    busy_s: Mapping[tuple[int, float], float]
    records: float


@dataclass(slots=True)
class FlinkRule:
    """Flink's rule for one source that does all the work (FLIP-271; operator 1.11, `JobVertexScaler`).

    - The true rate of a parallelism is the rate of records by the busy share of its busiest subtask (FLINK-30652), over
      a window that begins when the job has settled (`ScalingMetricCollector`).
    - Nothing changes while the true rate is between what arrivals need at full use and at 40 %, with the lag worked
      off within `CATCH_UP_S` (`ScalingMetricEvaluator.computeProcessingRateThresholds`).
    - The target has arrivals at 70 % of the true rate, and the lag worked off with what piles up in a restart
      (`AutoScalerUtils.getTargetProcessingCapacity`). Parallelism is rounded up to a divisor of the partitions.
    - Fewer come an hour after they were first enough, to the largest number of that hour (FLINK-36018).

    Left out is the rate that Flink observes while it catches up, with which it corrects too large a true rate
    (FLINK-33306). The model gives it restarts that are as short as those of all others, one rebalance.
    """

    least: int
    most: int
    name: str = "flink"
    _seen: deque[_Sample] = field(default_factory=deque)
    _changed_at: float = 0.0
    _fewer: list[tuple[float, int]] = field(default_factory=list)

    def choose(self, sight: Sight) -> Choice:
        current = sight.pods
        if current < max(self.least, 1):
            self._changed_at = sight.now
            return Choice(max(self.least, 1), "a job has one subtask at least")
        if sight.now % COLLECT_S != 0.0 or sight.now - self._changed_at < SETTLE_S or not sight.is_stable():
            return Choice(current)
        offsets = sight.offsets()
        if offsets is None:
            return Choice(current)
        pages = sight.pages()
        busy = {(page.ordinal, page.since): page.busy_s for page in pages}
        self._seen.append(_Sample(sight.now, sum(offsets.ends), busy, sum(page.records for page in pages)))
        if self._seen[-1].at - self._seen[0].at < WINDOW_S:
            return Choice(current)
        while self._seen[-1].at - self._seen[1].at >= WINDOW_S:
            self._seen.popleft()
        wanted, reason = self._wanted(sight, offsets.lag)
        if wanted != current:
            self._changed_at = sight.now
            self._seen.clear()
            self._fewer.clear()
        return Choice(wanted, reason)

    def _wanted(self, sight: Sight, lag: int) -> tuple[int, str]:
        current, first, last = sight.pods, self._seen[0], self._seen[-1]
        seconds = last.at - first.at
        share = max((last.busy_s[key] - first.busy_s.get(key, 0.0)) / seconds for key in last.busy_s)
        arrival, handled = (last.arrived - first.arrived) / seconds, (last.records - first.records) / seconds
        if handled <= 0.0 or share <= 0.0:
            return current, ""
        true_rate, catch_up = handled / share, lag / CATCH_UP_S
        piles_up = arrival * RESTART_S / CATCH_UP_S
        if arrival / MOST_USE + catch_up <= true_rate <= arrival / LEAST_USE + catch_up + piles_up:
            self._fewer.clear()
            return current, ""
        target = arrival / TARGET + catch_up + piles_up
        wanted = math.ceil(max(target / true_rate, 1.0 - DOWN_SHARE) * current - 1e-9)
        wanted = self._aligned(max(self.least, 1, min(wanted, self.most)), sight.partitions)
        reason = f"arrival {arrival:.1f} records/s, true rate {true_rate:.1f}, lag {lag}"
        if wanted >= current:
            self._fewer.clear()
            return wanted, reason
        if lag > BACKLOG_S * handled:
            return current, ""
        self._fewer.append((sight.now, wanted))
        if sight.now - self._fewer[0][0] < DOWN_S:
            return current, ""
        return max(count for _, count in self._fewer), reason

    def _aligned(self, wanted: int, partitions: int) -> int:
        """The next larger divisor of the partitions up to the maximum; the wanted number without one."""
        return next((count for count in range(wanted, self.most + 1) if partitions % count == 0), wanted)
