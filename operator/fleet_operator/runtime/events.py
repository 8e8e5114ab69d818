"""Posts Kubernetes Events about the operator's objects: only on transitions, merged, and in the background.

If an Event about an object recurs within MERGE_SECONDS, only the count of the first Event (its `series`) is increased.
Posting is not part of a reconcile and may fail, so an Event only repeats the message of a condition.
"""

import asyncio
import hashlib
import logging
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
SERIES_WRITE_SECONDS: Final = 60.0
"""Minimum time between two writes of an Event's count."""
PENDING_MAX: Final = 1000
REMEMBERED_MAX: Final = 4096
NOTE_CHARACTERS_MAX: Final = 1000
"""Length to which notes are cut. The API server refuses notes of more than 1024 characters."""


def regarded(body: JsonObject) -> JsonObject:
    """The fields of an object that an Event about the object needs. Other fields are dropped, because a thousand Events
    may wait to be posted."""
    metadata = {name: body["metadata"][name] for name in ("name", "namespace", "uid")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about an object. `reason` is a CamelCase word, `note` a sentence."""

    regarding: JsonObject
    type: Literal["Normal", "Warning"]
    reason: str
    note: str

    def digest(self) -> str:
        """A digest that is the same for equal Events about the same object."""
        parts = (self.regarding["metadata"]["uid"], self.type, self.reason, ACTION, self.note)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Posted:
    """A posted Event: the time at which it was first posted, its count, and the time of the last write of the count
    (Unix seconds)."""

    first_at: float
    count: int
    written_at: float


def admit(known: dict[str, Posted], digest: str, now: float) -> Posted | None:
    """Return the first time and the count with which to post or update an Event. Return None if the Event must not be
    written now, because an equal Event was written recently; the occurrence is then only counted. Pure. `known` has the
    posted Events, keyed by digest, the oldest first. Times are Unix seconds."""
    posted = known.get(digest)
    if posted is None or now - posted.first_at > MERGE_SECONDS:
        known.pop(digest, None)
        known[digest] = fresh = Posted(now, 1, now)
        while len(known) > REMEMBERED_MAX:
            del known[next(iter(known))]
        return fresh
    due = now - posted.written_at >= SERIES_WRITE_SECONDS
    written_at = now if due else posted.written_at
    known[digest] = counted = replace(posted, count=posted.count + 1, written_at=written_at)
    return counted if due else None


class EventRecorder:
    """Posts Events from one background task. `record` never blocks or raises. Call `start` and `stop` once each."""

    def __init__(self, kube: KubeClient, clock: Clock, metrics: Metrics, *, instance: str) -> None:
        self._kube = kube
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._posted: dict[str, Posted] = {}
        self._pending: asyncio.Queue[tuple[Event, Posted]] = asyncio.Queue(PENDING_MAX)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._post_all(), name="event-recorder")

    async def stop(self) -> None:
        """Stop posting; pending Events are dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def record(self, event: Event) -> None:
        """Post an Event soon, unless an equal Event was posted recently."""
        posted = admit(self._posted, event.digest(), self._clock.wall())
        if posted is None:
            self._metrics.events.labels("merged").inc()
            return
        try:
            self._pending.put_nowait((replace(event, regarding=regarded(event.regarding)), posted))
        except asyncio.QueueFull:
            self._metrics.events.labels("dropped").inc()

    async def _post_all(self) -> None:
        while True:
            event, posted = await self._pending.get()
            try:
                await self._kube.apply(self._body(event, posted))
            except KubeError as error:
                self._metrics.events.labels("failed").inc()
                log.warning("event not posted", extra={"reason": error.reason, "error": str(error)})
            else:
                self._metrics.events.labels("written").inc()

    def _body(self, event: Event, posted: Posted) -> JsonObject:
        about = event.regarding
        metadata = about["metadata"]
        body: JsonObject = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {
                # `eventTime` is immutable, so an equal Event with a later first time needs a different name.
                "name": f"{metadata['name']}.{event.digest()}{int(posted.first_at):x}",
                "namespace": metadata["namespace"],
            },
            "eventTime": to_micro_text(posted.first_at),
            "type": event.type,
            "reason": event.reason,
            "action": ACTION,
            "note": event.note[:NOTE_CHARACTERS_MAX],
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "regarding": {"apiVersion": about["apiVersion"], "kind": about["kind"], **metadata},
        }
        if posted.count > 1:
            body["series"] = {"count": posted.count, "lastObservedTime": to_micro_text(posted.written_at)}
        return body
