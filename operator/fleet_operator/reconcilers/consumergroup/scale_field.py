"""`spec.replicas` of a group that leaves it out, for autoscalers: the API server answers no read of the scale
subresource while the field is absent, and an HPA never begins.

The field then has no owner, as one with a default: a server-side apply without it leaves it alone, and one with it
takes it over without a conflict.
"""

from __future__ import annotations

from contextlib import suppress

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject, identity
from fleet_operator.clients.kube import (
    FIELD_MANAGER,
    KubeConflictError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
)
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store


async def give_replicas(store: Store, body: JsonObject, replicas: int | None) -> None:
    """Write the number of workers into a ConsumerGroup without one, unless somebody has written it meanwhile.

    Without rights, or against an admission policy, the field stays absent: the fleet has its number all the same.
    Raises other KubeErrors.
    """
    spec, found = body["spec"], store.get(CONSUMER_GROUP, key_of(body))
    if replicas is None or "replicas" in spec or "scaling" in spec or found is None or found["spec"] != spec:
        return
    with suppress(KubeConflictError, KubeNotFoundError, KubeForbiddenError, KubeInvalidError):
        stored = await store.kube.merge({**identity(found), "spec": {"replicas": replicas}})
        released = identity(stored)
        released["metadata"]["managedFields"] = [_without_spec(each) for each in stored["metadata"]["managedFields"]]
        store.learn(CONSUMER_GROUP, await store.kube.merge(released))


def _without_spec(entry: JsonObject) -> JsonObject:
    if entry["manager"] != FIELD_MANAGER:
        return entry
    return {**entry, "fieldsV1": {name: part for name, part in entry["fieldsV1"].items() if name != "f:spec"}}
