"""Deletes ConsumerGroups whose `spec.deletion` requires steps in Kafka.

Topics and groups are read live immediately before they are deleted. The finalizer is removed in the same attempt, after
the brokers have answered.
"""

import logging
from collections import Counter
from contextlib import suppress
from functools import partial

from pydantic import ValidationError

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup, conditions, model, refs
from fleet_operator.clients.kinds import KAFKA_CLUSTER, POD, STATEFUL_SET, JsonObject
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
from fleet_operator.runtime.events import Event

log = logging.getLogger(__name__)


class DeletionWork:
    def __init__(self, context: Context, kafka: KafkaSide) -> None:
        self._context = context
        self._kafka = kafka

    async def keep_finalizer(self, body: JsonObject, group: ConsumerGroup) -> None:
        """Set the finalizer if `spec.deletion` needs it, otherwise remove it. The finalizer is set before any child is
        created.

        The KafkaCluster also gets a finalizer, and is thus kept until the steps in Kafka are done; the KafkaCluster's
        own reconcile removes that finalizer.
        """
        store, wanted = self._context.store, deletion.wants_finalizer(group.spec.deletion)
        if wanted != has_finalizer(body):
            await set_finalizer(store, body, labels.FINALIZER, wanted=wanted)
        cluster = store.get(KAFKA_CLUSTER, refs.cluster_of(body)) if wanted else None
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            return
        if not has_finalizer(cluster, labels.CLUSTER_FINALIZER):
            with suppress(
                KubeForbiddenError
            ):  # an older chart does not grant this permission; the group's reconcile continues
                await set_finalizer(store, cluster, labels.CLUSTER_FINALIZER, wanted=True)

    def report_kept(self, body: JsonObject) -> None:
        """Record an Event about records that stay in Kafka after an object without a finalizer was deleted."""
        group_id = refs.group_id_of(body)
        observation = self._context.observers.latest(refs.cluster_of(body))
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

    async def end(self, session: GroupSession, body: JsonObject) -> float | None:
        """Carry out one step of a deletion. Returns the seconds until the next step, None after the last step. Raises
        KubeError; the caller retries."""
        context = self._context
        now = context.clock.wall()
        try:
            # A spec that is too large is cut, but a deletion does not need the missing fields.
            gathered = await gather(context, {field: part for field, part in body.items() if field != model.TOO_LARGE})
        except (ValidationError, UnreadableStateError) as error:
            invalid = isinstance(error, ValidationError)
            await self._leave(body, f"its spec cannot be read: {error}" if invalid else str(error))
            return None
        plan = make_plan(gathered, now, image=context.settings.consumer_image)
        context.observers.watch(gathered.key, gathered.cluster_key, plan.subscription)
        step = deletion.decide_deletion(self._facts(gathered, plan), now)
        if step.phase is deletion.DeletionPhase.LEAVE:
            await self._leave(body, step.given_up)
            return None
        draining = step.phase is deletion.DeletionPhase.DRAIN
        await self._scale(gathered, plan, draining=draining)
        if gathered.older is None and gathered.on_its_cluster:
            self._kafka.remove_departed(session, gathered, plan.views.view.observed)
            if step.phase is deletion.DeletionPhase.UNDO:
                session.background.start("deletion", partial(self._undo, gathered), seconds=ATTEMPT_SECONDS)
        if draining:
            timeout_s = gathered.group.spec.deletion.timeout_seconds
            self._record(body, "Draining", f"retry workers run until no more records wait, at most {timeout_s} s")
        return deletion.POLL_S

    def _facts(self, gathered: Gathered, plan: Plan) -> deletion.DeletionFacts:
        body, group, cluster = gathered.body, gathered.group, gathered.cluster
        finalizers = body["metadata"].get("finalizers", ())
        pods = self._context.store.cache(POD).having(gathered.key)
        # Count pods by label, not by owner, because a pod that lost its StatefulSet still handles records.
        counts = Counter(pod["metadata"]["labels"].get(labels.COMPONENT_LABEL) for pod in pods)
        return deletion.DeletionFacts(
            deletion=group.spec.deletion,
            deleted_at=times.from_text(body["metadata"]["deletionTimestamp"]) or 0.0,
            cluster_known=not (isinstance(cluster, Problem) and cluster.reason == conditions.CLUSTER_NOT_FOUND),
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
        """True if a StatefulSet of this group has no owner. A deletion with `--cascade=orphan` leaves such a
        StatefulSet. The StatefulSet shows this kind of deletion even after Kubernetes has removed the `orphan`
        finalizer, for example while no operator ran."""
        store, (namespace, name) = self._context.store, key
        found = (store.get(STATEFUL_SET, (namespace, part.child(name))) for part in (MAIN, RETRY))
        return any(each is not None and not each["metadata"].get("ownerReferences") for each in found)

    async def _scale(self, gathered: Gathered, plan: Plan, *, draining: bool) -> None:
        """Scale main workers to 0, and retry workers to the number that draining needs.

        A missing StatefulSet is not created again: in a terminating namespace, other clients delete the StatefulSets.
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
                log.info(
                    "a StatefulSet cannot be scaled for a deletion",
                    extra={"key": "/".join(gathered.key), "error": str(error)},
                )

    async def _undo(self, gathered: Gathered) -> None:
        """Delete topics and groups in Kafka, then remove the finalizer of the object.

        Raises NetError and KafkaError; the next attempt starts from the beginning.
        """
        group, had_retries, body = gathered.group, gathered.had_retries, gathered.body
        deleted_at = times.from_text(body["metadata"]["deletionTimestamp"]) or 0.0
        is_late = self._context.clock.wall() >= deleted_at + group.spec.deletion.timeout_seconds
        # Read the object live immediately before the action, because the object may have changed or may have a new
        # rival.
        live = await self._context.store.read_again(body)
        if live is None or live["spec"] != body["spec"] or find_rivals(self._context, live) != NO_RIVALS:
            return  # the deletion's next step decides again
        found = await self._context.observers.change(
            gathered.cluster_key,
            gathered.cluster_id,
            lambda admin: admin.delete_flow(group, had_retries=had_retries, partly=is_late),
        )
        if found.refusals:
            first = found.refusals[0]
            note = f"{first.subject} could not be deleted: {first.reason}: {first.message}"
            self._record(body, "DeletionRefused", note, warning=True)
            return
        if found.waiting and not is_late:
            return  # records were written after the last poll, and must be drained first
        if found.deleted:
            self._record(body, "DeletedInKafka", f"deleted: {name_some(found.deleted)}")
        if found.waiting:
            kept = ", ".join(f"{count} in {topic}" for topic, count in sorted(found.waiting.items()))
            note = f"records still wait for a retry, so their topics are kept: {kept}"
            self._record(body, "DrainTimedOut", note, warning=True)
        if found.failed:
            topic = naming.failed_topic(group.group_id)
            self._record(body, "RecordsKept", f"{found.failed} records stay in topic {topic}")
        await set_finalizer(self._context.store, body, labels.FINALIZER, wanted=False)

    async def _leave(self, body: JsonObject, given_up: str) -> None:
        """Remove the object's finalizer; record an Event if steps in Kafka were abandoned."""
        if given_up:
            note = f"topics and groups in Kafka are left as they are: {given_up}"
            self._record(body, "DeletionGivenUp", note, warning=True)
        await set_finalizer(self._context.store, body, labels.FINALIZER, wanted=False)

    def _record(self, body: JsonObject, reason: str, note: str, *, warning: bool = False) -> None:
        self._context.events.record(Event(body, "Warning" if warning else "Normal", reason, note))
