"""The worker's consume loop, wired as in a worker, with a handler function of the benchmark."""

from __future__ import annotations

import time
import uuid

from fleet_consumer.clock import SystemClock
from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.handlers.collector import tame_collector
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.worker.breaker.pacing import Pacing
from fleet_consumer.worker.consume.inline import InlineRounds
from fleet_consumer.worker.consume.intake import Intake
from fleet_consumer.worker.consume.loop import Loop
from fleet_consumer.worker.consume.outbox import Outbox
from fleet_consumer.worker.consume.outcomes import Handle, OutcomeRules, Outcomes
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import Pauses
from fleet_consumer.worker.consume.replay_epochs import ReplayEpochs
from fleet_consumer.worker.consume.skips import Skips
from fleet_consumer.worker.consume.writing import Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.stats import Stats


class FleetLoop:
    """The only member of a new group, from the beginning of a topic; `step` polls once and handles the records."""

    def __init__(self, bootstrap: str, topic: str, handle: Handle) -> None:
        clock, stats = SystemClock(), Stats()
        group = f"bench-{uuid.uuid4().hex}"
        connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="bench")
        self.consumer = Consumer(ConsumerSettings(connection=connection, group_id=group))
        outbox = Outbox(_no_producer)
        pauses, intake, pacing = Pauses(self.consumer), Intake(), Pacing()
        replay_epochs = ReplayEpochs(self.consumer, pauses, clock, bounded=False)
        rules = OutcomeRules(group_id=group, listed=frozenset(), failed_topic="none", policies=lambda: None)
        present_again = replay_epochs.presenting(intake.present_again)
        outcomes = Outcomes(rules, outbox, present_again, pacing=pacing, stats=stats, clock=clock)
        self._stats = stats
        parts = LoopParts(
            consumer=self.consumer,
            handle=handle,
            outcomes=outcomes,
            writing=Writing(outbox=outbox, outcomes=outcomes, pauses=pauses, stats=stats, clock=clock),
            intake=intake,
            replay_epochs=replay_epochs,
            skips=Skips(),
            pacing=pacing,
            pauses=pauses,
            topics=(topic,),
            commit_interval_s=5,
            drain_s=0,
            stats=stats,
            watch=Watch(),
            clock=clock,
            pause=time.sleep,
        )
        self._loop = Loop(parts, lambda loop: InlineRounds(loop, parts))
        tame_collector()
        self._loop.start()

    def step(self) -> int:
        """Poll and handle once; returns the number of handled records."""
        before = self._stats.done
        self._loop.step()
        return self._stats.done - before

    def close(self) -> None:
        self._loop.close(10)


def _no_producer() -> RecordProducer:
    raise AssertionError("handlers of benchmarks write nothing")
