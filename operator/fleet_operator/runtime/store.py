"""The cluster as one reconcile after the other sees it: caches to read from, and writes that the caches learn of.

An apply whose intent is already in place is not sent again. "In place" is judged by what the API server answered to
the last apply of the same intent: as long as the object still has that generation (or, where a kind has none, that
resourceVersion), nobody has changed what we set. After a restart nothing is remembered, so everything is applied once
more; a server-side apply that changes nothing costs a request, but writes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import JsonObject, Kind, kind_of
from fleet_operator.clients.kube import KubeClient
from fleet_operator.runtime.cache import Change, Index, Key, ObjectCache, key_of

UNWATCHED_APPLY_SECONDS: Final = 600.0
"""Kinds that are not watched are applied again this often, in case somebody changed them."""


def digest(value: object) -> str:
    """Equal for equal JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def marker(body: JsonObject) -> str:
    """What changes when somebody changes an object's intent."""
    metadata = body["metadata"]
    generation = metadata.get("generation")
    return f"generation {generation}" if generation is not None else f"version {metadata['resourceVersion']}"


def owner_of(body: JsonObject) -> str:
    """The uid of an object's owner; empty when it has none."""
    return next((str(owner["uid"]) for owner in body["metadata"].get("ownerReferences") or ()), "")


@dataclass(frozen=True, slots=True)
class _Applied:
    """The last apply of an object: what was meant, who answered, when (monotonic seconds), and whose child it is."""

    digest: str
    uid: str
    marker: str
    at: float
    owner: str


class Store:
    """Caches and writes of one operator. Used on the event loop only."""

    def __init__(self, kube: KubeClient, clock: Clock, watched: Mapping[Kind, Index]) -> None:
        self.kube = kube
        self._clock = clock
        self._caches = {kind: ObjectCache(kind, index) for kind, index in watched.items()}
        self._applied: dict[tuple[Kind, Key], _Applied] = {}

    def cache(self, kind: Kind) -> ObjectCache:
        """The cache of a watched kind."""
        return self._caches[kind]

    def get(self, kind: Kind, key: Key) -> JsonObject | None:
        """An object of a watched kind as last seen; not to be changed."""
        return self._caches[kind].get(*key)

    def has_applied(self, body: JsonObject) -> bool:
        """Whether this process has applied the object before for the same owner, so that it is known to be ours."""
        applied = self._applied.get((kind_of(body), key_of(body)))
        return applied is not None and applied.owner == owner_of(body)

    async def apply(self, body: JsonObject) -> None:
        """Make an object of ours be as `body` says, unless it is known to be. Raises KubeError."""
        kind, key = kind_of(body), key_of(body)
        meant = digest(body)
        if self._in_place(kind, key, meant):
            return
        stored = await self.kube.apply(body)
        uid, now = stored["metadata"]["uid"], self._clock.monotonic()
        self._applied[kind, key] = _Applied(meant, uid, marker(stored), now, owner_of(body))
        self.learn(kind, stored)

    async def delete(self, kind: Kind, body: JsonObject) -> None:
        """Delete exactly this object, not a namesake; already gone is as good. Raises KubeError."""
        namespace, name = key_of(body)
        self._applied.pop((kind, (namespace, name)), None)
        await self.kube.delete(kind, namespace, name, uid=body["metadata"]["uid"])

    def learn(self, kind: Kind, body: JsonObject) -> Change:
        """Take in an object that was seen living."""
        cache = self._caches.get(kind)
        return cache.observe(body) if cache is not None else Change.NOTHING

    def forget(self, owner_uid: str) -> None:
        """Drop what is remembered of applies for an owner that is gone."""
        self._applied = {address: applied for address, applied in self._applied.items() if applied.owner != owner_uid}

    def _in_place(self, kind: Kind, key: Key, meant: str) -> bool:
        applied = self._applied.get((kind, key))
        if applied is None or applied.digest != meant:
            return False
        cache = self._caches.get(kind)
        if cache is None:
            return self._clock.monotonic() - applied.at < UNWATCHED_APPLY_SECONDS
        seen = cache.get(*key)
        return seen is not None and (seen["metadata"]["uid"], marker(seen)) == (applied.uid, applied.marker)
