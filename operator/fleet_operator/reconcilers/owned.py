"""Applying a child of one of our objects, and never somebody else's object of the same name."""

from __future__ import annotations

from fleet_operator.clients.kinds import JsonObject, Kind, kind_of
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store


class ForeignObjectError(Exception):
    """Somebody else's object has the name of one of our children."""


async def apply_owned(store: Store, owner: JsonObject, child: JsonObject) -> None:
    """Apply a child: over the one that is there and ours, else under a name that is free, for an owner that lives.

    Raises ForeignObjectError, and KubeError: KubeConflictError where the caches had not shown what is there, so that
    all is decided anew.
    """
    if store.in_place(child):
        return
    kind, key = kind_of(child), key_of(child)
    seen = store.get(kind, key) if store.watches(kind) else None
    if seen is None or not is_owned_by(seen, owner):
        seen = await store.kube.get(kind, *key)
        if seen is None and not await store.is_living(owner):
            raise KubeConflictError(f"{owner['kind']} `{owner['metadata']['name']}` is gone: nothing is made for it")
        if seen is not None and not is_owned_by(seen, owner):
            raise ForeignObjectError(
                f"{kind} `{key[1]}` exists and is not of this {owner['kind']}: remove it, or rename one of the two"
            )
        if seen is not None and store.watches(kind):
            store.learn(kind, seen)
            raise KubeConflictError(f"{kind} `{key[1]}` is there, and no watch had shown it")
    await store.apply(child, over=seen)


async def find_child(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """A child of a watched kind, or None. What the cache lacks is read live: a watch loses sight of an object whose
    label is gone, and a fleet that is taken for absent would be made anew, and smaller. Raises KubeError."""
    key = (owner["metadata"]["namespace"], name)
    seen = store.get(kind, key)
    if seen is None or not is_owned_by(seen, owner):
        seen = await store.kube.get(kind, *key)
        if seen is None or not is_owned_by(seen, owner):
            return None
        store.learn(kind, seen)
    return seen


async def read_child(store: Store, owner: JsonObject, kind: Kind, name: str) -> JsonObject | None:
    """A child with its content, where the cache keeps less than the whole. Raises KubeError."""
    found = await find_child(store, owner, kind, name)
    whole = await store.content(kind, key_of(found)) if found is not None else None
    return whole if whole is not None and is_owned_by(whole, owner) else None


def is_owned_by(child: JsonObject, owner: JsonObject) -> bool:
    """Whether an object belongs to this very owner, and not to a deleted namesake of it."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(reference.get("uid") == owner["metadata"]["uid"] for reference in owners)
