"""Ranges of Backfills, resolved in the background: reconciles never wait for Kafka.

A reconcile starts a question and takes the last answer; the end of a question brings the Backfill back into the queue.
Nothing is lost with this process: the next one asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import Backfill, conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.observe.kafka_admin import AnotherClusterError
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.backfill.needs import missing_topic, other_topics
from fleet_operator.planning.backfill.ranges import (
    RangeQuestion,
    Resolution,
    TopicReading,
    Unresolved,
    ask_range,
    resolve,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.runtime.cache import Key

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 4.0
"""A question is not repeated sooner than this after the last answer."""
ANSWER_SECONDS: Final = 60.0
UNKNOWN_MAX: Final = 3
"""Answers in a row without the topic after which it is believed: one that was just created is not known everywhere."""


@dataclass(slots=True)
class _Asked:
    """The questions about one Backfill: the newest resolution, and when it came (monotonic seconds).

    `now` (wall seconds) and `highs` are those of the first question: neither the time nor the end of a range moves on
    while it waits for something.
    """

    uid: str
    now: float
    highs: Mapping[int, int] | None = None
    resolution: Resolution | None = None
    at: float | None = None
    unknown: int = 0
    asking: asyncio.Task[None] | None = None


class RangeWatch:
    """The ranges of all Backfills. Used on the event loop only; `close` ends the questions that are under way."""

    def __init__(self, clock: Clock, observers: ObserverPool, again: Callable[[Key], None]) -> None:
        self._clock = clock
        self._observers = observers
        self._again = again
        self._asked: dict[Key, _Asked] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def latest(self, key: Key, backfill: Backfill) -> Resolution | None:
        """The newest resolution; None before the first."""
        asked = self._asked.get(key)
        return asked.resolution if asked is not None and asked.uid == backfill.metadata.uid else None

    def ask(self, key: Key, backfill: Backfill, group: ConsumerGroup, topic: str, cluster_id: str | None) -> None:
        """Have the range resolved on the Kafka cluster with this id, unless that is under way or was done just now."""
        asked = self._asked.get(key)
        if asked is None or asked.uid != backfill.metadata.uid:
            asked = self._asked[key] = _Asked(backfill.metadata.uid, self._clock.wall())
        busy = asked.asking is not None and not asked.asking.done()
        if busy or (asked.at is not None and self._clock.monotonic() - asked.at < ASK_SECONDS):
            return
        question = ask_range(
            backfill,
            topic,
            read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
            others=other_topics(backfill, group),
            now=asked.now,
        )
        asking = self._ask(key, asked, backfill, group, question, cluster_id)
        asked.asking = asyncio.create_task(asking, name=f"range-of-{'/'.join(key)}")
        self._asking.add(asked.asking)
        asked.asking.add_done_callback(self._asking.discard)

    def forget(self, key: Key) -> None:
        """Drop what is known of a Backfill whose range is on record, or which is gone."""
        self._asked.pop(key, None)

    async def close(self) -> None:
        asking = list(self._asking)
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(
        self,
        key: Key,
        asked: _Asked,
        backfill: Backfill,
        group: ConsumerGroup,
        question: RangeQuestion,
        cluster_id: str | None,
    ) -> None:
        cluster = (group.metadata.namespace, group.spec.cluster_ref.name)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                read = await self._observers.change(cluster, cluster_id, lambda admin: admin.read_topic(question))
        except (NetError, KafkaError, AnotherClusterError, ObserverStoppedError, TimeoutError) as error:
            reason = getattr(error, "reason", conditions.BROKER_UNREACHABLE)
            message = f"the range cannot be read from Kafka: {error or type(error).__name__}"
            asked.resolution = Unresolved(Problem(str(reason), message))
            log.warning("range of a backfill cannot be read", extra={"key": "/".join(key), "error": str(error)})
        else:
            asked.resolution = self._take(asked, backfill, group, question, read)
        finally:
            asked.at = self._clock.monotonic()
        self._again(key)

    def _take(
        self, asked: _Asked, backfill: Backfill, group: ConsumerGroup, question: RangeQuestion, read: TopicReading
    ) -> Resolution:
        asked.unknown = asked.unknown + 1 if read.partitions is None else 0
        if read.partitions is not None:
            asked.highs = read.highs if asked.highs is None else {**read.highs, **asked.highs}
            read = replace(read, highs=asked.highs)
        if 0 < asked.unknown < UNKNOWN_MAX:
            message = f"topic {question.topic!r} is not known to the brokers yet; it is asked for again"
            return Unresolved(Problem(conditions.SOURCE_TOPIC_NOT_FOUND, message))
        missing = missing_topic(backfill, group, read.unknown) if read.partitions is not None else None
        return Unresolved(missing) if missing is not None else resolve(backfill, question, read)
