"""Kubernetes Events about our objects: on transitions only, merged, and posted in the background.

Events are for people reading `kubectl describe`. The same news about the same object within a few minutes becomes a
count on the first Event (its `series`) instead of another object. Posting happens outside the reconcile and may fail:
an Event never says what no condition says.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final, Literal

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import EVENT, JsonObject
from fleet_operator.clients.kube import KubeClient, KubeError
from fleet_operator.planning.times import to_micro_text
from fleet_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

CONTROLLER: Final = "consumerfleet.io/operator"
ACTION: Final = "Reconcile"
MERGE_SECONDS: Final = 600.0
"""The same news within this time is counted, not repeated."""
SERIES_WRITE_SECONDS: Final = 60.0
"""A count is written at most this often."""
PENDING_MAX: Final = 1000
REMEMBERED_MAX: Final = 4096
NOTE_CHARACTERS_MAX: Final = 1000
"""The API server refuses notes above 1024 characters."""


def regarded(body: JsonObject) -> JsonObject:
    """The part of an object that news about it need: thousands may wait to be posted."""
    metadata = {name: body["metadata"][name] for name in ("name", "namespace", "uid")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}


@dataclass(frozen=True, slots=True)
class News:
    """One thing that happened to an object. `reason` is a CamelCase word, `note` a sentence."""

    regarding: JsonObject
    type: Literal["Normal", "Warning"]
    reason: str
    note: str

    def digest(self) -> str:
        """Equal for equal news about the same object."""
        parts = (self.regarding["metadata"]["uid"], self.type, self.reason, ACTION, self.note)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Posted:
    """Memory of a posted Event: its first time, its count, and when that was last written (Unix seconds)."""

    first_at: float
    count: int
    written_at: float


class NewsLedger:
    """Decides which news to post, and with which count. Pure: times are Unix seconds."""

    def __init__(self) -> None:
        self._posted: OrderedDict[str, Posted] = OrderedDict()

    def admit(self, digest: str, now: float) -> Posted | None:
        """The record to post this news under, or None when a recent Event already says it."""
        posted = self._posted.get(digest)
        if posted is None or now - posted.first_at > MERGE_SECONDS:
            self._posted[digest] = fresh = Posted(now, 1, now)
            self._posted.move_to_end(digest)
            while len(self._posted) > REMEMBERED_MAX:
                self._posted.popitem(last=False)
            return fresh
        due = now - posted.written_at >= SERIES_WRITE_SECONDS
        written_at = now if due else posted.written_at
        self._posted[digest] = counted = replace(posted, count=posted.count + 1, written_at=written_at)
        return counted if due else None


class EventRecorder:
    """Posts news from one background task. `record` never blocks or raises; `start` and `stop` once each."""

    def __init__(self, kube: KubeClient, clock: Clock, metrics: Metrics, *, instance: str) -> None:
        self._kube = kube
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._ledger = NewsLedger()
        self._pending: asyncio.Queue[tuple[News, Posted]] = asyncio.Queue(PENDING_MAX)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._post_all(), name="event-recorder")

    async def stop(self) -> None:
        """Stop posting; what is still pending is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def record(self, news: News) -> None:
        """Post news soon, unless a recent Event already says it."""
        posted = self._ledger.admit(news.digest(), self._clock.wall())
        if posted is None:
            self._metrics.events.labels("merged").inc()
            return
        try:
            self._pending.put_nowait((replace(news, regarding=regarded(news.regarding)), posted))
        except asyncio.QueueFull:
            self._metrics.events.labels("dropped").inc()

    async def _post_all(self) -> None:
        while True:
            news, posted = await self._pending.get()
            try:
                await self._kube.apply(self._event(news, posted))
            except KubeError as error:
                self._metrics.events.labels("failed").inc()
                log.warning("event not posted", extra={"reason": error.reason, "error": str(error)})
            else:
                self._metrics.events.labels("written").inc()

    def _event(self, news: News, posted: Posted) -> JsonObject:
        about = news.regarding
        metadata = about["metadata"]
        event: JsonObject = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {
                # The first time is part of the name, as an Event's time may not change once it exists.
                "name": f"{metadata['name']}.{news.digest()}{int(posted.first_at):x}",
                "namespace": metadata["namespace"],
            },
            "eventTime": to_micro_text(posted.first_at),
            "type": news.type,
            "reason": news.reason,
            "action": ACTION,
            "note": news.note[:NOTE_CHARACTERS_MAX],
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "regarding": {"apiVersion": about["apiVersion"], "kind": about["kind"], **metadata},
        }
        if posted.count > 1:
            event["series"] = {"count": posted.count, "lastObservedTime": to_micro_text(posted.written_at)}
        return event
