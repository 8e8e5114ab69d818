"""Adopts the fleet of a former ConsumerGroup: its objects get a new owner, the StatefulSets last.

The image that the workers run is stored before a StatefulSet gets its new owner. An owner reference is changed only if
the object has not changed since it was read (same resourceVersion). The next reconcile continues an interrupted
adoption. Decision: docs/decisions/0046-waves-and-adoption.md.
"""

from collections.abc import Iterator
from dataclasses import replace

from fleet_operator.clients import kinds
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject, Kind
from fleet_operator.planning.fleet.image import running_image
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.objects import adopted, asks_to_adopt, is_adoptable
from fleet_operator.planning.state.group import GroupState
from fleet_operator.reconcilers.context import Context, is_owned_by
from fleet_operator.reconcilers.states import state_name
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.events import Event


async def adopt(context: Context, body: JsonObject) -> bool:
    """Take over the fleet of a former ConsumerGroup of this name, if the object has the annotation that requests an
    adoption.

    Returns True if objects were taken over; the ConsumerGroup must then be reconciled again. Raises KubeError. A
    repeated call is safe, because a former fleet is found by its StatefulSets, and their owner is changed last.
    """
    if not asks_to_adopt(body) or not _sees_unowned(context, body):
        return False
    found: list[tuple[Kind, JsonObject]] = []
    for kind, key in _names(context, body):
        child = await context.store.kube.get(kind, *key)
        if child is not None and not is_owned_by(child, body) and is_adoptable(child, body):
            found.append((kind, child))
    if not found:
        return False
    for kind, child in found:
        if kind == kinds.STATEFUL_SET:
            await _pin_image(context, body, child)
        context.store.learn(kind, await context.store.kube.merge(adopted(child, body)))
    note = f"adopted {len(found)} objects of a former ConsumerGroup of this name"
    context.events.record(Event(body, "Normal", "FleetAdopted", note))
    return True


def _sees_unowned(context: Context, body: JsonObject) -> bool:
    """True if the caches have a StatefulSet or ConfigMap that has the group's label but is not owned by the group."""
    key = key_of(body)
    for kind in (kinds.STATEFUL_SET, kinds.CONFIG_MAP):
        if any(not is_owned_by(found, body) for found in context.store.cache(kind).having(key)):
            return True
    return False


def _names(context: Context, body: JsonObject) -> Iterator[tuple[Kind, Key]]:
    namespace, name = key_of(body)
    yield kinds.OPERATOR_STATE, (namespace, state_name(CONSUMER_GROUP, name))
    for part in (MAIN, RETRY):
        yield kinds.SERVICE, (namespace, part.child(name))
        yield kinds.POD_DISRUPTION_BUDGET, (namespace, part.child(name))
    for found in context.store.cache(kinds.CONFIG_MAP).having((namespace, name)):
        yield kinds.CONFIG_MAP, key_of(found)
    for part in (RETRY, MAIN):
        yield kinds.STATEFUL_SET, (namespace, part.child(name))


async def _pin_image(context: Context, body: JsonObject, workers: JsonObject) -> None:
    """Store the image that the workers run, because the adopted fleet would otherwise switch to the default image."""
    image, state = running_image(workers), context.states.read(body, GroupState)
    if image is not None and not body["spec"].get("image") and state.upgrade.image is None:
        pinned = replace(state.upgrade, image=image, source="Operator")
        await context.states.save(body, replace(state, upgrade=pinned), before=state)
