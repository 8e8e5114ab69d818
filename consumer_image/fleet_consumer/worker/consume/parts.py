"""The parts that a consume loop is made of, and the loop as its session sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.worker.breaker.pacing import Pacing
from fleet_consumer.worker.consume.intake import Intake
from fleet_consumer.worker.consume.outcomes import Handle, Outcomes
from fleet_consumer.worker.consume.pauses import Pauses
from fleet_consumer.worker.consume.progress import ConsumeProgress
from fleet_consumer.worker.consume.readings import Readings
from fleet_consumer.worker.consume.writing import Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.stats import Stats

Topics = tuple[str, ...] | TopicPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The worker's settings that a loop needs; times in seconds."""

    topics: Topics
    commit_interval_s: float
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The parts of one consume loop.

    `handle` takes records as they were read. `pause(seconds)` waits, and returns early when the worker is to stop.
    """

    consumer: Consumer
    handle: Handle
    outcomes: Outcomes
    writing: Writing
    intake: Intake
    readings: Readings
    pacing: Pacing
    pauses: Pauses
    settings: LoopSettings
    stats: Stats
    watch: Watch
    clock: Clock
    pause: Callable[[float], object]


class Loop(Protocol):
    """One member's work, from subscribing to closing. All methods belong to one thread, except `stop`.

    Any thread may read the properties, `beat_at` (monotonic seconds at the end of the last round) included.
    """

    beat_at: float

    @property
    def topics(self) -> Topics:
        """The topics subscribed to."""
        ...

    @property
    def progress(self) -> ConsumeProgress:
        """The partitions owned now."""
        ...

    @property
    def in_flight(self) -> int:
        """Number of records that are taken up and not through their handler."""
        ...

    @property
    def error(self) -> ConsumerError | None:
        """The error of the last polls, None once records flow or none was raised for a while."""
        ...

    def start(self) -> None:
        """Join the group; returns at once."""
        ...

    def subscribe(self, topics: Topics) -> None:
        """Consume these topics from now on; partitions of others are given back in order. Returns at once."""
        ...

    def stop(self, within_s: float | None = None, *, gives_up: bool = False) -> None:
        """Finish what is in hand and begin nothing else, within the drain time. Any thread.

        `within_s` replaces the drain time of the settings. `gives_up`: records still in hand at the end are why the
        process ends, and count as its death.
        """
        ...

    def step(self) -> None:
        """Poll once, and handle, write and commit what follows. The loop is finished after a FatalConsumerError."""
        ...

    def close(self, timeout_s: float) -> None:
        """Write out, commit, leave (dynamic) or remain (static), stop all threads; about `timeout_s` seconds at most.

        The consumer's close revokes everything first, which waits for acknowledgements and for the commit, each at
        most a third of the time.
        """
        ...
