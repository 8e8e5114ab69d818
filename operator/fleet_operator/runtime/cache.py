"""Caches of the cluster's objects between reconciles, one for each watched kind.

Three writers feed a cache: the watch, the operator's own writes (so that a reconcile sees what the one before it
wrote, even when the watch is late), and the periodic sweep. They race, so the newer resourceVersion wins; Kubernetes
1.35 promises that these compare as integers within a kind (KEP-5504).

A watch also reports DELETED for an object that lost the label by which the watch selects, and that object may come
back. So a deletion is remembered with its resourceVersion: an older event is late, and an event that is not older shows
an object that lives. (An object that was truly deleted is never seen at that version or a later one.)

A deletion can be missed permanently: after a 410 the watch lists again and reports only living objects. A sweep
compares the cache with a list and drops what the list lacks although it is no newer than the list.

Touched only on the event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import WHOLE, JsonObject, Kind, View

Key = tuple[str, str]
"""Namespace and name."""

TOMBSTONES_MAX: Final = 4096
"""Bound of remembered deletions. They only matter for the seconds by which a watch event can be late."""


ABSENT_MAX: Final = 100_000
"""Bound of remembered absences: several for each of many thousand owners."""


class Change(Enum):
    """The effect of an observation on the cache."""

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
    """A digest of the parts apart from status that a reader may act on; a change of them is `Change.SPEC`."""
    metadata = body["metadata"]
    parts = [metadata.get(name) for name in ("uid", "generation", "labels", "annotations", "deletionTimestamp")]
    return hashlib.blake2b(json_text.canonical([*parts, body.get("data")]), digest_size=16).digest()


Index = Callable[[JsonObject], Hashable]
"""A property by which objects are found; None for objects without it. Must be the same for the same object."""

Marks = Callable[[JsonObject], Iterable[Hashable]]
"""Further properties by which objects are found, such as what they refer to; any number for one object."""

Summary = Callable[[JsonObject], Any]
"""The few facts of an object that are asked for so often, for so many objects, that each must not be parsed for it."""

Follower = Callable[[Key, JsonObject | None], None]
"""Told of each object as it is from now on, None once it is gone."""

Dependents = Callable[[JsonObject, Callable[[Kind], "ObjectCache"]], Iterable[tuple[Kind, Key]]]
"""The keys to reconcile when an object changes, given the object and the caches by kind; of kinds with a controller."""


class _Entry(NamedTuple):
    """A cached object: its identity, a digest of its essence, the values it is found by, its summary, and itself as
    JSON."""

    uid: str
    version: int
    essence: bytes
    found_by: tuple[Hashable, ...]
    summary: Any
    packed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind:
    """Registration of a kind that is watched and cached.

    `selector` is the label selector by which the API server filters, `view` the part of each object that is kept.
    `on_status`: a change of the status alone is news too. `apart`: the reconciles of other kinds can do without it.
    """

    kind: Kind
    selector: str = ""
    view: View = WHOLE
    index: Index = lambda body: None
    marks: Marks = lambda body: ()
    summary: Summary = lambda body: None
    dependents: Dependents = lambda body, cache: ()
    on_status: bool = False
    apart: bool = False


@dataclass(slots=True)
class ObjectCache:
    """All objects of one kind that the watch selects, cut to a view, by namespace and name and by other properties.

    Objects are kept as JSON: that is a third of the memory of dicts, in pieces that are given back when they are
    replaced, and to read one takes a hundredth of a reconcile. So each reader gets a copy.
    """

    watched: WatchedKind
    followers: list[Follower] = field(default_factory=list)
    _objects: dict[Key, _Entry] = field(default_factory=dict)
    _indexed: dict[Hashable, set[Key]] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)  # uid -> the version as of which it was gone
    _absent: set[Key] = field(default_factory=set)

    def get(self, namespace: str, name: str) -> JsonObject | None:
        entry = self._objects.get((namespace, name))
        return None if entry is None else _unpacked(entry)

    def keys_having(self, value: Hashable) -> list[Key]:
        """The keys of the objects whose index, or one of whose marks, is this value, in order."""
        return sorted(self._indexed.get(value, ()))

    def summaries_having(self, value: Hashable) -> list[tuple[Key, Any]]:
        """The keys and summaries of the objects whose index, or one of whose marks, is this value, in any order."""
        return [(key, self._objects[key].summary) for key in self._indexed.get(value, ())]

    def summary_of(self, key: Key) -> Any:
        entry = self._objects.get(key)
        return entry.summary if entry is not None else None

    def has_any(self, value: Hashable) -> bool:
        """True if there is an object whose index, or one of whose marks, is this value."""
        return value in self._indexed

    def has(self, key: Key, value: Hashable) -> bool:
        """True if there is an object of this key whose index, or one of whose marks, is this value."""
        return key in self._indexed.get(value, ())

    def keys(self) -> Collection[Key]:
        return self._objects.keys()

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def having(self, value: Hashable) -> list[JsonObject]:
        """The objects whose index, or one of whose marks, is this value, by name."""
        return [_unpacked(self._objects[key]) for key in self.keys_having(value)]

    def note_absent(self, key: Key) -> None:
        """Remember that a live read found nothing under this name, until something is seen of it.

        An object that loses its label is reported as deleted, which counts: it may live on, unseen.
        """
        if len(self._absent) >= ABSENT_MAX:
            self._absent.clear()  # each is read once more
        self._absent.add(key)

    def is_absent(self, key: Key) -> bool:
        """True if a live read found nothing here, and nothing has been seen here since."""
        return key in self._absent

    def __iter__(self) -> Iterator[JsonObject]:
        return map(_unpacked, list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def observe(self, body: JsonObject) -> Change:
        """Record an object seen living; a version older than the cached one changes nothing."""
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
        values = (self.watched.index(body), *self.watched.marks(body))
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
        """Record that the object with this uid was gone as of `version`.

        Its namesake with another uid stays, and so does the object itself if it was seen at a newer version.
        """
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

    def take(self, listed: Iterable[JsonObject]) -> list[Key]:
        """Record objects of a list; returns the keys that were wrong."""
        return [key_of(body) for body in listed if self.observe(body) is not Change.NOTHING]

    def drop_missing(
        self, living: Collection[str], listed_version: int, *, namespace: str | None = None
    ) -> dict[Key, JsonObject]:
        """Drop what a whole list lacks that was true at `listed_version`; returns what was dropped.

        `living` are the uids in the list, `namespace` is the one that was listed, None all of them. An object is
        dropped only if the cached copy is no newer than the list: one that was made after the list was taken is not
        missing from it.
        """
        missing = {
            key: entry
            for key, entry in self._objects.items()
            if namespace in (None, key[0]) and entry.uid not in living and entry.version <= listed_version
        }
        for key, entry in missing.items():
            # Not as of the list: without its label the object may live on at a version between the two.
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
