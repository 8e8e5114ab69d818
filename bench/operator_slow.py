"""Polls of many partitions on small, slow brokers: `python -m bench.operator_slow`.

Every group has retries with three delays, so a thousand groups have about 23,000 partitions. Reports the duration of
polls, the number of failed ones, and the groups whose state and lag are known at the end.
"""

from __future__ import annotations

from typing import Any, Final

from bench.operator import fleets, settle, window
from bench.operator_process import quantile, total
from bench.operator_stage import BROKER, HEAP, PARTITIONS, Shape, joined, record_figures, staged
from tests.support.kafka_cluster import KafkaCluster

DELAYS: Final = ("1m", "5m", "30m")
RETRY_PARTITIONS: Final = 5
ONE_REPLICA: Final = {"default.replication.factor": "1", "min.insync.replicas": "1"}
"""A broker keeps one file open per replica, and most machines allow 20,000."""
WINDOW_S: Final = 60.0


async def slow(size: int) -> dict[str, Any]:
    """Figures of polls, and the number of groups with known state and lag at the end."""
    shape = Shape(size, retries_every=1, delays=DELAYS, retry_partitions=RETRY_PARTITIONS)
    brokers = KafkaCluster(properties={**BROKER, **ONE_REPLICA}, jvm_options=HEAP)
    async with staged(brokers, shape) as (stage, operator):
        series = operator.metrics()
        managed = size * ((len(DELAYS) + 1) * RETRY_PARTITIONS + PARTITIONS)
        found = await fleets(stage, operator)
        async with joined(stage):
            settled = await settle(stage, operator)
            rest = await window(operator, WINDOW_S)
        after, watched = operator.metrics(), stage.watched
        return {
            "groups": size,
            "partitions of the operator's topics": managed,
            "seconds to all children": found["children_s"],
            "seconds until nothing was written any more": round(settled, 1),
            "polls: seconds at p99, at most": quantile(series, after, "observation_duration_seconds", 0.99),
            "polls that failed": total(after, "observation_failures"),
            "age of decisions in seconds at p99, at most": rest["decision_age_p99_s"],
            "groups with a known state": sum(state not in ("", "Unknown") for state in watched.states.values()),
            "groups with a known lag": sum(watched.lag_known.values()),
            "cores at rest": rest["cores"],
            "memory in MiB": rest["rss_mib"],
        }


if __name__ == "__main__":
    record_figures("operator_slow", slow, __doc__, brokers="three brokers")
