"""The components of a consume loop."""

from collections.abc import Callable
from dataclasses import dataclass

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.worker.breaker.pacing import Pacing
from fleet_consumer.worker.consume.intake import Intake
from fleet_consumer.worker.consume.outcomes import Handle, Outcomes
from fleet_consumer.worker.consume.progress import Pauses
from fleet_consumer.worker.consume.replay_epochs import ReplayEpochs
from fleet_consumer.worker.consume.skips import Skips
from fleet_consumer.worker.consume.writing import Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.stats import Stats

Topics = tuple[str, ...] | TopicPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The components of one consume loop. `handle` is called with the records that were read from Kafka.
    `pause(seconds)` waits, and returns early when the worker stops."""

    consumer: Consumer
    handle: Handle
    outcomes: Outcomes
    writing: Writing
    intake: Intake
    replay_epochs: ReplayEpochs
    skips: Skips
    pacing: Pacing
    pauses: Pauses
    topics: Topics
    commit_interval_s: float
    drain_s: float
    stats: Stats
    watch: Watch
    clock: Clock
    pause: Callable[[float], object]
