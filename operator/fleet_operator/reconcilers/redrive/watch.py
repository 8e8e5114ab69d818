"""Progress of Redrives, read in the background: reconciles never wait for Kafka.

A reconcile starts a read and takes the last result; the end of a read brings the Redrive back into the queue.
Nothing is lost with this process: the next one asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.observe.kafka_admin import read_positions
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.redrive.readings import RedriveProgress, read_progress
from fleet_operator.runtime.cache import Key

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 4.0
"""A question is not repeated sooner than this after the last answer; runs commit about once a second."""
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest progress of a Redrive, and its pace since the one before."""

    progress: RedriveProgress
    at: float  # monotonic seconds
    per_second: int | None = None


class RedriveWatch:
    """The progress of all Redrives. Used on the event loop only; `close` ends the questions that are under way."""

    def __init__(self, clock: Clock, observers: ObserverPool, again: Callable[[Key], None]) -> None:
        self._clock = clock
        self._observers = observers
        self._again = again
        self._seen: dict[Key, Seen] = {}
        self._asked: dict[Key, float] = {}  # when the last answer came (monotonic seconds)
        self._asking: dict[Key, asyncio.Task[None]] = {}

    def latest(self, redrive: Key) -> Seen | None:
        """The newest progress; None before the first."""
        return self._seen.get(redrive)

    def ask(self, redrive: Key, cluster: Key, group_id: str) -> None:
        """Have the progress read, unless that is under way or was done a moment ago."""
        asked = self._asked.get(redrive)
        if redrive in self._asking or (asked is not None and self._clock.monotonic() - asked < ASK_SECONDS):
            return
        self._asking[redrive] = asyncio.create_task(
            self._ask(redrive, cluster, group_id), name=f"progress-of-{'/'.join(redrive)}"
        )

    def forget(self, redrive: Key) -> None:
        """Drop what is known of a Redrive that has ended or is gone."""
        self._seen.pop(redrive, None)
        self._asked.pop(redrive, None)

    async def close(self) -> None:
        asking = list(self._asking.values())
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, redrive: Key, cluster: Key, group_id: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                positions = await self._observers.act(cluster, lambda client: read_positions(client, group_id))
        except (NetError, KafkaError, ObserverStoppedError, TimeoutError) as error:
            fields = {"key": "/".join(redrive), "group": group_id, "error": str(error) or type(error).__name__}
            log.warning("progress of a redrive cannot be read", extra=fields)
        else:
            self._take(redrive, read_progress(positions))
        finally:
            del self._asking[redrive]
            self._asked[redrive] = self._clock.monotonic()
        self._again(redrive)

    def _take(self, redrive: Key, progress: RedriveProgress | None) -> None:
        if progress is None:
            return
        before, now = self._seen.get(redrive), self._clock.monotonic()
        pace = None
        if before is not None and now > before.at:
            pace = round(max(progress.moved - before.progress.moved, 0) / (now - before.at))
        self._seen[redrive] = Seen(progress, now, pace)
