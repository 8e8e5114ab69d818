"""A session of a worker: one group membership, with consumer, consume loop and producer. A fatal error ends it."""

import logging
import threading
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.policies import Policies
from fleet_consumer.contract.skips import Place
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.handlers.executor import Executor
from fleet_consumer.handlers.loading import Handler
from fleet_consumer.handlers.performing import decoder
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import producer_config
from fleet_consumer.worker.breaker.pacing import BudgetPacing, FollowingPacing, Pacing
from fleet_consumer.worker.breaker.watch import BreakerWatch
from fleet_consumer.worker.config.mounted_file import Follower, MountedFile
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.config.settings import PodIdentity, connection_settings, consumer_settings
from fleet_consumer.worker.consume.concurrent import ConcurrentRounds
from fleet_consumer.worker.consume.inline import InlineRounds
from fleet_consumer.worker.consume.intake import Intake, RetryIntake
from fleet_consumer.worker.consume.loop import Loop
from fleet_consumer.worker.consume.outbox import Outbox
from fleet_consumer.worker.consume.outcomes import OutcomeRules, Outcomes
from fleet_consumer.worker.consume.parts import LoopParts, Topics
from fleet_consumer.worker.consume.pending import Concurrency
from fleet_consumer.worker.consume.progress import Pauses
from fleet_consumer.worker.consume.replay_epochs import ReplayEpochs
from fleet_consumer.worker.consume.skips import Skips
from fleet_consumer.worker.consume.writing import Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.stats import Stats

LIBRDKAFKA_LOG = logging.getLogger("fleet_consumer.librdkafka")

CLOSE_TIMEOUT_S: Final = 10.0
"""Timeout in seconds for closing a session after its last batch: acknowledgements, last commit, leaving the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """The components that all sessions of a worker share. `executor` is None if the loop's thread calls the handler."""

    config: WorkerConfig
    identity: PodIdentity
    role: Role
    handler: Handler
    executor: Executor | None
    policy_file: MountedFile[Policies] | None
    """All sessions share this object: the last valid policies still apply if the file becomes invalid later."""
    skip_file: MountedFile[frozenset[Place]] | None
    watch: Watch
    clock: Clock
    stats: Stats = field(default_factory=Stats)
    stop: threading.Event = field(default_factory=threading.Event)


class Session:
    """A worker's membership in its group, and the components that are closed with it."""

    def __init__(self, loop: Loop, parts: LoopParts, follower: Follower | None, watch: BreakerWatch | None) -> None:
        self.loop = loop
        self.consumer = parts.consumer
        self.parts = parts
        self._follower = follower
        self._watch = watch

    def start(self) -> None:
        if self._watch is not None:
            self._watch.start()
        self.loop.start()

    def step(self) -> bool:
        """Run one round of the consume loop. Returns False if a new session is required. Raises FatalConsumerError."""
        self.loop.step()
        return self._follower is None or self._follower.follow(self.loop.topics, self.loop.subscribe)

    def close(self, timeout_s: float) -> None:
        try:
            self.loop.close(timeout_s)
        finally:
            if self._watch is not None:
                self._watch.close()


def open_session(worker: WorkerContext) -> Session:
    """Create a session without starting it. Raises errors of settings, credentials, policies and librdkafka."""
    config, clock = worker.config, worker.clock
    connection = connection_settings(config.brokers, worker.identity.worker)
    settings = consumer_settings(config, connection, worker.identity, worker.role)
    follower = None if worker.policy_file is None else Follower(worker.policy_file, worker.role, config.group_id)
    consumer = Consumer(settings)
    pauses = Pauses(consumer)

    def policies() -> Policies | None:
        return None if follower is None else follower.policies

    topics: Topics = config.topic_pattern or config.topics
    pacing = Pacing() if follower is None else BudgetPacing(policies, clock)
    intake = Intake()
    breaker_watch = None
    if worker.role is Role.RETRY:
        assert follower is not None, "a retry worker has policies"
        topics = follower.topics()
        breaker_watch = BreakerWatch(connection, config.group_id, clock)
        pacing = FollowingPacing(policies, breaker_watch.breakers, breaker_watch.follow, clock)
        intake = RetryIntake(consumer, pauses, policies, group_id=config.group_id, stats=worker.stats, clock=clock)
    replay_epochs = ReplayEpochs(consumer, pauses, clock, bounded=worker.role is Role.RETRY)
    max_bytes = None if follower is None else follower.policies.max_message_bytes
    producer = {**producer_config(connection, config.producer_properties), "logger": LIBRDKAFKA_LOG}
    outbox = Outbox(lambda: RecordProducer(producer, message_max_bytes=max_bytes))
    outcomes = Outcomes(
        OutcomeRules(
            group_id=config.group_id,
            listed=frozenset(config.handler.outputs),
            failed_topic=config.failed_topic,
            policies=policies,
            error_text=config.handler.error_text,
        ),
        outbox,
        replay_epochs.presenting(intake.present_again),
        pacing=pacing,
        stats=worker.stats,
        clock=clock,
    )
    decode = config.handler.decode
    decoders = decoder("key", decode.key), decoder("value", decode.value)
    parts = LoopParts(
        consumer=consumer,
        handle=intake.handling(outcomes.decoding(worker.handler.call, *decoders), worker.watch),
        outcomes=outcomes,
        writing=Writing(outbox=outbox, outcomes=outcomes, pauses=pauses, stats=worker.stats, clock=clock),
        intake=intake,
        replay_epochs=replay_epochs,
        skips=Skips(worker.skip_file),
        pacing=pacing,
        pauses=pauses,
        topics=topics,
        commit_interval_s=config.consumer.commit_interval_seconds,
        drain_s=config.drain_seconds,
        stats=worker.stats,
        watch=worker.watch,
        clock=clock,
        pause=worker.stop.wait,
    )
    return Session(_loop(worker, settings.max_poll_records, parts), parts, follower, breaker_watch)


def _loop(worker: WorkerContext, max_poll_records: int, parts: LoopParts) -> Loop:
    executor, batch = worker.executor, worker.handler.batch
    if executor is None:
        return Loop(parts, lambda loop: InlineRounds(loop, parts))
    concurrency = Concurrency.sized(batch=batch, size=executor.size, max_poll_records=max_poll_records)
    at_once = max_poll_records if batch else executor.size
    return Loop(parts, lambda loop: ConcurrentRounds(loop, parts, executor, concurrency), at_once=at_once)
