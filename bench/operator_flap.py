"""Temporary loss of one of three brokers with many groups: `python -m bench.operator_flap`.

Counts status writes from the loss of the broker until recovery, and groups with the state Unknown meanwhile, compared
with the number of groups coordinated by the broker.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, Final

from bench.operator import SETTLE_S, fleets, settle, until
from bench.operator_process import total
from bench.operator_stage import BROKER, Shape, Stage, joined, record_figures, staged
from fleet_consumer.net import ConnectionSettings, Coordinator, NetworkClient
from tests.support.kafka_cluster import KafkaCluster

AWAY_S: Final = 20.0
GONE: Final = 2
"""Id of the stopped broker."""


def coordinated_by(stage: Stage, node: int) -> set[str]:
    """Objects of the stage whose main or retry group is coordinated by this broker."""
    settings = ConnectionSettings(bootstrap_servers=tuple(stage.kafka.bootstrap.split(",")), client_id="bench")
    client = NetworkClient(settings)
    try:
        client.metadata((), timeout_s=30.0)
        of = dict[str, str]()
        for body in stage.made:
            key, group = f"{body['metadata']['namespace']}/{body['metadata']['name']}", body["spec"]["groupId"]
            of |= {group: key} | ({f"{group}.retry": key} if "retry" in body["spec"] else {})
        found = client.find_coordinators(list(of), timeout_s=60.0)
        return {of[name] for name, each in found.items() if isinstance(each, Coordinator) and each.node_id == node}
    finally:
        client.close()


async def flap(size: int) -> dict[str, Any]:
    """Figures of the loss of one broker."""
    brokers = KafkaCluster(properties=BROKER)
    async with staged(brokers, Shape(size, replicas=3)) as (stage, operator), AsyncExitStack() as stack:
        await fleets(stage, operator)
        await stack.enter_async_context(joined(stage))
        await settle(stage, operator)
        affected = coordinated_by(stage, GONE)
        stage.watched.unknown.clear()
        series = operator.metrics()
        print(f"  broker {GONE} goes, the coordinator of {len(affected)} groups", file=sys.stderr, flush=True)
        brokers.brokers[GONE].kill()
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(brokers.brokers[GONE].start)
        began = time.monotonic()
        watched = stage.watched
        await until(
            lambda: all(watched.ready.values()) and all(watched.lag_known.values()),
            what=lambda: (
                f"{sum(watched.ready.values())} are Ready, the lag of {sum(watched.lag_known.values())} is known"
            ),
            timeout_s=SETTLE_S,
        )
        back = time.monotonic() - began
        await settle(stage, operator)
        after = operator.metrics()
        return {
            "groups": size,
            "groups whose coordinator went": len(affected),
            "status writes": total(after, "status_writes", kind="ConsumerGroup")
            - total(series, "status_writes", kind="ConsumerGroup"),
            "groups shown as Unknown": len(watched.unknown),
            "seconds until all are Ready with a known lag, from the broker's return": round(back, 1),
        }


if __name__ == "__main__":
    record_figures("operator_flap", flap, __doc__, brokers="three brokers")
