"""The end of every reconcile: status, Events about what turned, and when to come back."""

from __future__ import annotations

from typing import Final

from fleet_operator.clients.kinds import JsonObject, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeNotFoundError
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.transitions import ACTION, turns
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.events import News

URGENT_FIELDS: Final = ("observedGeneration", "state", "replicas", "readyReplicas", "targetReplicas", "memberCount")
"""Fields of our statuses that somebody waits for, or that a machine acts on."""


async def publish(context: Context, body: JsonObject, status: JsonObject) -> float | None:
    """Write a status and tell of its turns; returns the seconds until the object should be looked at again.

    Raises KubeError. An object that was deleted meanwhile is no error, and None is returned.
    """
    before = body.get("status") or {}
    try:
        deferred = await context.statuses.write(body, status)
    except (KubeNotFoundError, KubeConflictError):  # gone, or a namesake has taken its place
        await context.store.refresh(kind_of(body), key_of(body))
        return None
    if deferred is None:
        for turn in turns(before, status):
            context.events.record(News(body, turn.type, turn.reason, ACTION, turn.note))
    resync = context.resync()
    return resync if deferred is None else min(deferred, resync)
