"""Caches of Kubernetes objects, one for each watched kind. Used on the event loop only.

Three writers feed a cache: the watch, the operator's own writes, and the periodic sweep. Because of the operator's own
writes, a reconcile sees the writes of the previous reconcile even if the watch is late. The writers race, so the newer
resourceVersion wins; Kubernetes 1.35 guarantees that resourceVersions compare as integers within a kind (KEP-5504).

A watch also reports DELETED for an object that lost the label by which the watch selects, and the same object may get
the label again. Therefore a deletion is remembered with its resourceVersion. An event that is older than the deletion
is late, and is ignored. An event with the same or a later version shows that the object exists, because a deleted
object is never reported with such a version.

A watch can miss a deletion for good: after a 410, it lists again and reports only the objects that exist. Therefore a
sweep compares the cache with a list. It drops the objects that are missing from the list, except those with a newer
version than the list.

Decision: docs/decisions/0026-untrusted-inputs.md.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import WHOLE, JsonObject, Kind, View

Key = tuple[str, str]
"""Namespace and name."""

TOMBSTONES_MAX: Final = 4096
"""Maximum number of remembered deletions. A deletion must be remembered only for seconds, until late watch events have
arrived."""
ABSENT_MAX: Final = 100_000
"""Maximum number of keys that are remembered as absent: enough for several keys of each of many thousands of owners."""


class Change(Enum):
    """Effect of an event on the cached object."""

    NEW = "new"
    SPEC = "spec"
    STATUS = "status"
    GONE = "gone"
    NOTHING = "nothing"


def key_of(body: JsonObject) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def version_of(body: JsonObject) -> int:
    return int(body["metadata"]["resourceVersion"])


def _essence(body: JsonObject) -> bytes:
    """Digest of the fields that reconciles act on, without the status. A change of this digest counts as
    `Change.SPEC`."""
    metadata = body["metadata"]
    parts = [metadata.get(name) for name in ("uid", "generation", "labels", "annotations", "deletionTimestamp")]
    return hashlib.blake2b(json_text.canonical([*parts, body.get("data")]), digest_size=16).digest()


Dependents = Callable[[JsonObject, Callable[[Kind], "ObjectCache"]], Iterable[tuple[Kind, Key]]]
"""A function that returns the keys to reconcile, with their kinds, for a changed object. Its second argument is a
function that returns the cache of a kind."""


class _Entry(NamedTuple):
    """A cached object: uid and version, digest (`_essence`), index values, summary, and JSON."""

    uid: str
    version: int
    essence: bytes
    found_by: tuple[Hashable, ...]
    summary: Any
    packed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind:
    """Registration of a kind that is watched and cached.

    - `selector`: the label selector of the watch; `view`: the fields that are kept of each object.
    - `index` returns a value by which the object can be found, or None; it must never change. `references` returns
      further such values, which may change.
    - `summary` returns facts that are read so often that parsing the object each time would be too slow.
    - `on_status`: a change of the status alone also causes reconciles.
    - `apart`: reconciles of other kinds do not need objects of this kind, so they run even if this kind cannot be
      listed.
    """

    kind: Kind
    selector: str = ""
    view: View = WHOLE
    index: Callable[[JsonObject], Hashable] = lambda body: None
    references: Callable[[JsonObject], Iterable[Hashable]] = lambda body: ()
    summary: Callable[[JsonObject], Any] = lambda body: None
    dependents: Dependents = lambda body, cache: ()
    on_status: bool = False
    apart: bool = False


@dataclass(slots=True)
class ObjectCache:
    """The objects of one kind that the watch selects, trimmed to the view, and indexed by key, index value and
    reference.

    Each object is kept as one JSON text, which takes a third of the memory of dicts. Parsing takes only a hundredth of
    a reconcile's time, so each reader gets its own copy.
    """

    watched: WatchedKind
    followers: list[Callable[[Key, JsonObject | None], None]] = field(default_factory=list)
    """Functions that are called with the key and the body of each changed object; the body is None after a deletion."""
    _objects: dict[Key, _Entry] = field(default_factory=dict)
    _indexed: dict[Hashable, set[Key]] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)  # version of the deletion, keyed by uid
    _absent: set[Key] = field(default_factory=set)

    def get(self, namespace: str, name: str) -> JsonObject | None:
        entry = self._objects.get((namespace, name))
        return None if entry is None else _unpacked(entry)

    def keys_having(self, value: Hashable) -> list[Key]:
        return sorted(self._indexed.get(value, ()))

    def summaries_having(self, value: Hashable) -> list[tuple[Key, Any]]:
        return [(key, self._objects[key].summary) for key in self._indexed.get(value, ())]

    def summary_of(self, key: Key) -> Any:
        entry = self._objects.get(key)
        return entry.summary if entry is not None else None

    def has_any(self, value: Hashable) -> bool:
        return value in self._indexed

    def has(self, key: Key, value: Hashable) -> bool:
        return key in self._indexed.get(value, ())

    def keys(self) -> Collection[Key]:
        return self._objects.keys()

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def having(self, value: Hashable) -> list[JsonObject]:
        return [_unpacked(self._objects[key]) for key in self.keys_having(value)]

    def record_absent(self, key: Key) -> None:
        """Remember that a live read found no object with this key, until an event for the key arrives. A DELETED event
        also ends this, because the object may still exist and only have lost its label."""
        if len(self._absent) >= ABSENT_MAX:
            self._absent.clear()  # each forgotten key costs one more live read
        self._absent.add(key)

    def is_absent(self, key: Key) -> bool:
        return key in self._absent

    def __len__(self) -> int:
        return len(self._objects)

    def observe(self, body: JsonObject) -> Change:
        """Record an object that exists. A version older than the cached version changes nothing."""
        uid, version = body["metadata"]["uid"], version_of(body)
        if version < self._gone.get(uid, 0):
            return Change.NOTHING
        key = key_of(body)
        self._absent.discard(key)
        known = self._objects.get(key)
        if known is not None and known.uid == uid and known.version >= version:
            return Change.NOTHING
        body = self.watched.view.trim(body)
        self._gone.pop(uid, None)
        self._unlink(key)
        values = (self.watched.index(body), *self.watched.references(body))
        found_by = tuple(value for value in values if value is not None)
        entry = _Entry(uid, version, _essence(body), found_by, self.watched.summary(body), json_text.packed(body))
        self._objects[key] = entry
        for value in found_by:
            self._indexed.setdefault(value, set()).add(key)
        for follower in self.followers:
            follower(key, body)
        if known is None or known.uid != uid:
            return Change.NEW
        return Change.SPEC if known.essence != entry.essence else Change.STATUS

    def remove(self, key: Key, uid: str, version: int) -> Change:
        """Record that the object with this uid no longer existed at the resourceVersion `version`. The cached object
        stays in the cache if it has another uid, or a version newer than `version`."""
        self._absent.discard(key)
        self._gone[uid] = max(version, self._gone.pop(uid, 0))
        while len(self._gone) > TOMBSTONES_MAX:
            del self._gone[next(iter(self._gone))]
        known = self._objects.get(key)
        if known is None or known.uid != uid or known.version > version:
            return Change.NOTHING
        self._unlink(key)
        del self._objects[key]
        for follower in self.followers:
            follower(key, None)
        return Change.GONE

    def drop_missing(
        self, living: Collection[str], listed_version: int, *, namespace: str | None = None
    ) -> dict[Key, JsonObject]:
        """Drop objects that are missing from a complete list made at `listed_version`, and return them. `living` has
        the uids in the list; `namespace` None means all. An object whose cached version is newer than the list stays,
        because it may have been created after the list was made."""
        missing = {
            key: entry
            for key, entry in self._objects.items()
            if namespace in (None, key[0]) and entry.uid not in living and entry.version <= listed_version
        }
        for key, entry in missing.items():
            # The deletion is recorded just after the cached version, not at `listed_version`. The object may have lost
            # only its label, and its present version may be between the two.
            self.remove(key, entry.uid, entry.version + 1)
        return {key: _unpacked(entry) for key, entry in missing.items()}

    def _unlink(self, key: Key) -> None:
        known = self._objects.get(key)
        for value in known.found_by if known is not None else ():
            alike = self._indexed[value]
            alike.discard(key)
            if not alike:
                del self._indexed[value]


def _unpacked(entry: _Entry) -> JsonObject:
    body: JsonObject = json_text.loads(entry.packed)
    return body
