"""Reads and writes Kubernetes objects for reconciles, through caches that each write updates.

An apply is not sent if the wanted object is already in place. This is so if the last apply had the same body, and the
object still has the generation that this apply returned. For a kind without generations, the resourceVersion is
compared. After a restart of the operator, an object is assumed to be in place if its annotation has the digest of the
wanted object, and its cached fields equal the wanted fields. Within half an hour, such an object is read and compared
completely, because somebody may have edited the object while no operator ran. A forged digest gains nothing, because
whoever can forge it can also edit the object. Services and PodDisruptionBudgets are not watched. They are applied
before their StatefulSet, so a digest of them in the StatefulSet's annotation proves that they were applied.

A cache can be wrong for minutes, because a watch may miss a deletion, and drops an object that loses its label. A
caller that finds a contradiction reads the object live (`refresh`), and the object's dependents are queued as after a
watch event.

Some kinds are cached only in part (`View`), because anybody may write objects of these kinds, of any size. Their
complete content is read live when a reconcile needs it, and is kept until the version changes.

Decision: docs/decisions/0048-thousands-of-groups.md.
"""

import hashlib
import logging
import random
import zlib
from collections.abc import Callable, Iterable
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
"""Maximum size, in bytes, of an object whose content is kept. Compressing a larger object takes longer than reading it
again."""
FAST: Final = 1

Address = tuple[Kind, Key]


class _Packed(NamedTuple):
    uid: str
    version: int
    packed: bytes


@dataclass(slots=True)
class Contents:
    """Complete objects of kinds that are cached only in part, each valid for the version that was read. They are
    compressed, to a fifth of their size or less. If all together exceed `bytes_max`, the least recently used objects
    are dropped, and read again when needed. Used on the event loop only."""

    bytes_max: int = BYTES_MAX
    size: int = 0
    _packed: dict[Address, _Packed] = field(default_factory=dict)  # least recently used first

    def get(self, seen: JsonObject) -> JsonObject | None:
        """The kept object, if its version is that of `seen` or newer; otherwise None."""
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
"""Interval in seconds after which objects of unwatched kinds are read again, in case somebody has changed them. An
object that is only assumed to be in place is also read within this time."""
LIVING_SECONDS: Final = 300.0
"""Time for which an owner counts as existing after the API server returned it: enough to create a fleet's children,
even among thousands of fleets. If the owner is deleted within this time, Kubernetes also deletes children that are
created later."""


def digest(value: object) -> str:
    return hashlib.sha256(json_text.canonical(value)).hexdigest()


def marker(body: JsonObject) -> str:
    """A string that changes with the spec: the generation or, for a kind without generations, the resourceVersion."""
    metadata = body["metadata"]
    generation = metadata.get("generation")
    return f"generation {generation}" if generation is not None else f"version {metadata['resourceVersion']}"


def owner_of(body: JsonObject) -> str:
    """The uid in the object's first owner reference; empty without an owner."""
    return next((str(owner["uid"]) for owner in body["metadata"].get("ownerReferences") or ()), "")


@dataclass(frozen=True, slots=True)
class _Applied:
    """The last apply of an object: digest of the wanted object, uid and `marker` of the returned object, monotonic
    time, and the owner's uid. `read` is False for an object that is only assumed to be in place."""

    digest: str
    uid: str
    marker: str
    at: float
    owner: str
    read: bool = True


class Store:
    """Reads and writes Kubernetes objects for one operator, through its caches. Used on the event loop only."""

    def __init__(
        self, kube: KubeClient, clock: Clock, watched: Iterable[WatchedKind], *, applied_annotation: str = ""
    ) -> None:
        """`applied_annotation` names the annotation for the digest of the wanted object; if empty, no annotation is
        set."""
        self._annotation = applied_annotation
        self._chance = random.Random()
        self.kube = kube
        self._clock = clock
        self._caches = {each.kind: ObjectCache(each) for each in watched}
        self._contents = Contents()
        self._applied: dict[tuple[Kind, Key], _Applied] = {}
        self._children: dict[str, set[Address]] = {}  # keys of `_applied`, keyed by the owner's uid
        self._living: dict[str, float] = {}  # time when an owner was last known to exist, keyed by uid; oldest first
        self.corrected: Callable[[Kind, JsonObject, Change], None] = lambda kind, body, change: None
        """Called with each object that `refresh` finds changed or deleted; the router sets this to one of its
        methods."""

    def cache(self, kind: Kind) -> ObjectCache:
        return self._caches[kind]

    def get(self, kind: Kind, key: Key) -> JsonObject | None:
        return self._caches[kind].get(*key)

    def watches(self, kind: Kind) -> bool:
        return kind in self._caches

    def in_place(self, body: JsonObject) -> bool:
        """True if the object in the cluster is known to equal `body`."""
        return self._in_place(body, digest(body))

    def trust(self, body: JsonObject) -> None:
        """Assume that `body`, of an unwatched kind, was applied. The caller knows this from an annotation that is
        written only after `body` was applied."""
        address = (kind_of(body), key_of(body))
        if address not in self._applied:
            self._remember(address, _Applied(digest(body), "", "", self._some_time_ago(), owner_of(body), read=False))

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Read objects live, each trimmed to the view of its kind. Raises KubeError."""
        view = self._caches[kind].watched.view if kind in self._caches else WHOLE
        return await self.kube.list(kind, namespace, label_selector=selector, view=view)

    async def apply(self, body: JsonObject, *, over: JsonObject | None = None) -> str:
        """Apply `body` to one of the operator's objects, unless it is known to be in place. Returns the names of other
        field managers, whose changes and additions are reverted. Raises KubeError.

        `over` is the object as it was last read. Only that object is changed; raises KubeConflictError if it was
        deleted, or replaced by an object with another uid. Without `over`, a missing object is created.
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
                await self._record_as_applied(over)
            wanted = self._annotated(body, meant)
            if over is not None:  # with the uid, so that no other object with this name is changed
                wanted = {**wanted, "metadata": {**wanted["metadata"], "uid": over["metadata"]["uid"]}}
            stored = await self.kube.apply(wanted)
        except (KubeConflictError, KubeNotFoundError):
            await self.refresh(kind, key)
            raise
        patch, others = undoing(stored, body)
        if patch:
            before, stored = stored, await self.kube.merge({**identity(stored), **patch})
            if marker(stored) == marker(before):
                others = ()  # the other managers had only set values that the API server sets as defaults
        self._record_write(body, meant, stored)
        return ", ".join(dict.fromkeys((*changed, *others)))

    async def _record_as_applied(self, over: JsonObject) -> None:
        """Change the operator's entries in managedFields from the operation Update to Apply, so that a later apply
        removes the fields that it omits. This is a separate request. If the process is killed after this request, the
        next process can apply the object normally."""
        live = over if "managedFields" in over["metadata"] else await self.kube.get(kind_of(over), *key_of(over))
        if live is not None and live["metadata"]["uid"] == over["metadata"]["uid"] and has_written(live["metadata"]):
            patch = identity(live)
            patch["metadata"]["managedFields"] = as_applied(live["metadata"])
            await self.kube.merge(patch)

    def _record_write(self, body: JsonObject, meant: str, stored: JsonObject) -> None:
        kind = kind_of(body)
        self._remember((kind, key_of(body)), _applied_as(stored, body, meant, self._clock.monotonic()))
        if kind in self._caches and self._caches[kind].watched.view.metadata_only:
            self._contents.put(stored)
        self.learn(kind, stored)

    async def create(self, body: JsonObject) -> None:
        """Create an object. Raises KubeConflictError if the name is taken, KubeInvalidError for a wrong or unknown
        field, and other KubeErrors."""
        meant = digest(body)
        stored = await self.kube.create(self._annotated(body, meant), strict=True)
        self._record_write(body, meant, stored)

    async def delete(self, kind: Kind, body: JsonObject) -> None:
        """Delete the object with this uid. An object that does not exist counts as deleted. Raises KubeError."""
        namespace, name = key_of(body)
        self._drop((kind, (namespace, name)))
        self._contents.drop(body)
        await self.kube.delete(kind, namespace, name, uid=body["metadata"]["uid"])

    async def delete_unchanged(self, kind: Kind, body: JsonObject) -> bool:
        """Delete an object if it still has this resourceVersion. Otherwise, correct the cache and return False. Raises
        KubeError."""
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
        """True if the object exists and is not being deleted, as read at most LIVING_SECONDS ago. Raises KubeError."""
        uid, now = body["metadata"]["uid"], self._clock.monotonic()
        if now - self._living.get(uid, -LIVING_SECONDS) < LIVING_SECONDS:
            return True
        found = await self.read_again(body)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return False
        self.saw_living(found)
        return True

    def saw_living(self, body: JsonObject) -> None:
        """Record that the API server has just returned this owner. An owner that is being deleted does not count as
        existing."""
        uid, now = body["metadata"]["uid"], self._clock.monotonic()
        self._living.pop(uid, None)
        if body["metadata"].get("deletionTimestamp"):
            return
        self._living[uid] = now
        while now - self._living[oldest := next(iter(self._living))] >= LIVING_SECONDS:
            del self._living[oldest]

    async def content(self, kind: Kind, key: Key) -> JsonObject | None:
        """The complete object, at the cached version or a newer one. It is read from the API server if its content was
        not kept. None if it does not exist. Raises KubeError."""
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
        """Read an object live, and correct its cached copy. An object without a cached copy is not added to the cache,
        because the watch may not select the object. Raises KubeError."""
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

    async def read_again(self, body: JsonObject) -> JsonObject | None:
        """Read an object live like `refresh`; None if it was deleted, or replaced by another object of the same
        name."""
        found = await self.refresh(kind_of(body), key_of(body))
        return found if found is not None and found["metadata"]["uid"] == body["metadata"]["uid"] else None

    def drop_owner(self, owner_uid: str) -> None:
        """Drop the records of objects that were applied for a deleted owner."""
        self._living.pop(owner_uid, None)
        for address in self._children.pop(owner_uid, ()):
            self._applied.pop(address, None)

    def _in_place(self, body: JsonObject, meant: str) -> bool:
        kind, key = kind_of(body), key_of(body)
        cache, now = self._caches.get(kind), self._clock.monotonic()
        applied = self._applied.get((kind, key))
        if applied is None and cache is not None:
            applied = self._assume_applied(cache, body, meant)
        if applied is None or applied.digest != meant:
            return False
        if (cache is None or not applied.read) and now - applied.at >= UNWATCHED_SECONDS:
            return False
        if cache is None:
            return True
        seen = cache.get(*key)
        return seen is not None and (seen["metadata"]["uid"], marker(seen)) == (applied.uid, applied.marker)

    def _assume_applied(self, cache: ObjectCache, body: JsonObject, meant: str) -> _Applied | None:
        """Treat `body` as applied if the cached object has its fields, and an annotation with its digest (`meant`)."""
        seen = cache.get(*key_of(body))
        if seen is None or (seen["metadata"].get("annotations") or {}).get(self._annotation) != meant:
            return None
        visible = cache.watched.view.trim(json_text.loads(json_text.dumps(body)))
        if seen["metadata"].get(EDITED) or not holds(seen, visible):
            return None
        assumed = _Applied(
            meant, seen["metadata"]["uid"], marker(seen), self._some_time_ago(), owner_of(body), read=False
        )
        self._remember((kind_of(body), key_of(body)), assumed)
        return assumed

    def _remember(self, address: Address, applied: _Applied) -> None:
        self._drop(address)  # the object may have been applied before for a deleted owner of the same name
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
        """A random time in the last UNWATCHED_SECONDS, so that objects that are assumed to be in place are not all read
        together."""
        return self._clock.monotonic() - UNWATCHED_SECONDS * 0.9 * self._chance.random()

    def _annotated(self, body: JsonObject, meant: str) -> JsonObject:
        return annotated(body, self._annotation, meant) if self._annotation else body


def holds(live: Any, meant: Any) -> bool:
    """True if `live` contains all fields of `meant`, and perhaps others. Lists must have the same length and order."""
    if isinstance(meant, dict):
        return isinstance(live, dict) and all(
            key in live and holds(live[key], value) for key, value in meant.items() if value not in (None, {}, [])
        )
    if isinstance(meant, list):
        return isinstance(live, list) and len(live) == len(meant) and all(map(holds, live, meant))
    return bool(live == meant)


def _applied_as(stored: JsonObject, body: JsonObject, meant: str, now: float) -> _Applied:
    return _Applied(meant, stored["metadata"]["uid"], marker(stored), now, owner_of(body))
