"""Writes the statuses of all objects. Only changes are written, with rate limits that depend on the weight of a change:

- Urgent: a changed condition, or a changed field that people or programs act on (a generation, a state, a replica
  count).
- Routine: all other changes. They wait for a token of the token bucket, and for at least ROUTINE_SECONDS after the
  object's last write.
- Wording: changes of only messages or observation times. They wait for at least WORDING_SECONDS after the last write,
  because the text of an error may differ with each attempt.

Urgent changes overtake routine changes, but have their own limits. A limit for each object slows down an object whose
conditions keep changing. A limit for all objects together prevents 5,000 writes at once when a Kafka cluster with 5,000
groups becomes unreachable and reachable again and again. An object whose write is deferred reserves a slot, which is a
time at which it may write. The object is requeued for that time, and then writes.

A new fleet changes several times within seconds. While this lasts, the caller reports the object as `settling`. An
urgent change of such an object is then delayed for at most SETTLING_SECONDS, so that the changes that follow are
written together with it.

Decision: docs/decisions/0057-cost-of-a-new-group.md.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import JsonObject, Kind, identity, kind_of
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store, digest

ROUTINE_SECONDS: Final = 5.0
WORDING_SECONDS: Final = 60.0
BURST: Final = 100.0
DEBT_MAX: Final = 1000.0
URGENT_FACTOR: Final = 20.0
"""Rate of urgent writes, as a multiple of the routine rate."""
URGENT_BURST: Final = 500.0
OBJECT_URGENT_RATE: Final = 0.5
"""Sustained rate of urgent writes of one object, per second."""
OBJECT_URGENT_BURST: Final = 10.0
SETTLING_SECONDS: Final = 3.0
"""Maximum delay of an urgent change of a settling object."""
_IGNORED: Final = frozenset({"observedAt"})
"""Fields whose change alone causes no write. They are written together with the next change of another field."""


@dataclass(slots=True)
class TokenBucket:
    """A token bucket of size `burst` with `rate` tokens per second; `take_now` may overdraw it by `debt_max` tokens. If
    there is no token, a caller reserves the next one that will be added, so no two callers wait for the same token.
    Pure."""

    rate: float
    burst: float
    debt_max: float = 0.0
    _level: float = 0.0
    _at: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token; returns the seconds until it is available, 0.0 if it is available now."""
        self._refill(now)
        self._level -= 1.0
        return max(-self._level / self.rate, 0.0)

    def take_now(self, now: float) -> None:
        """Take a token without waiting; later reservations wait longer."""
        self._refill(now)
        if self._level > -self.debt_max:
            self._level = max(self._level - 1.0, -self.debt_max)

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._level = self.burst
        else:
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = now


class Weight(IntEnum):
    WORDING = 1
    ROUTINE = 2
    URGENT = 3


def weigh(before: JsonObject, after: JsonObject, urgent_fields: Collection[str]) -> Weight:
    """The weight of the change from status `before` to status `after`; a change of one of `urgent_fields` is urgent."""
    if _verdicts(before) != _verdicts(after) or any(before.get(k) != after.get(k) for k in urgent_fields):
        return Weight.URGENT
    return Weight.WORDING if digest(_unworded(before)) == digest(_unworded(after)) else Weight.ROUTINE


def _verdicts(status: JsonObject) -> list[tuple[Any, ...]]:
    return [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions", ())]


def _unworded(status: JsonObject) -> JsonObject:
    bare = {key: value for key, value in status.items() if key != "message" and key not in _IGNORED}
    return bare | {"conditions": _verdicts(status)}


@dataclass(frozen=True, slots=True)
class _Written:
    """The last write of a status: digests of the requested and the stored status, and the time (monotonic seconds)."""

    meant: str
    stored: str
    at: float


@dataclass(slots=True)
class _Slots:
    """Reserved times at which one object may write routine changes, urgent changes, and urgent changes while settling;
    None without a reservation. `own` is the rate limit of the object's urgent writes."""

    own: TokenBucket
    routine: float | None = None
    urgent: float | None = None
    settled: float | None = None


class StatusWriter:
    """Writes the status of all objects of one operator under one rate limit. Used on the event loop only."""

    def __init__(
        self, store: Store, clock: Clock, metrics: Metrics, *, writes_per_second: float, urgent_fields: Collection[str]
    ) -> None:
        self._urgent_fields = urgent_fields
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._bucket = TokenBucket(rate=writes_per_second, burst=BURST, debt_max=DEBT_MAX)
        self._urgent = TokenBucket(rate=URGENT_FACTOR * writes_per_second, burst=URGENT_BURST)
        self._written: dict[tuple[str, Key], _Written] = {}
        self._slots: dict[tuple[str, Key], _Slots] = {}
        metrics.status_waiting.set_function(lambda: sum(self.awaits_slot(*address) for address in list(self._slots)))

    async def write(self, body: JsonObject, status: JsonObject, *, settling: bool = False) -> float | None:
        """Write `status`, which was computed from the status in `body`. Returns None if `status` is stored, or the
        requeue delay in seconds if the write was deferred. `settling`: other changes will follow soon. Raises
        KubeError; KubeConflictError means that the object has a different status, or has changed since it was last
        read."""
        kind, key = kind_of(body), key_of(body)
        now = self._clock.monotonic()
        written = self._written.get((kind.kind, key))
        before = body.get("status") or {}
        meant, found = _digest(status), _digest(before)
        if found == meant or (written and (written.meant, written.stored) == (meant, found)):
            return None
        weight = weigh(before, status, self._urgent_fields)
        first = not before.get("conditions")
        wait = 0.0 if first else self._due((kind.kind, key), weight, now, settling=settling) - now
        if wait > 0.0:
            self._metrics.status_deferred.labels(kind.kind).inc()
            return wait
        # The write applies only to this version, because a process that has lost the Lease must not overwrite its
        # successor's status.
        stored = await self._store.kube.apply_status({**identity(self._basis(kind, body)), "status": status})
        self._metrics.status_writes.labels(kind.kind).inc()
        self._written[kind.kind, key] = _Written(meant, _digest(stored.get("status") or {}), now)
        self._settle((kind.kind, key), now)
        self._store.saw_living(stored)
        self._store.learn(kind, stored)
        return None

    def _basis(self, kind: Kind, body: JsonObject) -> JsonObject:
        """The newest known version of the object, if its status equals the status in `body`; otherwise `body`."""
        seen = self._store.get(kind, key_of(body))
        same = seen is not None and seen["metadata"]["uid"] == body["metadata"]["uid"]
        return seen if seen is not None and same and seen.get("status") == body.get("status") else body

    def _due(self, address: tuple[str, Key], weight: Weight, now: float, *, settling: bool) -> float:
        """The time at which a change of this weight may be written. An object that must wait reserves one slot."""
        slots = self._slots.setdefault(address, _Slots(TokenBucket(OBJECT_URGENT_RATE, OBJECT_URGENT_BURST)))
        if weight is Weight.URGENT:
            if slots.urgent is None:
                slots.urgent = now + max(self._urgent.reserve(now), slots.own.reserve(now))
            if not settling:
                return slots.urgent
            slots.settled = now + SETTLING_SECONDS if slots.settled is None else slots.settled
            return max(slots.urgent, slots.settled)
        if slots.routine is None:
            slots.routine = now + self._bucket.reserve(now)
        written = self._written.get(address)
        pause = WORDING_SECONDS if weight is Weight.WORDING else ROUTINE_SECONDS
        return max(slots.routine, written.at + pause if written else now)

    def _settle(self, address: tuple[str, Key], now: float) -> None:
        """Clear the slots after a write. If the object had no routine slot, the write takes a routine token now. So
        urgent writes also use up routine tokens, and routine writes of other objects wait longer."""
        slots = self._slots.get(address)
        if slots is None or slots.routine is None:
            self._bucket.take_now(now)
        if slots is not None:
            slots.routine = slots.urgent = slots.settled = None

    def awaits_slot(self, kind: str, key: Key) -> bool:
        """True while a deferred routine change of an object waits for its slot."""
        slots = self._slots.get((kind, key))
        return slots is not None and slots.routine is not None and slots.routine > self._clock.monotonic()

    def drop_object(self, kind: str, key: Key) -> None:
        self._written.pop((kind, key), None)
        self._slots.pop((kind, key), None)


def _digest(status: JsonObject) -> str:
    return digest({key: value for key, value in status.items() if key not in _IGNORED})
