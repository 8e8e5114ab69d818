"""One life of a worker's membership: a consumer, its loop, its producer. A fatal error ends it; another may follow.

Sessions exist because some errors end a consumer but need not end the process: a pod that ends is started again at
once, and again, and hides the reason behind restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer import Consumer
from fleet_consumer.fetch.librdkafka import connection_config
from fleet_consumer.fetch.producer import RecordProducer
from fleet_consumer.handlers import Outputs, PythonHandler, decoder
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.worker.config import WorkerConfig
from fleet_consumer.worker.judge import Judge
from fleet_consumer.worker.loop import ConsumeLoop, LoopSettings
from fleet_consumer.worker.outbox import Outbox
from fleet_consumer.worker.settings import Identity, connection_settings, consumer_settings
from fleet_consumer.worker.stats import Stats
from fleet_consumer.worker.watchdog import Watch
from fleet_consumer.worker.writing import Writing

LIBRDKAFKA_LOG = logging.getLogger("fleet_consumer.librdkafka")

CLOSE_TIMEOUT_S: Final = 10.0
"""For acknowledgements, the last commit and leaving, after the batch in hand has come to its end."""

BACKOFF_FIRST_S: Final = 5.0
BACKOFF_MAX_S: Final = 300.0
"""A session that ended by an error is followed by the next after 5 s, 10 s, 20 s … 5 min: a fenced member that comes
back fences the other in turn, so this also bounds how often two of them can disturb the group."""


@dataclass(frozen=True, slots=True)
class Session:
    """A membership that is being lived."""

    consumer: Consumer
    loop: ConsumeLoop
    connection: ConnectionSettings
    """What it was opened with, credentials included."""


def open_session(
    config: WorkerConfig,
    identity: Identity,
    handler: PythonHandler,
    *,
    stats: Stats,
    watch: Watch,
    clock: Clock,
    pause: Callable[[float], object],
) -> Session:
    """Make a consumer and its loop; nothing is started. Raises what settings, credentials or librdkafka refuse."""
    connection = connection_settings(config, identity.worker)
    consumer = Consumer(consumer_settings(config, connection, identity))
    outbox = Outbox(lambda: RecordProducer({**connection_config(connection), "logger": LIBRDKAFKA_LOG}))
    judge = Judge(
        outbox=outbox,
        outputs=Outputs(config.handler.outputs),
        failed_topic=config.failed_topic,
        group_id=config.group_id,
        stats=stats,
        clock=clock,
    )
    handle = judge.decoding(
        handler.handle, decoder("key", config.handler.decode_key), decoder("value", config.handler.decode_value)
    )
    loop = ConsumeLoop(
        consumer=consumer,
        handle=handle,
        judge=judge,
        writing=Writing(outbox=outbox, judge=judge, consumer=consumer, stats=stats, clock=clock),
        settings=LoopSettings(
            topics=config.topics,
            commit_interval_s=config.consumer.commit_interval_seconds,
            drain_s=config.drain_seconds,
        ),
        stats=stats,
        watch=watch,
        clock=clock,
        pause=pause,
    )
    return Session(consumer, loop, connection)


class Backoff:
    """How long to wait before the next session. Pure."""

    def __init__(self, first_s: float = BACKOFF_FIRST_S, max_s: float = BACKOFF_MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def after(self, lived_s: float) -> float:
        """Seconds to wait after a session that lived so long; one that outlived the longest wait starts afresh."""
        if lived_s > self._max_s:
            self._next_s = self._first_s
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return delay
