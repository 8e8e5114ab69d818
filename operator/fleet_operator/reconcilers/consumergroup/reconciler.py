"""Reconciler of ConsumerGroups: gather, decide, act, publish.

A former fleet is taken over first: the image that runs is recorded, then its objects change hands, workers last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients import json_text, kinds
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject, Kind
from fleet_operator.planning.fleet.image import running_image
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.fleet.waves import Standing, read_standing
from fleet_operator.planning.objects import adopted, asks_to_adopt, is_adoptable
from fleet_operator.planning.offsets.expiry import ExpiryDecision
from fleet_operator.planning.offsets.skips import awaits_skips
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.upgrade import UpgradeState
from fleet_operator.planning.status.consumergroup import invalid_spec_status, project_consumergroup_status
from fleet_operator.planning.status.problems import needs_reports, needs_revisit
from fleet_operator.planning.status.rollout import advanced_upgrade
from fleet_operator.planning.status.transitions import awaits_report
from fleet_operator.reconcilers.consumergroup.children import REFUSED_RETRY_S, Children
from fleet_operator.reconcilers.consumergroup.decide import Memory, Plan, interest_of, make_plan
from fleet_operator.reconcilers.consumergroup.deletion import DeletionWork
from fleet_operator.reconcilers.consumergroup.gather import Gathered, gather
from fleet_operator.reconcilers.consumergroup.kafka_side import KafkaSide
from fleet_operator.reconcilers.consumergroup.lenses import Lenses, show_group
from fleet_operator.reconcilers.consumergroup.offset_expiry import OffsetExpiry, offsets_after
from fleet_operator.reconcilers.consumergroup.offset_reset import OffsetResets
from fleet_operator.reconcilers.consumergroup.scaling import ScalingWatch
from fleet_operator.reconcilers.context import (
    FIRST_LOOK_SECONDS,
    Context,
    FirstLooks,
    has_finalizer,
    is_owned_by,
    publish,
)
from fleet_operator.reconcilers.states import StateTakenError, state_name
from fleet_operator.reconcilers.waves import Waves
from fleet_operator.reconcilers.worker_watch import FRESH_SECONDS
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Result
from fleet_operator.runtime.events import News

T = TypeVar("T")

LARGE_BYTES: Final = 98_304
"""Objects of more bytes, with their status, are planned in a thread."""
OWNED_SECONDS: Final = 15.0
"""Interval at which a group looks again whose Kafka group another one owns: of that one's workers no event tells it."""


class ConsumerGroupReconciler:
    """Keeps fleets and statuses as their objects specify. Used on the event loop only."""

    def __init__(self, context: Context, kafka: KafkaSide) -> None:
        self._context = context
        self._kafka = kafka
        self._series = context.metrics.groups
        self._scaling = ScalingWatch(context.clock)
        self._lenses = Lenses(context, self._scaling)
        context.moved.append(self._lenses.moved)
        context.beside.append(self._lenses.keep_aging)
        self._deletion = DeletionWork(context, kafka)
        self._known: dict[Key, bytes] = {}  # as JSON, for Events about deleted objects
        self._memories: dict[Key, Memory] = {}
        self._begun: set[Key] = set()  # objects whose status this process has written
        self._first_looks = FirstLooks(context.clock)
        self._waves = Waves(context)
        self._resets = OffsetResets(kafka, context.store, context.observers, context.metrics, context.clock)
        self._expiry = OffsetExpiry(kafka, context.observers, context.metrics, context.clock)

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one ConsumerGroup by one step. Raises KubeError, to be retried."""
        context = self._context
        body = context.store.get(CONSUMER_GROUP, key)
        if body is None or (body["metadata"].get("deletionTimestamp") and not has_finalizer(body)):
            self._forget(key)
            return Result()
        self._known[key] = json_text.packed(_references(body))
        if body["metadata"].get("deletionTimestamp"):
            self._series.remove(key)  # nobody renews them, and draining may take a day
            self._lenses.forget(key)
            self._waves.forget(key)
            return await self._deletion.end(body)
        adopted = await adopt(context, body)
        if adopted is not None:
            return Result(adopted)
        now = context.clock.wall()
        previous = body.get("status") or {}
        try:
            gathered = await gather(context, body)
            gathered = replace(gathered, turn=self._waves.turn(body, key, gathered.state.upgrade))
        except (ValidationError, UnreadableStateError) as error:
            self._series.remove(key)
            self._lenses.forget(key)
            self._waves.forget(key)
            problem = error.problem if isinstance(error, UnreadableStateError) else spec_problem(error)
            status = invalid_spec_status(body["metadata"], problem, previous, now)
            return Result(await publish(context, body, status))
        return await self._step(gathered, previous, now)

    async def _step(self, gathered: Gathered, previous: JsonObject, now: float) -> Result:
        """Decide about what was gathered, act, and publish."""
        context, key, body = self._context, gathered.key, gathered.body
        memory = self._memories.get(key, Memory())
        memory = replace(memory, trail=self._scaling.trail(key) or memory.trail)
        # Offsets of tens of thousands of partitions take long, and everybody else would wait.
        pure = asyncio.to_thread if len(json_text.dumps(body)) > LARGE_BYTES else _here
        plan = await pure(
            make_plan,
            gathered,
            now,
            image=context.settings.consumer_image,
            memory=memory,
            finding=self._resets.finding(key),
            tick=context.clock.monotonic(),
        )
        self._memories[key] = plan.memory
        context.observers.watch(key, gathered.cluster_key, interest_of(gathered, plan))
        if not plan.turn.begins:
            self._waves.give_back(key)
        expiry = self._expiry.decide(gathered, plan.shown.observed, plan.reset, plan.parts)
        plan = replace(plan, state=replace(plan.state, offsets=offsets_after(gathered, plan.shown.observed, expiry)))
        facts = replace(plan.facts(gathered), expiry=expiry)
        if gathered.state == GroupState() and key not in self._begun:
            self._begun.add(key)
            shown = replace(facts, view=plan.shown)
            # When a thousand objects are created at once, all have a status before the first of them has its children.
            again = await publish(context, body, await pure(project_consumergroup_status, shown, previous, now))
            return Result(None if again is None else 0.0)
        if self._first_looks.awaits(key, coming=self._is_look_coming(key, gathered, plan)):
            return Result(FIRST_LOOK_SECONDS)
        if not gathered.group.paused:
            facts = replace(facts, refusal=await self._carry_out(gathered, plan, facts.expiry))
            problem = plan.shown.topics.problem or self._kafka.refusal(key)
            facts = replace(facts, topic_problem=problem)
            facts = replace(facts, upgrade=advanced_upgrade(facts))
            state = replace(plan.state, upgrade=replace(plan.state.upgrade, last=facts.upgrade))
            taken = facts.refusal is not None and facts.refusal.reason == conditions.NAME_TAKEN
            if state != plan.state and not taken:
                await context.states.save(body, state)
        status = await pure(project_consumergroup_status, replace(facts, view=plan.shown), previous, now)
        upgrades = replace(plan.state.upgrade, last=facts.upgrade)
        self._waves.note(body, key, self._standing(gathered, status, upgrades))
        show_group(self._series, key, facts, status)
        again = await publish(context, body, status)
        self._begun.add(key)
        if plan.reset.advanced and self._is_stored(key, status):
            self._resets.advanced(key, plan.reset.last)
            return Result(0.0)  # its next step rests on what stands in the status
        context.workers.follow(key, closely=needs_reports(facts))
        self._lenses.focus(key, facts, gathered.cluster_key)
        self._scaling.follow(key, plan.scaling, plan.scale, plan.trail, status.get("scaling") or {})
        # An idle group gives no other sign that would requeue it.
        skips = awaits_skips((status.get("offsets") or {}).get("skipped") or ())
        reports = awaits_report(status["transitions"], gathered.worker_reports, now)
        watched = FRESH_SECONDS if skips or reports or needs_revisit(facts) else None
        watched = OWNED_SECONDS if gathered.older is not None else watched
        wishes = (plan.requeue_after if facts.refusal is None else REFUSED_RETRY_S, watched, facts.expiry.requeue_after)
        return Result(None if again is None else min((again, *(wish for wish in wishes if wish is not None))))

    def _is_look_coming(self, key: Key, gathered: Gathered, plan: Plan) -> bool:
        """True if what a status would show as unknown will be known soon: the group that this process has not observed
        yet, or the rates of a fleet whose status it has not written yet, which take a second poll."""
        seen = gathered.observation
        reachable = seen is None or seen.reachable or seen.doubtful
        observed = seen is not None and gathered.group.group_id in seen.groups
        if observed:
            return key not in self._begun and plan.scaling is not None and plan.scaling.awaits_rates
        return not isinstance(gathered.cluster, Problem) and reachable

    def _standing(self, gathered: Gathered, status: JsonObject, state: UpgradeState) -> Standing:
        canaries = self._context.settings.canary_namespaces
        return read_standing(gathered.body, status["conditions"], state, gathered.cluster_key, canaries)

    async def _carry_out(self, gathered: Gathered, plan: Plan, expiry: ExpiryDecision) -> Problem | None:
        """Write the state, then act; returns the refusal of the API server, if any."""
        if plan.state != gathered.state:
            try:
                await self._context.states.save(gathered.body, plan.state)
            except StateTakenError as error:
                return Problem(conditions.NAME_TAKEN, str(error))
        return await self._act(gathered, plan, expiry)

    def _is_stored(self, key: Key, status: JsonObject) -> bool:
        """True if the state of offsets was written, and not put off."""
        stored = self._context.store.get(CONSUMER_GROUP, key)
        return stored is not None and (stored.get("status") or {}).get("offsets") == status.get("offsets")

    async def _act(self, gathered: Gathered, plan: Plan, expiry: ExpiryDecision) -> Problem | None:
        """Carry out the plan; returns the refusal of the API server, if any."""
        await self._deletion.keep_finalizer(gathered.body, gathered.group)
        refusal = await Children(self._context, gathered, plan).carry_out()
        kafka, again = self._kafka, partial(self._context.queues[CONSUMER_GROUP].add, gathered.key)
        if gathered.older is None and gathered.on_its_cluster:
            kafka.keep_topics(gathered, plan.view.topics, again)
            kafka.remove_departed(gathered, plan.view.observed, again)
            self._resets.take_step(gathered, plan.view.source_topics, plan.reset, again)
            self._expiry.take_step(gathered, expiry, again)
        return refusal

    def _forget(self, key: Key) -> None:
        """Drop the memory of a deleted object; owner references clean up the cluster."""
        context = self._context
        packed = self._known.pop(key, None)
        if packed is not None:
            known = json_text.loads(packed)
            context.store.forget(known["metadata"]["uid"])
            if not has_finalizer(known):
                self._deletion.tell_of_kept(known)
        context.observers.forget(key)
        context.workers.forget(key)
        context.statuses.forget(CONSUMER_GROUP.kind, key)
        context.states.forget(CONSUMER_GROUP, key)
        self._waves.forget(key)
        self._begun.discard(key)
        self._kafka.forget(key)
        self._series.remove(key)
        self._lenses.forget(key)
        self._scaling.forget(key)
        self._memories.pop(key, None)
        self._first_looks.forget(key)
        self._resets.forget(key)
        self._expiry.forget(key)


def _references(body: JsonObject) -> JsonObject:
    """An object without what no Event about its deletion needs: thousands of them are remembered."""
    spec = {name: part for name, part in body["spec"].items() if name in ("groupId", "clusterRef")}
    return {**{name: body[name] for name in ("apiVersion", "kind", "metadata")}, "spec": spec}


async def _here(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As `asyncio.to_thread`, on the event loop."""
    return work(*args, **kwargs)


async def adopt(context: Context, body: JsonObject) -> float | None:
    """Take over the fleet of a former ConsumerGroup of this name, if the object asks for it and there is one.

    Returns the seconds after which to come back, or None if there was nothing to do. Raises KubeError, to be tried
    again: the StatefulSets, by which a fleet is known, change hands last.
    """
    if not asks_to_adopt(body) or not _sees_strangers(context, body):
        return None
    found: list[tuple[Kind, JsonObject]] = []
    for kind, key in _names(context, body):
        child = await context.store.kube.get(kind, *key)
        if child is not None and not is_owned_by(child, body) and is_adoptable(child, body):
            found.append((kind, child))
    if not found:
        return None
    for kind, child in found:
        if kind == kinds.STATEFUL_SET:
            await _pin_image(context, body, child)
        context.store.learn(kind, await context.store.kube.merge(adopted(child, body)))
    note = f"took over {len(found)} objects of a former ConsumerGroup of this name"
    context.events.record(News(body, "Normal", "FleetAdopted", note))
    return 0.0


def _sees_strangers(context: Context, body: JsonObject) -> bool:
    """True if the caches have objects with the group's label that are not its own; costs no call."""
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
    """Pin the group to the image that runs, or the adopted fleet would go over to the operator's at once."""
    image, state = running_image(workers), context.states.read(body, GroupState)
    if image is not None and not body["spec"].get("image") and state.upgrade.image is None:
        pinned = replace(state.upgrade, image=image, source="Operator")
        await context.states.save(body, replace(state, upgrade=pinned))
