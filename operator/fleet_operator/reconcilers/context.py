"""Collaborators of the reconcilers, their children in the cluster, and the end of every reconcile."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.api.v1alpha1.model import ADOPT_ANNOTATION
from fleet_operator.clients.kinds import JsonObject, Kind, identity, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeError, KubeNotFoundError
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.pod_template import leave_users_to_platform
from fleet_operator.planning.labels import FINALIZER
from fleet_operator.planning.objects import has_owner, is_adoptable
from fleet_operator.reconcilers.states import States
from fleet_operator.reconcilers.transitions import turns
from fleet_operator.reconcilers.worker_watch import WorkerWatch
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Queues
from fleet_operator.runtime.events import EventRecorder, News
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store

URGENT_FIELDS: Final = (
    *("observedGeneration", "image", "imageSource", "upgrade"),
    *("revision", "state", "replicas", "readyReplicas", "updatedReplicas", "targetReplicas", "memberCount", "offsets"),
    *("phase", "attempts", "applicationUid", "lastEnded"),
)
"""Fields of our statuses that somebody waits for, or that a machine acts on."""


FAILURES: Final = (NetError, KafkaError, KubeError, ObserverStoppedError, TimeoutError)
"""Errors that end a piece of work in the background; the next one starts from the beginning."""
CONFLICT_SECONDS: Final = 1.0
"""Pause before another reconcile of an object whose status could not be written, because it had changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The collaborators of the reconcilers; one for the whole operator. `ending` closes what they have opened.

    `moved` takes functions that are called with a group whose offsets have moved, and say whether it is to be
    reconciled; `beside` takes work that goes on next to the reconciles and never returns.
    """

    settings: Settings
    clock: Clock
    store: Store
    states: States
    statuses: StatusWriter
    events: EventRecorder
    metrics: Metrics
    observers: ObserverPool
    workers: WorkerWatch
    queues: Queues
    moved: list[Callable[[Key], bool]] = field(default_factory=list)
    beside: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    ending: AsyncExitStack = field(default_factory=AsyncExitStack)
    chance: random.Random = field(default_factory=random.Random)

    def defaulted(self, group: ConsumerGroup) -> ConsumerGroup:
        return leave_users_to_platform(group) if self.settings.platform_assigns_users else group

    def resync(self) -> float:
        """Seconds until an object is reconciled again without an event; spread, or all would be due at once."""
        return self.settings.resync_seconds * (0.75 + 0.25 * self.chance.random())


async def publish(context: Context, body: JsonObject, status: JsonObject, *, settling: bool = False) -> float | None:
    """Write a status and record Events about its turns; returns the seconds until the next visit of the object.

    `settling`: other changes are about to follow.

    Raises KubeError. An object that was deleted meanwhile is no error, and None is returned. Nor is one that somebody
    has changed meanwhile: it is reconciled again, from what is read now.
    """
    before = body.get("status") or {}
    try:
        deferred = await context.statuses.write(body, status, settling=settling)
    except (KubeNotFoundError, KubeConflictError):  # changed, gone, or a namesake has taken its place
        found = await context.store.refresh(kind_of(body), key_of(body))
        same = found is not None and found["metadata"]["uid"] == body["metadata"]["uid"]
        return CONFLICT_SECONDS if same else None
    if deferred is None:
        for turn in turns(before, status):
            context.events.record(News(body, turn.type, turn.reason, turn.note))
    resync = context.resync()
    return resync if deferred is None else min(deferred, resync)


class ForeignObjectError(Exception):
    """Somebody else's object has the name of one of our children."""

    def __init__(self, child: JsonObject, owner: JsonObject, found: JsonObject) -> None:
        kind, name = owner["kind"], child["metadata"]["name"]
        remedy = f"remove it, or create the {kind} under another name"
        if is_adoptable(found, owner):
            remedy = (
                "it is of a former one of the same name. If that was deleted just now, it goes by itself; to take over "
                f'its fleet, set the annotation {ADOPT_ANNOTATION}: "true"; otherwise remove it'
            )
        super().__init__(f"{child['kind']} `{name}` exists and does not belong to this {kind}: {remedy}")


async def apply_owned(store: Store, owner: JsonObject, child: JsonObject) -> str:
    """Apply a child: over the one that is there and ours, else under a name that is free, for an owner that lives.

    Returns the names of those whose changes were put back.

    Raises ForeignObjectError, and KubeError: KubeConflictError where the caches had not shown what is there, so that
    the object is reconciled again.
    """
    if store.in_place(child):
        return ""
    kind, key = kind_of(child), key_of(child)
    seen = store.get(kind, key) if store.watches(kind) else None
    if seen is None or not is_owned_by(seen, owner):
        seen = await store.kube.get(kind, *key)
        if seen is None:
            await require_living(store, owner)
        elif not is_owned_by(seen, owner):
            raise ForeignObjectError(child, owner, seen)
        elif store.watches(kind):
            store.learn(kind, seen)
            raise KubeConflictError(f"{kind} `{key[1]}` exists but is not in the cache yet: retrying")
    return await store.apply(child, over=seen)


async def create_owned(store: Store, owner: JsonObject, child: JsonObject) -> str:
    """Create a child that is new, or apply it if it is there; returns what `apply_owned` does, and raises the same.

    An apply would have to be preceded by a read, for it would take over somebody else's object of this name.
    """
    if store.in_place(child):
        return ""
    kind, key = kind_of(child), key_of(child)
    if not store.watches(kind) or store.get(kind, key) is None:
        await require_living(store, owner)
        try:
            await store.create(child)
        except KubeConflictError:
            pass  # made before, or somebody else's: seen below
        else:
            return ""
    return await apply_owned(store, owner, child)


async def require_living(store: Store, owner: JsonObject) -> None:
    """Make sure that an owner lives before its first child is created. Raises KubeError."""
    if not await store.is_living(owner):
        raise KubeConflictError(f"{owner['kind']} `{owner['metadata']['name']}` is gone: nothing is created for it")


async def require_ours(store: Store, owner: JsonObject, child: JsonObject) -> None:
    """Make sure, live, that a child's name is free or ours. Raises ForeignObjectError and KubeError."""
    found = await store.kube.get(kind_of(child), *key_of(child))
    if found is not None and not is_owned_by(found, owner):
        raise ForeignObjectError(child, owner, found)


async def find_child(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """A child of a watched kind, or None. Raises KubeError.

    A child that the cache lacks is read live, once until something is seen of it: a watch loses sight of an object
    whose label is gone, and a fleet that is taken for absent would be created again, and smaller.
    """
    key = (owner["metadata"]["namespace"], name)
    seen, cache = store.get(kind, key), store.cache(kind)
    if seen is not None and is_owned_by(seen, owner):
        return seen
    if seen is None and cache.is_absent(key):
        return None
    seen = await store.kube.get(kind, *key)
    if seen is None:
        cache.note_absent(key)
    if seen is None or not is_owned_by(seen, owner):
        return None
    store.learn(kind, seen)
    return seen


async def read_child(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """A child with its content, where the cache keeps less than the whole. Raises KubeError."""
    found = await find_child(store, owner, kind, name)
    whole = await store.content(kind, key_of(found)) if found is not None else None
    return whole if whole is not None and is_owned_by(whole, owner) else None


async def read_live(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """A child read from the API server, or None. Raises KubeError."""
    found = await store.kube.get(kind, owner["metadata"]["namespace"], name)
    return found if found is not None and is_owned_by(found, owner) else None


def is_owned_by(child: JsonObject, owner: JsonObject) -> bool:
    """True if an object belongs to this very owner, and not to a deleted namesake of it."""
    return has_owner(child, owner["metadata"]["uid"])


def has_finalizer(body: JsonObject, finalizer: str = FINALIZER) -> bool:
    return finalizer in (body["metadata"].get("finalizers") or ())


async def set_finalizer(store: Store, body: JsonObject, finalizer: str, *, wanted: bool) -> None:
    """Set or remove a finalizer of a user's object, also where others own it as well. Raises KubeError.

    An apply without it gives up only the operator's own share. The creator of an object from an exported manifest owns
    it too, and it would never go.
    """
    kind, uid = kind_of(body), body["metadata"]["uid"]
    found = await store.kube.get(kind, *key_of(body))  # with the finalizers of others, which caches leave out
    if found is None or found["metadata"]["uid"] != uid or has_finalizer(found, finalizer) == wanted:
        return
    patch = identity(found)
    if wanted:
        patch["metadata"]["finalizers"] = [finalizer]
        del patch["metadata"]["resourceVersion"]
        stored = await store.kube.apply(patch)
    else:
        # Conditional on the version: others may change finalizers between the read and this write.
        patch["metadata"]["finalizers"] = [each for each in found["metadata"]["finalizers"] if each != finalizer]
        stored = await store.kube.merge(patch)
    store.learn(kind, stored)


FIRST_LOOK_SECONDS: Final = 60.0
"""The longest wait of an object that has a status."""


@dataclass(slots=True)
class FirstLook:
    """The wait of one object for the first look of this process at what it describes.

    After a restart it would be shown as unknown, and a moment later as before.
    """

    clock: Clock
    since: float | None = None
    """Begin of the wait, monotonic seconds."""

    def awaits(self, *, coming: bool) -> bool:
        """True while a look that is `coming` is worth waiting for; one that was made, or never will be, is not."""
        if not coming:
            self.since = None
            return False
        now = self.clock.monotonic()
        self.since = now if self.since is None else self.since
        return now - self.since < FIRST_LOOK_SECONDS
