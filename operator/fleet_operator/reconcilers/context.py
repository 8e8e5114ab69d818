"""Code that all reconcilers share: their services, access to children, finalizers, and the publishing of a status."""

import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import ConsumerGroup, conditions
from fleet_operator.api.v1alpha1.model import ADOPT_ANNOTATION
from fleet_operator.clients.kinds import JsonObject, Kind, identity, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeError, KubeNotFoundError
from fleet_operator.observe.aggregation import reason_of
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.pod_template import leave_users_to_platform
from fleet_operator.planning.labels import FINALIZER
from fleet_operator.planning.objects import has_owner, is_adoptable
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.states import States
from fleet_operator.reconcilers.transitions import find_transitions
from fleet_operator.reconcilers.worker_watch import WorkerWatch
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Queues
from fleet_operator.runtime.events import Event, EventRecorder
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store

URGENT_FIELDS: Final = (
    *("observedGeneration", "image", "imageSource", "upgrade"),
    *("revision", "state", "replicas", "readyReplicas", "updatedReplicas", "targetReplicas", "memberCount", "offsets"),
    *("phase", "attempts", "applicationUid", "lastEnded"),
)
"""Status fields that users wait for or programs act on. A change of such a field is written as urgent."""

FAILURES: Final = (NetError, KafkaError, KubeError, ObserverStoppedError, TimeoutError)
"""Errors that end an attempt of a background task. The next attempt starts from the beginning."""


def problem_of(failure: BaseException) -> Problem:
    """The problem to report for an action in Kafka that failed or timed out."""
    reason = str(getattr(failure, "reason", conditions.BROKER_UNREACHABLE))
    reason = reason_of(failure.code) if isinstance(failure, KafkaError) else reason
    return Problem(reason, str(failure) or "the brokers did not answer in time")


CONFLICT_SECONDS: Final = 1.0
"""Pause in seconds before the next reconcile of an object whose status write failed with a conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The services that all reconcilers use; one instance per operator.

    - `moved`: functions that are called with a group whose offsets changed, and return True if the group must be
      reconciled.
    - `background_tasks`: coroutine functions that run concurrently with reconciles and never return.
    - `ending`: exit stack that closes the reconcilers' resources.
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
    background_tasks: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    ending: AsyncExitStack = field(default_factory=AsyncExitStack)
    chance: random.Random = field(default_factory=random.Random)

    def defaulted(self, group: ConsumerGroup) -> ConsumerGroup:
        return leave_users_to_platform(group) if self.settings.platform_assigns_users else group

    def resync(self) -> float:
        """Seconds until an object is reconciled again without an event: a random value from 75 to 100 % of the setting,
        so that objects are not all due together."""
        return self.settings.resync_seconds * (0.75 + 0.25 * self.chance.random())


async def publish(context: Context, body: JsonObject, status: JsonObject, *, settling: bool = False) -> float | None:
    """Write a status and record Events about its transitions.

    Returns the seconds until the object's next reconcile: CONFLICT_SECONDS if another client has changed the object
    since it was read, None if the object no longer exists. `settling`: more changes of the status will follow soon, so
    an urgent change waits a few seconds and is written together with them. Raises KubeErrors other than
    KubeNotFoundError and KubeConflictError.
    """
    before = body.get("status") or {}
    try:
        deferred = await context.statuses.write(body, status, settling=settling)
    except (KubeNotFoundError, KubeConflictError):  # the object was changed, deleted, or replaced by a namesake
        return CONFLICT_SECONDS if await context.store.read_again(body) is not None else None
    if deferred is None:
        for each in find_transitions(before, status):
            context.events.record(Event(body, each.type, each.reason, each.note))
    resync = context.resync()
    return resync if deferred is None else min(deferred, resync)


class ForeignObjectError(Exception):
    """The operator cannot write a child, because an object of another owner has its name."""

    def __init__(self, child: JsonObject, owner: JsonObject, found: JsonObject) -> None:
        kind, name = owner["kind"], child["metadata"]["name"]
        remedy = f"remove it, or create the {kind} under another name"
        if is_adoptable(found, owner):
            remedy = (
                f"its owner is a former {kind} of the same name. If that owner has just been deleted, Kubernetes will "
                "delete the object soon; to take over the former fleet, set the annotation "
                f'{ADOPT_ANNOTATION}: "true"; otherwise remove the object'
            )
        super().__init__(f"{child['kind']} `{name}` exists and does not belong to this {kind}: {remedy}")


async def apply_owned(store: Store, owner: JsonObject, child: JsonObject) -> str:
    """Apply a child: update the owner's existing child, or create it if its name is free and the owner still exists.

    Returns the names of the field managers whose changes were reverted. Raises ForeignObjectError and KubeError:
    KubeConflictError if the child exists but was not in the cache; the owner must then be reconciled again.
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
    """Create a child, or apply it if it exists. Returns and raises the same as `apply_owned`. A create is tried first,
    because it needs no read: an apply without a read could take over another owner's object of this name."""
    if store.in_place(child):
        return ""
    kind, key = kind_of(child), key_of(child)
    if not store.watches(kind) or store.get(kind, key) is None:
        await require_living(store, owner)
        try:
            await store.create(child)
        except KubeConflictError:
            pass  # the object exists; `apply_owned` checks if it is ours
        else:
            return ""
    return await apply_owned(store, owner, child)


async def require_living(store: Store, owner: JsonObject) -> None:
    """Check that an owner still exists before its first child is created. Raises KubeConflictError if the owner does
    not exist, and other KubeErrors."""
    if not await store.is_living(owner):
        raise KubeConflictError(
            f"{owner['kind']} `{owner['metadata']['name']}` no longer exists: nothing is created for it"
        )


async def require_ours(store: Store, owner: JsonObject, child: JsonObject) -> None:
    """Check live that no object of another owner has a child's name. Raises ForeignObjectError and KubeError."""
    found = await store.kube.get(kind_of(child), *key_of(child))
    if found is not None and not is_owned_by(found, owner):
        raise ForeignObjectError(child, owner, found)


async def find_child(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """Find a child of a watched kind; returns None if it does not exist. Raises KubeError.

    If the cache lacks a child, the child is read live, because an object that loses its label disappears from the
    watch. Without this read, an existing fleet could seem to be missing, and would be created again with fewer workers.
    If the live read does not find the child either, the read is not repeated until the watch reports the child.
    """
    key = (owner["metadata"]["namespace"], name)
    seen, cache = store.get(kind, key), store.cache(kind)
    if seen is not None and is_owned_by(seen, owner):
        return seen
    if seen is None and cache.is_absent(key):
        return None
    seen = await store.kube.get(kind, *key)
    if seen is None:
        cache.record_absent(key)
    if seen is None or not is_owned_by(seen, owner):
        return None
    store.learn(kind, seen)
    return seen


async def read_child(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """Read a child with its complete content, which caches do not have; returns None if the child does not exist.
    Raises KubeError."""
    found = await find_child(store, owner, kind, name)
    whole = await store.content(kind, key_of(found)) if found is not None else None
    return whole if whole is not None and is_owned_by(whole, owner) else None


async def read_live(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """Read a child from the API server; returns None if it does not exist. Raises KubeError."""
    found = await store.kube.get(kind, owner["metadata"]["namespace"], name)
    return found if found is not None and is_owned_by(found, owner) else None


def is_owned_by(child: JsonObject, owner: JsonObject) -> bool:
    """True if an object belongs to this owner, and not to a deleted object with the owner's name."""
    return has_owner(child, owner["metadata"]["uid"])


def has_finalizer(body: JsonObject, finalizer: str = FINALIZER) -> bool:
    return finalizer in (body["metadata"].get("finalizers") or ())


async def set_finalizer(store: Store, body: JsonObject, finalizer: str, *, wanted: bool) -> None:
    """Set or remove a finalizer of a user's object, even if other field managers also own the field. Raises KubeError.

    An apply without the finalizer would not remove it; it would only give up the operator's ownership of the field. A
    user who created the object from an exported manifest also owns the finalizer, which would remain, so that the
    object could never be deleted.
    """
    kind, uid = kind_of(body), body["metadata"]["uid"]
    found = await store.kube.get(kind, *key_of(body))  # read live, because caches omit other clients' finalizers
    if found is None or found["metadata"]["uid"] != uid or has_finalizer(found, finalizer) == wanted:
        return
    patch = identity(found)
    if wanted:
        patch["metadata"]["finalizers"] = [finalizer]
        del patch["metadata"]["resourceVersion"]
        stored = await store.kube.apply(patch)
    else:
        # The write contains the resourceVersion that was read, because other clients may change finalizers between read
        # and write.
        patch["metadata"]["finalizers"] = [each for each in found["metadata"]["finalizers"] if each != finalizer]
        stored = await store.kube.merge(patch)
    store.learn(kind, stored)


FIRST_OBSERVATION_SECONDS: Final = 60.0
"""Longest time in seconds for which an object with a status waits for its first observation by this process."""


@dataclass(slots=True)
class FirstObservation:
    """The wait of one object for its first observation by this process. Without this wait, the object's status would be
    Unknown for a moment after each restart of the operator."""

    clock: Clock
    since: float | None = None
    """Start of the wait (monotonic seconds)."""

    def awaits(self, *, coming: bool) -> bool:
        """True while the object must wait: at most FIRST_OBSERVATION_SECONDS, and only if an observation is expected
        (`coming`)."""
        if not coming:
            self.since = None
            return False
        now = self.clock.monotonic()
        self.since = now if self.since is None else self.since
        return now - self.since < FIRST_OBSERVATION_SECONDS
