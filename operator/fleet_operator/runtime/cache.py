"""Caches of the cluster's objects between reconciles, one for each watched kind.

Three writers feed a cache: the watch, the operator's own writes (so that a reconcile sees what the one before it
wrote, even when the watch is late), and the periodic sweep. They race, so the newer resourceVersion wins; Kubernetes
1.35 promises that these compare as integers within a kind (KEP-5504).

A watch also reports DELETED for an object that lost the label by which the watch selects, and that object may come
back. So a deletion is remembered with its resourceVersion: an older event is late, and an event that is not older shows
an object that lives. (An object that was truly deleted is never seen at that version or a later one.)

A deletion can be missed for ever: after a 410 the watch lists again and reports only living objects. A sweep compares
the cache with a list and drops what the list lacks although it is no newer than the list.

Touched only on the event loop. Objects handed out must not be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

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
    """The cache key of an object."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def version_of(body: JsonObject) -> int:
    """The resourceVersion as the number it compares as."""
    return int(body["metadata"]["resourceVersion"])


def _essence(body: JsonObject) -> object:
    """The parts apart from status that a reader may act on; a change of them is `Change.SPEC`."""
    metadata = body["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("labels"),
        metadata.get("annotations"),
        metadata.get("deletionTimestamp"),
        body.get("data"),
    )


Index = Callable[[JsonObject], Hashable]
"""A property by which objects are found; None for objects without it. Must be the same for the same object."""

Follower = Callable[[Key, JsonObject | None], None]
"""Told of each object as it is from now on, None once it is gone."""

Dependents = Callable[[JsonObject, Callable[[Kind], "ObjectCache"]], Iterable[tuple[Kind, Key]]]
"""The keys to reconcile when an object changes, given the object and the caches by kind; of kinds with a controller."""


def _no_index(body: JsonObject) -> Hashable:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind:
    """Registration of a kind that is watched and cached.

    `selector` is the label selector by which the API server filters, `view` the part of each object that is kept.
    `on_status`: a change of the status alone is news too.
    """

    kind: Kind
    selector: str = ""
    view: View = WHOLE
    index: Index = _no_index
    dependents: Dependents = lambda body, cache: ()
    on_status: bool = False


@dataclass(slots=True)
class ObjectCache:
    """All objects of one kind that the watch selects, cut to a view, by namespace and name and by one index."""

    kind: Kind
    index: Index = _no_index
    view: View = WHOLE
    followers: list[Follower] = field(default_factory=list)
    _objects: dict[Key, JsonObject] = field(default_factory=dict)
    _indexed: dict[Hashable, set[Key]] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)  # uid -> the version as of which it was gone
    _absent: set[Key] = field(default_factory=set)

    def get(self, namespace: str, name: str) -> JsonObject | None:
        return self._objects.get((namespace, name))

    def having(self, value: Hashable) -> list[JsonObject]:
        """The objects whose index has this value, by name."""
        return [self._objects[key] for key in sorted(self._indexed.get(value, ()))]

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
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def observe(self, body: JsonObject) -> Change:
        """Record an object seen living; a version older than the cached one changes nothing."""
        uid = body["metadata"]["uid"]
        if version_of(body) < self._gone.get(uid, 0):
            return Change.NOTHING
        key = key_of(body)
        self._absent.discard(key)
        known = self._objects.get(key)
        if known is not None and known["metadata"]["uid"] == uid and version_of(known) >= version_of(body):
            return Change.NOTHING
        body = self.view.trim(body)
        self._gone.pop(uid, None)
        self._unlink(key)
        self._objects[key] = body
        value = self.index(body)
        if value is not None:
            self._indexed.setdefault(value, set()).add(key)
        for follower in self.followers:
            follower(key, body)
        if known is None or known["metadata"]["uid"] != uid:
            return Change.NEW
        return Change.SPEC if _essence(known) != _essence(body) else Change.STATUS

    def remove(self, key: Key, uid: str, version: int) -> Change:
        """Record that the object with this uid was gone as of `version`.

        Its namesake with another uid stays, and so does the object itself if it was seen at a newer version.
        """
        self._absent.discard(key)
        self._gone[uid] = max(version, self._gone.pop(uid, 0))
        while len(self._gone) > TOMBSTONES_MAX:
            del self._gone[next(iter(self._gone))]
        known = self._objects.get(key)
        if known is None or known["metadata"]["uid"] != uid or version_of(known) > version:
            return Change.NOTHING
        self._unlink(key)
        del self._objects[key]
        for follower in self.followers:
            follower(key, None)
        return Change.GONE

    def take(self, listed: Iterable[JsonObject]) -> list[Key]:
        """Record objects of a list; returns the keys that were wrong."""
        return [key_of(body) for body in listed if self.observe(body) is not Change.NOTHING]

    def drop_missing(self, living: Collection[str], listed_version: int, *, namespace: str | None = None) -> list[Key]:
        """Drop what a whole list lacks that was true at `listed_version`; returns the keys that were wrong.

        `living` are the uids in the list, `namespace` is the one that was listed, None all of them. An object is
        dropped only if the cached copy is no newer than the list: one that was made after the list was taken is not
        missing from it.
        """
        missing = [
            key
            for key, body in self._objects.items()
            if namespace in (None, key[0])
            and body["metadata"]["uid"] not in living
            and version_of(body) <= listed_version
        ]
        for key in missing:
            # Not as of the list: without its label the object may live on at a version between the two.
            known = self._objects[key]
            self.remove(key, known["metadata"]["uid"], version_of(known) + 1)
        return missing

    def _unlink(self, key: Key) -> None:
        known = self._objects.get(key)
        value = self.index(known) if known is not None else None
        if value is not None:
            alike = self._indexed[value]
            alike.discard(key)
            if not alike:
                del self._indexed[value]
