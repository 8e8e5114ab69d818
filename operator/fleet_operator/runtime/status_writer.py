"""Writer of all statuses: only changes are written, each as often as its weight allows.

Changes are graded. A condition that flipped and a changed urgent field (a generation, a state, a count of replicas) are
urgent: somebody waits for them, or a machine acts on them. All others are routine: they wait for the token bucket, and
for some seconds since the object's last write. Where nothing but the wording of messages or a time of observation
changed, a minute must have passed: an error whose text differs with each attempt must not become a write each time.

Urgent changes pass routine ones, but have bounds of their own: for each object, so that one that flaps does not write
without end, and for all of them together, so that a cluster that flaps under five thousand groups does not become as
many writes at once. An object that has to wait keeps its turn: it comes back once, and then it may write.

A fleet that is being made changes several times in a few seconds. While the caller says that an object is settling, an
urgent change waits a moment, and what follows goes along with it.
"""

from __future__ import annotations

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
"""The rate of urgent writes as a multiple of that of routine ones."""
URGENT_BURST: Final = 500.0
OBJECT_URGENT_RATE: Final = 0.5
"""Urgent writes of one object in a second, in the long run."""
OBJECT_URGENT_BURST: Final = 10.0
SETTLING_SECONDS: Final = 3.0
"""The longest wait of a change that others follow at once."""
_IGNORED: Final = frozenset({"observedAt"})
"""Fields that alone are no reason to write; they go along with the next write."""


@dataclass(slots=True)
class TokenBucket:
    """A budget of writes: `rate` tokens a second up to `burst`. `take_now` overdraws it by at most `debt_max` tokens.

    A caller that finds no token reserves the next one and learns when it will be there. So those who wait come one
    after the other; if all came for the same token, all but one would come in vain. Pure: `now` is an argument.
    """

    rate: float
    burst: float
    debt_max: float = 0.0
    _level: float = 0.0
    _at: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token; the seconds until it is there, 0.0 when it is there already."""
        self._refill(now)
        self._level -= 1.0
        return max(-self._level / self.rate, 0.0)

    def take_now(self, now: float) -> None:
        """Take a token without waiting for it; later reservations wait longer."""
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
    """Weight of a difference between two statuses."""

    WORDING = 1
    ROUTINE = 2
    URGENT = 3


def weigh(before: JsonObject, after: JsonObject, urgent_fields: Collection[str]) -> Weight:
    """The weight of what changed from one status to another; a change of one of `urgent_fields` is urgent."""
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
    """The last write of an object's status: what was meant, what the API server made of it, when."""

    meant: str
    stored: str
    at: float


@dataclass(slots=True)
class _Turns:
    """One object's place in the queues: when it may write routine and urgent changes, and urgent ones while it is
    settling; None for no place yet."""

    own: TokenBucket
    routine: float | None = None
    urgent: float | None = None
    settled: float | None = None


class StatusWriter:
    """Writes the status of all objects of one operator, out of one budget. Used on the event loop only."""

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
        self._turns: dict[tuple[str, Key], _Turns] = {}
        # Counted by whoever scrapes.
        metrics.status_waiting.set_function(lambda: sum(self.awaits_turn(*address) for address in list(self._turns)))

    async def write(self, body: JsonObject, status: JsonObject, *, settling: bool = False) -> float | None:
        """Make an object's status be `status`, which was made from the one in `body`. Raises KubeError.

        `settling`: other changes are about to follow.
        KubeConflictError: the object has another status by now, or has changed since it was last seen.
        Returns None when it is so, or the seconds after which to come back because the write was put off.
        """
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
        stored = await self._store.kube.apply_status(_intent(self._basis(kind, body), status))
        self._metrics.status_writes.labels(kind.kind).inc()
        self._written[kind.kind, key] = _Written(meant, _digest(stored.get("status") or {}), now)
        self._settle((kind.kind, key), now)
        self._store.saw_living(stored)
        self._store.learn(kind, stored)
        return None

    def _basis(self, kind: Kind, body: JsonObject) -> JsonObject:
        """The version of the object that a status is written to: the newest known, as long as it has the status that
        this one was made from."""
        seen = self._store.get(kind, key_of(body))
        same = seen is not None and seen["metadata"]["uid"] == body["metadata"]["uid"]
        return seen if seen is not None and same and seen.get("status") == body.get("status") else body

    def _due(self, address: tuple[str, Key], weight: Weight, now: float, *, settling: bool) -> float:
        """The time at which a change of this weight may be written; an object that must wait gets a place in the queue,
        once."""
        turns = self._turns.setdefault(address, _Turns(TokenBucket(OBJECT_URGENT_RATE, OBJECT_URGENT_BURST)))
        if weight is Weight.URGENT:
            if turns.urgent is None:
                turns.urgent = now + max(self._urgent.reserve(now), turns.own.reserve(now))
            if not settling:
                return turns.urgent
            turns.settled = now + SETTLING_SECONDS if turns.settled is None else turns.settled
            return max(turns.urgent, turns.settled)
        if turns.routine is None:
            turns.routine = now + self._bucket.reserve(now)
        written = self._written.get(address)
        pause = WORDING_SECONDS if weight is Weight.WORDING else ROUTINE_SECONDS
        return max(turns.routine, written.at + pause if written else now)

    def _settle(self, address: tuple[str, Key], now: float) -> None:
        """After a write: its place in the queue is used up, or it passed those who wait there."""
        turns = self._turns.get(address)
        if turns is None or turns.routine is None:
            self._bucket.take_now(now)
        if turns is not None:
            turns.routine = turns.urgent = turns.settled = None

    def awaits_turn(self, kind: str, key: Key) -> bool:
        """True if a routine change of an object has been put off, and its turn has not come yet."""
        turns = self._turns.get((kind, key))
        return turns is not None and turns.routine is not None and turns.routine > self._clock.monotonic()

    def forget(self, kind: str, key: Key) -> None:
        """Drop what is remembered of an object that is gone."""
        self._written.pop((kind, key), None)
        self._turns.pop((kind, key), None)


def _digest(status: JsonObject) -> str:
    return digest({key: value for key, value in status.items() if key not in _IGNORED})


def _intent(body: JsonObject, status: JsonObject) -> JsonObject:
    """The apply of a status: to this very version of the object.

    A process that was suspended, and has lost the Lease meanwhile, must not put its old one over that of the next.
    """
    return {**identity(body), "status": status}
