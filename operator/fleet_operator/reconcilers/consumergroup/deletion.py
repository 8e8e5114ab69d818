"""Deletion of ConsumerGroups whose spec asks for steps in Kafka.

Finalizers are the operator's only change to a user's objects besides the status. Topics and groups are read live just
before they are deleted; the finalizer is removed in the same attempt, after the brokers have answered.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Final

from pydantic import ValidationError

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.api.v1alpha1.conditions import CLUSTER_NOT_FOUND
from fleet_operator.api.v1alpha1.model import TOO_LARGE
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, POD, STATEFUL_SET, JsonObject
from fleet_operator.clients.kube import KubeConflictError, KubeForbiddenError, KubeInvalidError, KubeNotFoundError
from fleet_operator.planning import labels, times
from fleet_operator.planning.fleet import deletion
from fleet_operator.planning.fleet.parts import MAIN, RETRY, PartPlan
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.reconcilers.claims import NO_RIVALS, find_rivals
from fleet_operator.reconcilers.consumergroup.gather import Gathered, gather
from fleet_operator.reconcilers.consumergroup.kafka_side import ATTEMPT_SECONDS, KafkaSide
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.reconcilers.context import Context, has_finalizer, set_finalizer
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Result
from fleet_operator.runtime.events import News

log = logging.getLogger(__name__)

UNDO: Final = "deletion"


class DeletionWork:
    """The deletions of all ConsumerGroups. Used on the event loop only."""

    def __init__(self, context: Context, kafka: KafkaSide) -> None:
        self._context = context
        self._kafka = kafka

    async def keep_finalizer(self, body: JsonObject, group: ConsumerGroup) -> None:
        """Set the finalizer exactly while the spec needs it, before any child is created.

        The KafkaCluster gets one too, or it could be gone before what the spec asks for is done. It loses it by itself.
        """
        store, wanted = self._context.store, deletion.wants_finalizer(group.spec.deletion)
        if wanted != has_finalizer(body):
            await set_finalizer(store, body, labels.FINALIZER, wanted=wanted)
        cluster = store.get(KAFKA_CLUSTER, cluster_of(body)) if wanted else None
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            return
        if not has_finalizer(cluster, labels.CLUSTER_FINALIZER):
            with suppress(KubeForbiddenError):  # by rights of an older chart: the group itself matters more
                await set_finalizer(store, cluster, labels.CLUSTER_FINALIZER, wanted=True)

    def tell_of_kept(self, body: JsonObject) -> None:
        """Record an Event for a deleted object without a finalizer, whose records stay in Kafka."""
        group_id = group_id_of(body)
        observation = self._context.observers.latest(cluster_of(body))
        seen = observation.groups.get(group_id) if observation else None
        if seen is None:
            return
        waiting = seen.retry.waiting if seen.retry else None
        counted = {"wait in retry topics": waiting, "are in the failed topic": seen.failed_records}
        parts = [f"{count} {where}" for where, count in counted.items() if count]
        if parts:
            note = f"records of Kafka group {group_id} that are kept: {' and '.join(parts)}"
            self._record(
                body, "RecordsKept", f"{note}; a ConsumerGroup with spec.retry and the same spec.groupId processes them"
            )

    async def end(self, session: GroupSession, body: JsonObject) -> Result:
        """One step of a deletion. Raises KubeError, to be retried."""
        context = self._context
        now = context.clock.wall()
        try:
            # What was cut of a spec that is too large is not needed to delete.
            gathered = await gather(context, {field: part for field, part in body.items() if field != TOO_LARGE})
        except ValidationError as error:
            await self._leave(body, f"its spec cannot be read: {error}")
            return Result()
        except UnreadableStateError as error:
            await self._leave(body, str(error))
            return Result()
        plan = make_plan(gathered, now, image=context.settings.consumer_image)
        context.observers.watch(gathered.key, gathered.cluster_key, plan.interest)
        step = deletion.decide_deletion(self._facts(gathered, plan), now)
        if step.phase is deletion.DeletionPhase.LEAVE:
            await self._leave(body, step.given_up)
            return Result()
        draining = step.phase is deletion.DeletionPhase.DRAIN
        await self._scale(gathered, plan, draining=draining)
        if gathered.older is None and gathered.on_its_cluster:
            self._kafka.remove_departed(session, gathered, plan.views.view.observed)
            if step.phase is deletion.DeletionPhase.UNDO:
                session.background.start(UNDO, partial(self._undo, gathered), seconds=ATTEMPT_SECONDS)
        if draining:
            timeout_s = gathered.group.spec.deletion.timeout_seconds
            self._record(body, "Draining", f"retry workers run until no record waits, at most {timeout_s} s")
        return Result(deletion.POLL_S)

    def _facts(self, gathered: Gathered, plan: Plan) -> deletion.DeletionFacts:
        body, group, cluster = gathered.body, gathered.group, gathered.cluster
        finalizers = body["metadata"].get("finalizers", ())
        pods = self._context.store.cache(POD).having(gathered.key)
        # By their labels, whoever owns them: a pod that lost its StatefulSet goes on handling records.
        counts = Counter(pod["metadata"]["labels"].get(labels.COMPONENT_LABEL) for pod in pods)
        return deletion.DeletionFacts(
            deletion=group.spec.deletion,
            deleted_at=times.from_text(body["metadata"]["deletionTimestamp"]) or 0.0,
            cluster_known=not (isinstance(cluster, Problem) and cluster.reason == CLUSTER_NOT_FOUND),
            reachable=gathered.on_its_cluster,
            owner=gathered.older is None,
            heir=f"{gathered.heir.namespace}/{gathered.heir.name}" if gathered.heir else "",
            heir_unsure=gathered.heir_unsure,
            orphaned=labels.ORPHAN in finalizers or self._has_orphans(gathered.key),
            has_retries=plan.views.intent is not None and gathered.published is not None,
            can_drain=gathered.parts[RETRY].body is not None
            and labels.FOREGROUND not in finalizers
            and not group.spec.suspend,
            workers=counts[MAIN.component],
            retry_workers=counts[RETRY.component],
            redrives=len(gathered.redrives),
            seen=plan.views.view.flow,
        )

    def _has_orphans(self, key: Key) -> bool:
        """True if a StatefulSet of this group has no owner. Its finalizer may be gone when an operator starts."""
        store, (namespace, name) = self._context.store, key
        found = (store.get(STATEFUL_SET, (namespace, part.child(name))) for part in (MAIN, RETRY))
        return any(each is not None and not each["metadata"].get("ownerReferences") for each in found)

    async def _scale(self, gathered: Gathered, plan: Plan, *, draining: bool) -> None:
        """Scale main workers to 0, and retry workers to the number that draining needs.

        Only existing StatefulSets are changed: in a terminating namespace others delete them.
        """
        store = self._context.store
        for part, found in gathered.parts.items():
            fleet = found.fleet
            if fleet is None or fleet.revision not in plan.fleet.templates or (part is RETRY and plan.retry is None):
                continue
            replicas = plan.retry.scale.replicas if part is RETRY and plan.retry is not None and draining else 0
            wanted = PartPlan(part=part, target=fleet.revision, replicas=replicas)
            try:
                await store.apply(plan.fleet.stateful_set(gathered, wanted), over=found.body)
            except (KubeConflictError, KubeForbiddenError, KubeInvalidError, KubeNotFoundError) as error:
                log.info("a StatefulSet is going already", extra={"key": "/".join(gathered.key), "error": str(error)})

    async def _undo(self, gathered: Gathered) -> None:
        """Delete topics and groups, then release the object.

        Raises NetError and KafkaError; the next attempt starts from the beginning.
        """
        group, had_retries = gathered.group, gathered.had_retries
        if not await self._is_still_ours(gathered):
            return  # the next step is decided from what is there now
        found = await self._context.observers.change(
            gathered.cluster_key, gathered.cluster_id, lambda admin: admin.delete_flow(group, had_retries=had_retries)
        )
        if found.refusals:
            first = found.refusals[0]
            note = f"{first.subject} could not be deleted: {first.reason}: {first.message}"
            self._record(gathered.body, "DeletionRefused", note, warning=True)
            return
        if found.waiting and self._context.clock.wall() < _drain_until(gathered):
            return  # something was written after the last look: it is drained first
        if found.deleted:
            self._record(gathered.body, "DeletedInKafka", f"deleted: {name_some(found.deleted)}")
        if found.waiting:
            kept = ", ".join(f"{count} in {topic}" for topic, count in sorted(found.waiting.items()))
            note = f"records still wait, so their topics are kept: {kept}"
            self._record(gathered.body, "DrainTimedOut", note, warning=True)
        if found.failed:
            topic = naming.failed_topic(group.group_id)
            self._record(gathered.body, "RecordsKept", f"{found.failed} records stay in topic {topic}")
        await set_finalizer(self._context.store, gathered.body, labels.FINALIZER, wanted=False)

    async def _is_still_ours(self, gathered: Gathered) -> bool:
        """True if the object is unchanged and has no rival, read live right before the action."""
        context, body = self._context, gathered.body
        found = await context.store.refresh(CONSUMER_GROUP, gathered.key)
        if found is None or found["metadata"]["uid"] != body["metadata"]["uid"] or found["spec"] != body["spec"]:
            return False
        return find_rivals(context, found) == NO_RIVALS

    async def _leave(self, body: JsonObject, given_up: str) -> None:
        """Release the object, with an Event about steps that were given up."""
        if given_up:
            note = f"topics and groups in Kafka are left as they are: {given_up}"
            self._record(body, "DeletionGivenUp", note, warning=True)
        await set_finalizer(self._context.store, body, labels.FINALIZER, wanted=False)

    def _record(self, body: JsonObject, reason: str, note: str, *, warning: bool = False) -> None:
        self._context.events.record(News(body, "Warning" if warning else "Normal", reason, note))


def _drain_until(gathered: Gathered) -> float:
    deleted_at = times.from_text(gathered.body["metadata"]["deletionTimestamp"]) or 0.0
    return deleted_at + gathered.group.spec.deletion.timeout_seconds
