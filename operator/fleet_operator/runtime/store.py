"""Reads and writes of the cluster for reconciles: from caches, which learn of the writes.

An apply whose intent is already in place is not sent again. "In place" is judged by what the API server answered to
the last apply of the same intent: as long as the object still has that generation (or, where a kind has none, that
resourceVersion), nobody has changed what we set. After a restart nothing is remembered; then an object is believed to
be in place that carries the digest of the same intent, and shows nothing to the contrary in what the cache has of it.
Within half an hour it is read whole and compared, for somebody may have edited it while no operator ran.

Caches can be wrong for a while: a watch misses a deletion, or loses sight of an object whose label somebody took away.
Whoever meets a contradiction has the object read again (`refresh`), and its dependents are queued as if the watch had
delivered it.

Of some kinds a cache keeps less than the whole (`View`), for what their objects hold is anybody's and may be large.
Such an object is read live when a reconcile needs its content, and again when its version is another one.
"""

from __future__ import annotations

import hashlib
import logging
import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import WHOLE, JsonObject, Kind, annotated, identity, kind_of
from fleet_operator.clients.kube import KubeClient, KubeConflictError, KubeNotFoundError, Listing
from fleet_operator.planning.drift import EDITED, as_applied, has_written, others_fields, undoing
from fleet_operator.runtime.cache import Change, Key, ObjectCache, WatchedKind, key_of, version_of

BYTES_MAX: Final = 16 * 1024 * 1024
OBJECT_BYTES_MAX: Final = 256 * 1024
"""Of larger objects nothing is kept: to pack one takes longer than to read it."""
FAST: Final = 1

Address = tuple[Kind, Key]


class _Packed(NamedTuple):
    uid: str
    version: int
    packed: bytes


@dataclass(slots=True)
class Contents:
    """Objects whose cached copies lack their content, as last read, up to a number of bytes.

    A content holds for the very version of the object that it was read at. It is kept compressed: JSON and source text
    shrink to a fifth and less. What does not fit is read again when it is needed. Used on the event loop only.
    """

    bytes_max: int = BYTES_MAX
    size: int = 0
    _packed: dict[Address, _Packed] = field(default_factory=dict)  # the one used last is last

    def get(self, seen: JsonObject) -> JsonObject | None:
        """The object whole, if it was kept at this version or a newer one."""
        address = (kind_of(seen), key_of(seen))
        kept = self._packed.get(address)
        if kept is None or kept.uid != seen["metadata"]["uid"] or kept.version < version_of(seen):
            return None
        self._packed[address] = self._packed.pop(address)
        body: JsonObject = json_text.loads(zlib.decompress(kept.packed))
        return body

    def put(self, body: JsonObject) -> None:
        address = (kind_of(body), key_of(body))
        self._drop(address)
        metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
        text = json_text.dumps({**body, "metadata": metadata})
        if len(text) > OBJECT_BYTES_MAX:
            return
        packed = zlib.compress(text, FAST)
        self._packed[address] = _Packed(metadata["uid"], version_of(body), packed)
        self.size += len(packed)
        while self.size > self.bytes_max:
            self._drop(next(iter(self._packed)))

    def drop(self, body: JsonObject) -> None:
        self._drop((kind_of(body), key_of(body)))

    def _drop(self, address: Address) -> None:
        kept = self._packed.pop(address, None)
        if kept is not None:
            self.size -= len(kept.packed)


log = logging.getLogger(__name__)

UNWATCHED_SECONDS: Final = 1800.0
"""Interval at which objects of kinds that are not watched are read again, in case somebody changed them; and the time
within which an object that was believed to be in place is read."""
LIVING_SECONDS: Final = 300.0
"""Time for which an object counts as living that an answer has shown. The children of a fleet are made within it, also
where thousands are created at once. What is made for an object that has gone meanwhile, unseen by its watch, has an
owner reference to it, by which Kubernetes collects it."""


def digest(value: object) -> str:
    """Equal for equal JSON."""
    return hashlib.sha256(json_text.canonical(value)).hexdigest()


def marker(body: JsonObject) -> str:
    """A text that changes with an object's intent."""
    metadata = body["metadata"]
    generation = metadata.get("generation")
    return f"generation {generation}" if generation is not None else f"version {metadata['resourceVersion']}"


def owner_of(body: JsonObject) -> str:
    """The uid of an object's owner; empty when it has none."""
    return next((str(owner["uid"]) for owner in body["metadata"].get("ownerReferences") or ()), "")


@dataclass(frozen=True, slots=True)
class _Applied:
    """The last apply of an object: what was meant, who answered, when (monotonic seconds), and whose child it is.

    `read` is False for an object that is only believed to be as meant.
    """

    digest: str
    uid: str
    marker: str
    at: float
    owner: str
    read: bool = True


class Store:
    """Caches and writes of one operator. Used on the event loop only."""

    def __init__(
        self, kube: KubeClient, clock: Clock, watched: Iterable[WatchedKind], *, applied_annotation: str = ""
    ) -> None:
        """`applied_annotation` is the name of the annotation for the digest of an intent; none is set without it."""
        self._annotation = applied_annotation
        self._chance = random.Random()
        self.kube = kube
        self._clock = clock
        self._caches = {each.kind: ObjectCache(each) for each in watched}
        self._contents = Contents()
        self._applied: dict[tuple[Kind, Key], _Applied] = {}
        self._children: dict[str, set[Address]] = {}  # what was applied, by the uid of its owner
        self._living: dict[str, float] = {}  # when owners were last seen living, by uid; the latest last
        self.corrected: Callable[[Kind, JsonObject, Change], None] = lambda kind, body, change: None
        """Called with an object that `refresh` found changed or gone; set once, by the router."""

    def cache(self, kind: Kind) -> ObjectCache:
        return self._caches[kind]

    def get(self, kind: Kind, key: Key) -> JsonObject | None:
        """An object of a watched kind as last seen; not to be changed."""
        return self._caches[kind].get(*key)

    def watches(self, kind: Kind) -> bool:
        return kind in self._caches

    def in_place(self, body: JsonObject) -> bool:
        """True if the object is known to be as `body` says."""
        return self._in_place(body, digest(body))

    def trust(self, body: JsonObject) -> None:
        """Believe that an object of a kind that is not watched is as `body` says, as another object proves."""
        address = (kind_of(body), key_of(body))
        if address not in self._applied:
            self._remember(address, _Applied(digest(body), "", "", self._some_time_ago(), owner_of(body), read=False))

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Objects read live, each cut to the view of its kind. Raises KubeError."""
        view = self._caches[kind].watched.view if kind in self._caches else WHOLE
        return await self.kube.list(kind, namespace, label_selector=selector, view=view)

    def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        """As `list`, page by page; of a watched kind. Raises KubeError."""
        return self.kube.pages(kind, namespace, label_selector=selector, view=self._caches[kind].watched.view)

    async def apply(self, body: JsonObject, *, over: JsonObject | None = None) -> str:
        """Make an object of ours be as `body` says, unless it is known to be. Raises KubeError.

        What others have changed is put back, and what they have added is taken out; returns their names.

        `over` is the object as last seen: only that very object is changed then, with KubeConflictError when it is gone
        or a namesake has taken its place. Without it the object is made, if it is not there.
        """
        kind, key, meant = kind_of(body), key_of(body), digest(body)
        if self._in_place(body, meant):
            return ""
        known, changed = self._applied.get((kind, key)), dict[str, Any]()
        if known is not None and known.digest == meant and over is not None:
            live = over if kind not in self._caches else await self.kube.get(kind, *key)
            if live is not None and live["metadata"]["uid"] == over["metadata"]["uid"]:
                if holds(live, body) and not undoing(live, body)[0]:
                    self._remember((kind, key), _applied_as(live, body, meant, self._clock.monotonic()))
                    return ""
                changed = {} if holds(live, body) else others_fields(live["metadata"])
        try:
            if over is not None and has_written(over["metadata"]):
                await self._note_as_applied(over)
            stored = await self.kube.apply(_exactly(self._annotated(body, meant), over))
        except (KubeConflictError, KubeNotFoundError):
            await self.refresh(kind, key)
            raise
        patch, others = undoing(stored, body)
        if patch:
            before, stored = stored, await self.kube.merge({**identity(stored), **patch})
            if marker(stored) == marker(before):
                others = ()  # they had set what the API server fills in as well
        self._note(body, meant, stored)
        return ", ".join(dict.fromkeys((*changed, *others)))

    async def _note_as_applied(self, over: JsonObject) -> None:
        """Have all fields of an object that are ours count as applied, so that an apply without one of them removes it.

        It is a request of its own, and comes first: a process that is killed after it leaves an object that the next
        one applies over as if it had always been applied.
        """
        live = over if "managedFields" in over["metadata"] else await self.kube.get(kind_of(over), *key_of(over))
        if live is not None and live["metadata"]["uid"] == over["metadata"]["uid"] and has_written(live["metadata"]):
            patch = identity(live)
            patch["metadata"]["managedFields"] = as_applied(live["metadata"])
            await self.kube.merge(patch)

    def _note(self, body: JsonObject, meant: str, stored: JsonObject) -> None:
        """Remember a write and what it made."""
        kind = kind_of(body)
        self._remember((kind, key_of(body)), _applied_as(stored, body, meant, self._clock.monotonic()))
        if kind in self._caches and self._caches[kind].watched.view.metadata_only:
            self._contents.put(stored)
        self.learn(kind, stored)

    async def create(self, body: JsonObject) -> None:
        """Create an object.

        Raises KubeError: KubeConflictError when the name is taken, and KubeInvalidError for a field that is misspelt.
        """
        meant = digest(body)
        stored = await self.kube.create(self._annotated(body, meant), strict=True)
        self._note(body, meant, stored)

    async def delete(self, kind: Kind, body: JsonObject) -> None:
        """Delete exactly this object, not a namesake; already gone is as good. Raises KubeError."""
        namespace, name = key_of(body)
        self._drop((kind, (namespace, name)))
        self._contents.drop(body)
        await self.kube.delete(kind, namespace, name, uid=body["metadata"]["uid"])

    async def delete_unchanged(self, kind: Kind, body: JsonObject) -> bool:
        """Delete exactly this version of an object; the cache is corrected if it has moved on. Raises KubeError."""
        metadata = body["metadata"]
        namespace, name = key_of(body)
        if await self.kube.delete(kind, namespace, name, uid=metadata["uid"], version=metadata["resourceVersion"]):
            return True
        await self.refresh(kind, (namespace, name))
        return False

    def learn(self, kind: Kind, body: JsonObject) -> Change:
        cache = self._caches.get(kind)
        return cache.observe(body) if cache is not None else Change.NOTHING

    async def is_living(self, body: JsonObject) -> bool:
        """True if an object of a watched kind lives and is not being deleted; read live, but not every few seconds.

        What the cache says to the contrary is corrected. Raises KubeError.
        """
        uid, now = body["metadata"]["uid"], self._clock.monotonic()
        if now - self._living.get(uid, -LIVING_SECONDS) < LIVING_SECONDS:
            return True
        found = await self.refresh(kind_of(body), key_of(body))
        if found is None or found["metadata"]["uid"] != uid or found["metadata"].get("deletionTimestamp"):
            return False
        self.saw_living(found)
        return True

    def saw_living(self, body: JsonObject) -> None:
        """Note that an owner lives, as an answer of the API server has just shown."""
        uid, now = body["metadata"]["uid"], self._clock.monotonic()
        self._living.pop(uid, None)
        if body["metadata"].get("deletionTimestamp"):
            return
        self._living[uid] = now
        while now - self._living[oldest := next(iter(self._living))] >= LIVING_SECONDS:
            del self._living[oldest]

    async def content(self, kind: Kind, key: Key) -> JsonObject | None:
        """An object whole: as cached where the cache has all of it, else as read at the cached version or a newer one.

        What no watch covers is read live. Raises KubeError.
        """
        cache = self._caches[kind]
        seen = cache.get(*key)
        if not cache.watched.view.metadata_only:
            return seen if seen is not None else await self.refresh(kind, key)
        kept = self._contents.get(seen) if seen is not None else None
        if kept is not None:
            return kept
        found = await self.refresh(kind, key)
        if found is not None and seen is not None:
            self._contents.put(found)
        return found

    async def refresh(self, kind: Kind, key: Key) -> JsonObject | None:
        """An object read live, and what the cache has of it corrected. Raises KubeError.

        An object that the cache does not have is not taken in: it may be one that the watch does not select.
        """
        cache, found = self._caches.get(kind), await self.kube.get(kind, *key)
        if found is not None and cache is not None and not cache.watched.view.metadata_only:
            found = cache.watched.view.trim(found)
        seen = cache.get(*key) if cache is not None else None
        if seen is None:
            return found
        uid = seen["metadata"]["uid"]
        if found is not None and found["metadata"]["uid"] == uid:
            self.corrected(kind, found, self.learn(kind, found))
            return found
        log.warning("a deletion was missed by the watch", extra={"kind": kind.kind, "key": "/".join(key)})
        self.corrected(kind, seen, self._caches[kind].remove(key, uid, version_of(seen) + 1))
        return found

    def forget(self, owner_uid: str) -> None:
        """Drop what is remembered of applies for an owner that is gone."""
        self._living.pop(owner_uid, None)
        for address in self._children.pop(owner_uid, ()):
            self._applied.pop(address, None)

    def _in_place(self, body: JsonObject, meant: str) -> bool:
        kind, key = kind_of(body), key_of(body)
        cache, now = self._caches.get(kind), self._clock.monotonic()
        applied = self._applied.get((kind, key))
        if applied is None and cache is not None:
            applied = self._believe(cache, body, meant)
        if applied is None or applied.digest != meant:
            return False
        if (cache is None or not applied.read) and now - applied.at >= UNWATCHED_SECONDS:
            return False
        if cache is None:
            return True
        seen = cache.get(*key)
        return seen is not None and (seen["metadata"]["uid"], marker(seen)) == (applied.uid, applied.marker)

    def _believe(self, cache: ObjectCache, body: JsonObject, meant: str) -> _Applied | None:
        """Take an object for what was applied if it carries the digest, and its cached part is as meant."""
        seen = cache.get(*key_of(body))
        if seen is None or (seen["metadata"].get("annotations") or {}).get(self._annotation) != meant:
            return None
        visible = cache.watched.view.trim(json_text.loads(json_text.dumps(body)))
        if seen["metadata"].get(EDITED) or not holds(seen, visible):
            return None
        believed = _Applied(
            meant, seen["metadata"]["uid"], marker(seen), self._some_time_ago(), owner_of(body), read=False
        )
        self._remember((kind_of(body), key_of(body)), believed)
        return believed

    def _remember(self, address: Address, applied: _Applied) -> None:
        self._drop(address)  # its last owner may be a deleted namesake of this one
        self._applied[address] = applied
        self._children.setdefault(applied.owner, set()).add(address)

    def _drop(self, address: Address) -> None:
        applied = self._applied.pop(address, None)
        if applied is None:
            return
        siblings = self._children[applied.owner]
        siblings.discard(address)
        if not siblings:
            del self._children[applied.owner]

    def _some_time_ago(self) -> float:
        """A time that lets what is believed be read again one after the other, and not all at once."""
        return self._clock.monotonic() - UNWATCHED_SECONDS * 0.9 * self._chance.random()

    def _annotated(self, body: JsonObject, meant: str) -> JsonObject:
        return annotated(body, self._annotation, meant) if self._annotation else body


def holds(live: Any, meant: Any) -> bool:
    """True if all that is meant is there, whatever else is; lists must be as long and in the same order."""
    if isinstance(meant, dict):
        return isinstance(live, dict) and all(
            key in live and holds(live[key], value) for key, value in meant.items() if value not in (None, {}, [])
        )
    if isinstance(meant, list):
        return isinstance(live, list) and len(live) == len(meant) and all(map(holds, live, meant))
    return bool(live == meant)


def _applied_as(stored: JsonObject, body: JsonObject, meant: str, now: float) -> _Applied:
    return _Applied(meant, stored["metadata"]["uid"], marker(stored), now, owner_of(body))


def _exactly(body: JsonObject, over: JsonObject | None) -> JsonObject:
    """An apply that changes this very object, or with None whatever has its name."""
    if over is None:
        return body
    return {**body, "metadata": {**body["metadata"], "uid": over["metadata"]["uid"]}}
