"""Reconciles ConsumerGroup: gather, decide, act, publish."""

from __future__ import annotations

from functools import partial

from pydantic import ValidationError

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.status_consumergroup import invalid_spec_status, project_consumergroup_status
from fleet_operator.planning.status_facts import ConsumerGroupFacts
from fleet_operator.reconcilers.children import Children
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.deciding import Plan, make_plan
from fleet_operator.reconcilers.gathering import Gathered, gather
from fleet_operator.reconcilers.group_metrics import GroupMetrics
from fleet_operator.reconcilers.kafka_side import KafkaSide
from fleet_operator.reconcilers.publishing import publish
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.workers import Result


class ConsumerGroupReconciler:
    """Keeps each fleet and its status as its object says."""

    def __init__(self, context: Context, kafka: KafkaSide) -> None:
        self._context = context
        self._kafka = kafka
        self._gauges = GroupMetrics(context.metrics)
        self._uids: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> Result:
        """Bring one ConsumerGroup one step closer to what it should be; raises KubeError to be tried again."""
        context = self._context
        body = context.store.get(CONSUMER_GROUP, key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return Result()
        self._uids[key] = body["metadata"]["uid"]
        now = context.clock.wall()
        previous = body.get("status") or {}
        try:
            gathered = await gather(context, body)
        except ValidationError as error:
            status = invalid_spec_status(body["metadata"], str(error), previous, now)
            return Result(await publish(context, body, status))
        plan = make_plan(gathered, now, image=context.settings.consumer_image)
        if not previous.get("conditions"):
            return await self._introduce(body, project_consumergroup_status(plan.facts(gathered), previous, now))
        facts = await self._act(gathered, plan)
        status = project_consumergroup_status(facts, previous, now)
        self._gauges.set(key, facts, status)
        again = await publish(context, body, status)
        soon = plan.decision.requeue_after
        return Result(again if soon is None or again is None else min(again, soon))

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
        refusal = await Children(self._context, gathered, plan).carry_out()
        kafka, again = self._kafka, partial(self._context.queues.group, gathered.key)
        if gathered.older is None:
            kafka.ensure_failed_topic(gathered, facts, again)
            kafka.remove_departed(gathered, facts, again)
        return plan.facts(gathered, refusal=refusal, topic_problem=kafka.topic_problem(gathered, facts))

    def _forget(self, key: Key) -> None:
        """Owner references do the cleaning up in the cluster; this is ours in memory."""
        context = self._context
        context.observatory.forget(key)
        context.workers.forget(key)
        context.statuses.forget(CONSUMER_GROUP.kind, key)
        context.store.forget(self._uids.pop(key, ""))
        self._kafka.forget(key)
        self._gauges.remove(key)
