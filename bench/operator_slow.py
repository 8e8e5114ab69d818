"""Looks at many partitions on a small broker that is slow to answer: `python -m bench.operator_slow`.

Every group has retries with three delays, so that a thousand of them make about 23,000 partitions. Reports how long
looks take, how many failed, and whether every group's state and lag are known at the end.
"""

from __future__ import annotations

from typing import Any, Final

from bench.operator import fleets, settle, window
from bench.operator_process import quantile, total
from bench.operator_stage import BROKER, PARTITIONS, Shape, joined, print_figures, staged
from tests.support.kafka import KafkaBroker

DELAYS: Final = ("1m", "5m", "30m")
RETRY_PARTITIONS: Final = 5
WINDOW_S: Final = 60.0


async def slow(size: int) -> dict[str, Any]:
    """Figures of looks, and the groups that are known at the end."""
    shape = Shape(size, retries_every=1, delays=DELAYS, retry_partitions=RETRY_PARTITIONS)
    async with staged(KafkaBroker(properties=BROKER), shape) as (stage, operator):
        series = operator.metrics()
        managed = size * ((len(DELAYS) + 1) * RETRY_PARTITIONS + PARTITIONS)
        figures: dict[str, Any] = {"groups": size, "managed_partitions": managed}
        figures |= await fleets(stage, operator)
        async with joined(stage):
            figures["settled_s"] = round(await settle(stage, operator), 1)
            figures["window"] = await window(operator, WINDOW_S)
        after, watched = operator.metrics(), stage.watched
        figures |= {
            "look_p99_s": quantile(series, after, "observation_duration_seconds", 0.99),
            "looks_failed": total(after, "observation_failures"),
            "states_known": sum(state not in ("", "Unknown") for state in watched.states.values()),
            "lags_known": sum(watched.lag_known.values()),
        }
        return figures


if __name__ == "__main__":
    print_figures("bench.operator_slow", slow, __doc__)
