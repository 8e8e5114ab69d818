"""One life of a worker's membership: a consumer, its loop, its producer. A fatal error ends it; another may follow.

Sessions exist because some errors end a consumer but need not end the process: a pod that ends is started again at
once, and again, and hides the reason behind restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.contract.policies import Policies
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.group.errors import FencedInstance
from fleet_consumer.handlers import Handler, Outputs, Performer, checker, decoder
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import connection_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.worker.breaker.budget import BudgetPacing, FollowingPacing
from fleet_consumer.worker.breaker.pacing import NoPacing, Pacing
from fleet_consumer.worker.breaker.watch import BreakerWatch
from fleet_consumer.worker.config.follower import Follower
from fleet_consumer.worker.config.policy_file import PolicyFile
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.config.settings import PodIdentity, connection_settings, consumer_settings
from fleet_consumer.worker.consume.concurrent import Concurrency, ConcurrentLoop
from fleet_consumer.worker.consume.executor import Executor, LoopExecutor, ThreadExecutor
from fleet_consumer.worker.consume.intake import Everything, Intake
from fleet_consumer.worker.consume.loop import ConsumeLoop, LoopSettings
from fleet_consumer.worker.consume.outbox import Outbox
from fleet_consumer.worker.consume.outcomes import Handle, Outcomes
from fleet_consumer.worker.consume.pauses import WRITES_HELD, Pauses
from fleet_consumer.worker.consume.readings import Readings
from fleet_consumer.worker.consume.retry_intake import RetryIntake
from fleet_consumer.worker.consume.writing import Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.stats import Stats

LIBRDKAFKA_LOG = logging.getLogger("fleet_consumer.librdkafka")

CLOSE_TIMEOUT_S: Final = 10.0
"""For acknowledgements, the last commit and leaving, after the batch in hand has come to its end."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
"""A session that ended by an error is followed by the next after 1 s, 2 s, 4 s … 30 s: its partitions stand still until
then."""

FENCED_FIRST_S: Final = 5.0
FENCED_MAX_S: Final = 300.0
"""The same for a member that was fenced, up to 5 min: when it comes back it fences the other in turn, so this bounds
how often two of them can disturb the group."""


class Session:
    """A membership that is being lived. `connection` is what it was opened with, credentials included."""

    def __init__(
        self,
        consumer: Consumer,
        loop: ConsumeLoop,
        pauses: Pauses,
        connection: ConnectionSettings,
        pacing: Pacing,
        intake: Intake,
        follower: Follower | None,
        watch: BreakerWatch | None,
    ) -> None:
        self.consumer = consumer
        self.loop = loop
        self.pauses = pauses
        self.connection = connection
        self.pacing = pacing
        self.intake = intake
        self._follower = follower
        self._watch = watch

    def start(self) -> None:
        """Join the group; returns at once."""
        if self._watch is not None:
            self._watch.start()
        self.loop.start()

    def step(self) -> bool:
        """One round of the consume loop; False when another session has to begin. Raises FatalConsumerError."""
        self.loop.step()
        return self._follower is None or self._follower.follow(self.loop)

    def close(self, timeout_s: float) -> None:
        """As `ConsumeLoop.close`, and the end of what runs beside it."""
        try:
            self.loop.close(timeout_s)
        finally:
            if self._watch is not None:
                self._watch.close()


def open_session(
    config: WorkerConfig,
    identity: PodIdentity,
    handler: Handler,
    executor: Executor | None,
    *,
    role: Role,
    policy_file: PolicyFile | None,
    stats: Stats,
    watch: Watch,
    clock: Clock,
    pause: Callable[[float], object],
) -> Session:
    """Make a consumer and its loop; starts nothing. `executor` comes from `make_executor` and outlives the session.

    Raises what settings, credentials, policies or librdkafka refuse.
    """
    connection = connection_settings(config.brokers, identity.worker)
    settings = consumer_settings(config, connection, identity, role)
    follower = None if policy_file is None else Follower(policy_file, role, config.group_id)
    consumer = Consumer(settings)
    pauses = Pauses(consumer)
    limit = None if follower is None else follower.policies.max_message_bytes
    producer = {**connection_config(connection), "logger": LIBRDKAFKA_LOG}
    outbox = Outbox(lambda: RecordProducer(producer, message_max_bytes=limit))

    def policies() -> Policies | None:
        return None if follower is None else follower.policies

    topics: tuple[str, ...] | TopicPattern = config.topic_pattern or config.topics
    pacing: Pacing = NoPacing() if follower is None else BudgetPacing(policies, clock)
    intake: Intake = Everything()
    breaker_watch = None
    if role is Role.RETRY:
        assert follower is not None, "a retry worker has policies"
        topics = follower.topics()
        breaker_watch = BreakerWatch(connection, config.group_id, clock)
        pacing = FollowingPacing(policies, breaker_watch.breakers, breaker_watch.follow, clock)
        intake = RetryIntake(consumer, pauses, policies, group_id=config.group_id, stats=stats, clock=clock)
    readings = Readings(consumer, clock, bounded=role is Role.RETRY)
    outcomes = Outcomes(
        outbox=outbox,
        outputs=Outputs(config.handler.outputs),
        failed_topic=config.failed_topic,
        group_id=config.group_id,
        policies=policies,
        retell=readings.telling(intake.retell),
        pacing=pacing,
        stats=stats,
        clock=clock,
        error_text=config.handler.error_text,
    )
    writing = Writing(outbox=outbox, outcomes=outcomes, consumer=pauses.because(WRITES_HELD), stats=stats, clock=clock)
    parts: dict[str, Any] = {
        "consumer": consumer,
        "handle": intake.handling(_decoding(config, handler, outcomes), watch),
        "outcomes": outcomes,
        "writing": writing,
        "intake": intake,
        "readings": readings,
        "pacing": pacing,
        "pauses": pauses,
        "settings": _loop_settings(config, topics),
        "stats": stats,
        "watch": watch,
        "clock": clock,
        "pause": pause,
    }
    loop = _loop(executor, handler, settings.max_poll_records, parts)
    return Session(consumer, loop, pauses, connection, pacing, intake, follower, breaker_watch)


def _loop_settings(config: WorkerConfig, topics: tuple[str, ...] | TopicPattern) -> LoopSettings:
    commit_interval_s = config.consumer.commit_interval_seconds
    return LoopSettings(topics=topics, commit_interval_s=commit_interval_s, drain_s=config.drain_seconds)


def _decoding(config: WorkerConfig, handler: Handler, outcomes: Outcomes) -> Handle:
    decode = config.handler
    return outcomes.decoding(handler.call, decoder("key", decode.decode_key), decoder("value", decode.decode_value))


def _loop(executor: Executor | None, handler: Handler, max_poll_records: int, parts: dict[str, Any]) -> ConsumeLoop:
    if executor is None:
        return ConsumeLoop(**parts)
    concurrency = Concurrency.of(batch=handler.batch, size=executor.size, max_poll_records=max_poll_records)
    return ConcurrentLoop(executor=executor, concurrency=concurrency, **parts)


def make_executor(config: WorkerConfig, handler: Handler, clock: Clock) -> Executor | None:
    """Who runs the handler; None where the consume loop itself is the fastest: one synchronous call at a time."""
    size = config.handler.concurrency
    if size == 1 and not handler.batch and not handler.asynchronous:
        return None
    decode = checker if handler.takes_bytes else decoder
    performer = Performer(
        handler.call,
        batch=handler.batch,
        decode_key=decode("key", config.handler.decode_key),
        decode_value=decode("value", config.handler.decode_value),
        outputs=Outputs(config.handler.outputs),
        timeout_s=None if handler.times_itself else config.handler.timeout_seconds,
    )
    return LoopExecutor(performer, size, clock) if handler.asynchronous else ThreadExecutor(performer, size, clock)


class SessionBackoff:
    """The wait before the next session, by the error that ended the last one. Pure."""

    def __init__(self) -> None:
        self._usual = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        self._fenced = Backoff(FENCED_FIRST_S, FENCED_MAX_S)

    def after(self, error: Exception, lived_s: float) -> float:
        """Seconds to wait after a session that lived so long."""
        return (self._fenced if isinstance(error, FencedInstance) else self._usual).after(lived_s)


class Backoff:
    """How long to wait before the next try. Pure."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def after(self, lived_s: float) -> float:
        """Seconds to wait after a session that lived so long; one that outlived the longest wait starts afresh."""
        if lived_s > self._max_s:
            self._next_s = self._first_s
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return delay
