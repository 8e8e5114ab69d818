"""Steps of a reset in Kafka, as they end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord
from fleet_operator.planning.offsets.reset import Finding, ResetDecision, ResetStep
from fleet_operator.reconcilers.consumergroup.kafka_side import KafkaSide
from fleet_operator.reconcilers.consumergroup.offset_reset import OffsetResets
from tests.unit.planning.builders import consumer_group
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

GROUP = ("shop", "orders")


class BusyObserver:
    """An observer whose thread never comes to what is asked."""

    async def change(self, *_: Any) -> Any:
        await asyncio.sleep(3600.0)


def test_step_that_runs_out_of_time_leaves_its_reason() -> None:
    """Without it a fleet would stand still and nothing would say why."""

    async def main() -> tuple[Finding | None, list[int]]:
        nobody, returned = cast("Any", None), list[int]()
        kafka = KafkaSide(nobody, VirtualClock(asyncio.get_running_loop()), nobody, nobody)
        resets = OffsetResets(kafka, cast("Any", BusyObserver()), nobody, {})
        record = ResetRecord(id="a", to="Earliest", phase=ResetPhase.COMMITTING, offsets={"orders": {0: 0}})
        here = SimpleNamespace(key=GROUP, cluster_key=GROUP, cluster_id="kafka-1", group=consumer_group())
        decision = ResetDecision(last=record, step=ResetStep.COMMIT, step_for=record)
        resets.take_step(cast("Any", here), ("orders",), decision, lambda: returned.append(1))
        await asyncio.sleep(120.0)
        await kafka.close()
        return resets.finding(GROUP), returned

    finding, returned = run_virtual(main())
    assert finding is not None
    assert finding.problem is not None
    assert finding.problem.message == "the brokers did not answer in time"
    assert (finding.id, finding.phase) == ("a", ResetPhase.COMMITTING)
    assert returned == [1]
