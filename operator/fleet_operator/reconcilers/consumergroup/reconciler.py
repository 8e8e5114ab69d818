"""Reconciles ConsumerGroup: gather, decide, act, publish."""

from __future__ import annotations

from functools import partial

from pydantic import ValidationError

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.status.consumergroup import invalid_spec_status, project_consumergroup_status
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.problems import needs_watching
from fleet_operator.reconcilers.consumergroup.children import Children
from fleet_operator.reconcilers.consumergroup.decide import Plan, make_plan
from fleet_operator.reconcilers.consumergroup.deletion import DeletionWork, has_finalizer
from fleet_operator.reconcilers.consumergroup.gather import Gathered, gather
from fleet_operator.reconcilers.consumergroup.kafka_side import KafkaSide
from fleet_operator.reconcilers.consumergroup.metrics import GroupMetrics
from fleet_operator.reconcilers.context import Context, publish
from fleet_operator.reconcilers.worker_watch import FRESH_SECONDS
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Result


class ConsumerGroupReconciler:
    """Keeps each fleet and its status as its object says."""

    def __init__(self, context: Context, kafka: KafkaSide) -> None:
        self._context = context
        self._kafka = kafka
        self._gauges = GroupMetrics(context.metrics)
        self._deletion = DeletionWork(context, kafka)
        self._known: dict[Key, JsonObject] = {}  # as last reconciled: what an Event about a deleted one is made from
        self._memories: dict[Key, RetryMemory] = {}

    async def reconcile(self, key: Key) -> Result:
        """Bring one ConsumerGroup one step closer to what it should be; raises KubeError to be tried again."""
        context = self._context
        body = context.store.get(CONSUMER_GROUP, key)
        if body is None or (body["metadata"].get("deletionTimestamp") and not has_finalizer(body)):
            self._forget(key)
            return Result()
        self._known[key] = body
        if body["metadata"].get("deletionTimestamp"):
            return await self._deletion.end(body)
        now = context.clock.wall()
        previous = body.get("status") or {}
        try:
            gathered = await gather(context, body)
        except ValidationError as error:
            status = invalid_spec_status(body["metadata"], str(error), previous, now)
            return Result(await publish(context, body, status))
        plan = make_plan(gathered, now, image=context.settings.consumer_image, memory=self._memories.get(key))
        if plan.retry is not None:
            self._memories[key] = plan.retry.memory
        if not previous.get("conditions"):
            return await self._introduce(body, project_consumergroup_status(plan.facts(gathered), previous, now))
        facts = await self._act(gathered, plan)
        status = project_consumergroup_status(facts, previous, now)
        self._gauges.set(key, facts, status)
        again = await publish(context, body, status)
        # A group that stands still gives no other sign that would bring it back to have its workers asked.
        may_pause = gathered.retry is not None and gathered.retry.may_pause
        watched = FRESH_SECONDS if may_pause or needs_watching(facts) else None
        wishes = (plan.requeue_after, watched)
        return Result(None if again is None else min((again, *(wish for wish in wishes if wish is not None))))

    async def _introduce(self, body: JsonObject, status: JsonObject) -> Result:
        """Write a new object's first status, and go to the end of the queue with it.

        So, when a thousand objects come at once, all have a status before the first of them has its children.
        """
        again = await publish(self._context, body, status)
        return Result(None if again is None else 0.0)

    async def _act(self, gathered: Gathered, plan: Plan) -> ConsumerGroupFacts:
        """Carry out the plan, except on an object that asks to be left alone."""
        facts = plan.facts(gathered)
        if gathered.group.paused:
            return facts
        await self._deletion.keep_finalizer(gathered.body, gathered.group)
        refusal = await Children(self._context, gathered, plan).carry_out()
        kafka, again = self._kafka, partial(self._context.queues[CONSUMER_GROUP].add, gathered.key)
        if gathered.older is None and gathered.on_its_cluster:
            kafka.keep_topics(gathered, facts, again)
            kafka.remove_departed(gathered, facts, again)
        return plan.facts(gathered, refusal=refusal, topic_problem=kafka.topic_problem(gathered, facts))

    def _forget(self, key: Key) -> None:
        """Owner references do the cleaning up in the cluster; this is ours in memory."""
        context = self._context
        known = self._known.pop(key, None)
        if known is not None:
            context.store.forget(known["metadata"]["uid"])
            if not has_finalizer(known):
                self._deletion.tell_of_kept(known)
        context.observers.forget(key)
        context.workers.forget(key)
        context.statuses.forget(CONSUMER_GROUP.kind, key)
        self._kafka.forget(key)
        self._gauges.remove(key)
        self._memories.pop(key, None)
