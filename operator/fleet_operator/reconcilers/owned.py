"""Applying a child of one of our objects, and never somebody else's object of the same name."""

from __future__ import annotations

from fleet_operator.clients.kinds import JsonObject, kind_of
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store


class ForeignObjectError(Exception):
    """Somebody else's object has the name of one of our children."""


async def apply_owned(store: Store, owner: JsonObject, child: JsonObject) -> None:
    """Apply a child; before its first apply, make sure that the name is free or ours.

    Raises ForeignObjectError, and KubeError.
    """
    kind, key = kind_of(child), key_of(child)
    if not store.has_applied(child):
        found = await store.kube.get(kind, *key)
        if found is not None and not is_owned_by(found, owner):
            raise ForeignObjectError(
                f"{kind} `{key[1]}` exists and is not of this {owner['kind']}: remove it, or rename one of the two"
            )
    await store.apply(child)


def is_owned_by(child: JsonObject, owner: JsonObject) -> bool:
    """Whether an object belongs to this very owner, and not to a deleted namesake of it."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(reference.get("uid") == owner["metadata"]["uid"] for reference in owners)
