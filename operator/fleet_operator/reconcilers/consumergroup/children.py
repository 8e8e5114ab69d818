"""Applies a plan to a ConsumerGroup's children, in an order in which an interruption at any point is harmless.

The order: policies, before workers mount them; revision records, before workers run the revisions; check pods;
StatefulSets; pod annotations; clean-up. If the API server refuses a policy or record, no object is removed. The fleet
is still scaled at its present revision, so that workers handle the waiting retries. An object with a child's name but
another owner is never taken over: the plan stops, and the status reports the object.
"""

from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.clients import kinds
from fleet_operator.clients.kube import KubeConflictError, KubeForbiddenError, KubeInvalidError, KubeNotFoundError
from fleet_operator.planning.drift import EDITED
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.manifests import notices
from fleet_operator.planning.fleet.parts import PartPlan
from fleet_operator.planning.labels import RECORD, SIBLINGS_ANNOTATION, annotation_of
from fleet_operator.planning.offsets.skips import places_of, pods_with_old_skips, skip_config_map
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.fleet import has_retries, pods_with_old_policies
from fleet_operator.planning.retry.published_policies import report_kept
from fleet_operator.planning.retry.records import Published, group_config_map
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan
from fleet_operator.reconcilers.context import Context, ForeignObjectError, apply_owned, create_owned, is_owned_by
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.events import Event
from fleet_operator.runtime.store import digest

REFUSED_RETRY_S: Final = 30.0
"""Pause in seconds before the operator repeats a write that the API server refused."""

BUDGETED_WORKERS: Final = 2
"""Smallest number of workers for which a part gets a PodDisruptionBudget. The budget allows one eviction at a time."""


@dataclass(frozen=True, slots=True)
class Children:
    context: Context
    gathered: Gathered
    plan: Plan

    async def carry_out(self) -> Problem | None:
        """Carry out the plan. Returns the first problem (the API server refused a write, or an object of another owner
        has a child's name), or None. Raises other KubeErrors."""
        published = self.plan.retry.published if self.plan.retry is not None else None
        self._report_changed_pods()
        try:
            held = await _refusal_of(self._prepare(published))
            if held is not None:
                for part in self.plan.parts:
                    await _refusal_of(self._resize(part))
                return held
            check = await _refusal_of(self._check())
            parts = [
                await _refusal_of(self._remove_part(part) if part.remove else self._apply_part(part))
                for part in self.plan.parts
            ]
            await self._notify_pods(published)
            refused = next((refusal for refusal in parts if refusal is not None), None)
            if refused is None:
                await self._clean_up()
        except (KubeInvalidError, KubeForbiddenError) as error:
            return _refusal(error)
        except ForeignObjectError as error:
            # Often the object is a child of a deleted namesake that garbage collection has not removed yet.
            return Problem(conditions.NAME_TAKEN, str(error))
        return check or refused

    async def _prepare(self, published: Published | None) -> None:
        """Create or update the ConfigMaps that workers of the wanted revision need."""
        if published is not None and self.gathered.older is None:
            await self._publish(published)
        await self._publish_skips()
        await self._record_revision()

    def _report_changed_pods(self) -> None:
        """Record an Event for each pod whose containers somebody has changed. Only a deletion of the pod reverts such a
        change."""
        for pod in (pod for part in self.gathered.parts.values() for pod in part.pods):
            if editors := pod["metadata"].get(EDITED):
                note = (
                    f"Pod `{pod['metadata']['name']}` was changed by {editors}: its containers may differ from "
                    "those of its revision; delete the pod to have it created again"
                )
                self.context.events.record(Event(self.gathered.body, "Warning", "ChangedByOthers", note))

    async def _publish(self, published: Published) -> None:
        before, group = self.gathered.published, self.gathered.group
        await (self._apply if before is not None else self._create)(group_config_map(group, published))
        if before is None or before.current != published.current:
            self._record(
                "PolicyPublished",
                f"records that fail from now on follow policy revision {published.policy}@{published.current}",
            )
        if before is None:
            return
        dropped = {revision.hash for revision in before.known} - {revision.hash for revision in published.known}
        if dropped:
            self._record(
                "PolicyForgotten", f"removed policy revisions that no waiting record uses: {', '.join(sorted(dropped))}"
            )
        if group.spec.deletion.retry_topics == "Keep":
            for note in report_kept(group.group_id, before, published, self.plan.views.view.flow):
                self._record("RetryTopicsKept", note)

    async def _notify_pods(self, published: Published | None) -> None:
        """Annotate running pods, so that they soon read the newest policies and skipped records."""
        store = self.context.store
        pods = [pod for part in self.gathered.parts.values() for pod in part.pods]
        with_retries = [pod for pod in pods if has_retries({"spec": pod["spec"]})]
        policies = pods_with_old_policies(with_retries, published) if published is not None else {}
        skips = pods_with_old_skips(pods, self.gathered.group)
        for patch in notices(pods, policies, skips):
            try:
                store.learn(kinds.POD, await store.kube.apply(patch))
            except (KubeConflictError, KubeNotFoundError):
                continue

    async def _publish_skips(self) -> None:
        """Publish the records to skip and the scaling step in a ConfigMap.

        The ConfigMap is written before the StatefulSet, because new workers read the ConfigMap at their start. A group
        that never had records to skip or a scaling step gets no ConfigMap. If the list of records becomes empty, the
        empty list is published.

        The scaling step is only an optimization. So if the ConfigMap is needed only for the scaling step, two errors
        are ignored: the API server refuses the ConfigMap, or another owner has a ConfigMap of this name.
        """
        group, step = self.gathered.group, self.plan.join_step
        name = naming.skip_config(group.metadata.name)
        found = self.context.store.get(kinds.CONFIG_MAP, (group.metadata.namespace, name))
        if places_of(group) or (step is None and found is not None and is_owned_by(found, self.gathered.body)):
            await self._apply(skip_config_map(group, step))
        elif step is not None:
            with suppress(ForeignObjectError, KubeInvalidError, KubeForbiddenError):
                await self._apply(skip_config_map(group, step))

    async def _record_revision(self) -> None:
        """Store the record of the wanted revision. The copy of the handler source is created first, because a record
        shows that the objects it refers to exist."""
        revision, decision = self.plan.fleet.wanted, self.plan.fleet.decision
        group = self.gathered.group
        if revision is not None and decision.write_revision:
            handler = manifests.handler_config_map(group, revision)
            if handler is not None:
                await self._create(_watched(handler))
            await self._create(_watched(manifests.revision_config_map(group, revision)))

    async def _check(self) -> None:
        decision, revision = self.plan.fleet.decision, self.plan.fleet.wanted
        await self._delete_pods(self.gathered.checks, decision.delete_checks)
        if decision.run_check and revision is not None:
            template = revision.pod_template
            await self._create(
                manifests.preflight_pod(self.gathered.group, revision=revision.hash, pod_template=template)
            )

    async def _apply_part(self, wanted: PartPlan) -> None:
        if wanted.target is None:
            return
        group, found = self.gathered.group, self.gathered.parts[wanted.part].body
        siblings = [manifests.headless_service(group, wanted.part)]
        if wanted.replicas >= BUDGETED_WORKERS:
            siblings.append(manifests.disruption_budget(group, wanted.part))
        proof, make = digest(siblings), self._apply if found is not None else self._create
        if found is not None:
            await self._assume_siblings(found, wanted, siblings, proof)
        for sibling in siblings:
            await make(sibling)
        try:
            # The annotation with the siblings' digest proves that Service and PodDisruptionBudget have been applied.
            stateful_set = self.plan.fleet.stateful_set(self.gathered, wanted)
            await make(kinds.annotated(stateful_set, SIBLINGS_ANNOTATION, proof))
        except (KubeInvalidError, KubeForbiddenError):
            fleet = self.gathered.parts[wanted.part].fleet
            if fleet is not None and fleet.revision != wanted.target and fleet.revision in self.plan.fleet.templates:
                kept = self.plan.fleet.stateful_set(self.gathered, replace(wanted, target=fleet.revision))
                await self._apply(kinds.annotated(kept, SIBLINGS_ANNOTATION, proof))
            raise
        if wanted.event is not None:
            self._record(*wanted.event)

    async def _assume_siblings(
        self, found: kinds.JsonObject, wanted: PartPlan, siblings: list[kinds.JsonObject], proof: str
    ) -> None:
        """Assume that the siblings of a StatefulSet (Service and PodDisruptionBudget) exist, if the StatefulSet has
        their digest.

        Without the digest, delete the budget if the part now has too few workers for one. The annotation with the
        digest is removed before the budget is deleted, because the part may grow again in between.
        """
        if annotation_of(found, SIBLINGS_ANNOTATION) == proof:
            for sibling in siblings:
                self.context.store.trust(sibling)
        elif wanted.replicas < BUDGETED_WORKERS:
            await self._withdraw_proof(found)
            await self._remove(kinds.POD_DISRUPTION_BUDGET, wanted.part.child(self.gathered.group.metadata.name))

    async def _resize(self, wanted: PartPlan) -> None:
        """Scale a part to its planned number of workers at its present revision."""
        fleet = self.gathered.parts[wanted.part].fleet
        if fleet is not None and fleet.revision in self.plan.fleet.templates and not wanted.remove:
            await self._apply_part(replace(wanted, target=fleet.revision, event=None))

    async def _remove_part(self, wanted: PartPlan) -> None:
        """Delete a part's children. The StatefulSet is deleted last: while it exists, reconciles continue the deletion.

        The annotation with the siblings' digest proves that the siblings exist. It is removed first, because the part
        may be wanted again before the StatefulSet is deleted. Policies stay, because older revisions mount them.
        """
        found = self.gathered.parts[wanted.part].body
        if found is None:
            return
        found = await self._withdraw_proof(found)
        name = self.gathered.group.metadata.name
        await self._remove(kinds.SERVICE, wanted.part.child(name))
        await self._remove(kinds.POD_DISRUPTION_BUDGET, wanted.part.child(name))
        await self.context.store.delete(kinds.STATEFUL_SET, found)
        if wanted.event is not None:
            self._record(*wanted.event)

    async def _withdraw_proof(self, stateful_set: kinds.JsonObject) -> kinds.JsonObject:
        metadata, store = stateful_set["metadata"], self.context.store
        if annotation_of(stateful_set, SIBLINGS_ANNOTATION) is None:
            return stateful_set
        head = {"apiVersion": kinds.STATEFUL_SET.api_version, "kind": kinds.STATEFUL_SET.kind}
        kept = {key: metadata[key] for key in ("namespace", "name", "resourceVersion")}
        withdrawn = {**head, "metadata": {**kept, "annotations": {SIBLINGS_ANNOTATION: None}}}
        try:
            stored = await store.kube.merge(withdrawn)
        except (KubeConflictError, KubeNotFoundError):
            await store.refresh(kinds.STATEFUL_SET, key_of(stateful_set))
            raise
        store.learn(kinds.STATEFUL_SET, stored)
        return stored

    async def _clean_up(self) -> None:
        """Delete pods that block a rollback to a good revision, and delete records of unused revisions."""
        for part in self.plan.parts:
            await self._delete_pods(self.gathered.parts[part.part].pods, part.delete_pods)
        prune, name = self.plan.fleet.decision.prune, self.gathered.group.metadata.name
        pruned = {naming.revision_config(name, old) for old in prune}
        pruned |= {naming.revision_handler(name, old) for old in prune}
        for config_map in self.gathered.config_maps:
            if config_map["metadata"]["name"] in pruned:
                await self.context.store.delete(kinds.CONFIG_MAP, config_map)

    async def _delete_pods(self, pods: tuple[kinds.JsonObject, ...], names: tuple[str, ...]) -> None:
        for pod in pods:
            if pod["metadata"]["name"] in names:
                await self.context.store.delete(kinds.POD, pod)

    async def _remove(self, kind: kinds.Kind, name: str) -> None:
        found = await self.context.store.kube.get(kind, self.gathered.group.metadata.namespace, name)
        if found is not None and is_owned_by(found, self.gathered.body):
            await self.context.store.delete(kind, found)

    async def _apply(self, body: kinds.JsonObject) -> None:
        self._tell_of_others(body, await apply_owned(self.context.store, self.gathered.body, body))

    async def _create(self, body: kinds.JsonObject) -> None:
        self._tell_of_others(body, await create_owned(self.context.store, self.gathered.body, body))

    def _tell_of_others(self, body: kinds.JsonObject, others: str) -> None:
        if others:
            what = f"{body['kind']} `{body['metadata']['name']}`"
            note = f"{what} was changed by {others}: the change was reverted; to change the pods, edit spec.template"
            self.context.events.record(Event(self.gathered.body, "Warning", "ChangedByOthers", note))

    def _record(self, reason: str, note: str) -> None:
        self.context.events.record(Event(self.gathered.body, "Normal", reason, note))


async def _refusal_of(step: Awaitable[None]) -> Problem | None:
    """Await a step; returns the API server's refusal, or None if the API server accepted the step."""
    try:
        await step
    except (KubeInvalidError, KubeForbiddenError) as error:
        return _refusal(error)
    return None


def _refusal(error: KubeInvalidError | KubeForbiddenError) -> Problem:
    if isinstance(error, KubeInvalidError):
        return Problem(conditions.REFUSED_BY_API_SERVER, str(error))
    # The revision is not the cause. The cause is a quota, a permission or an admission policy, which may change.
    return Problem(
        conditions.FORBIDDEN_BY_API_SERVER, f"{error}; the operator tries again every {REFUSED_RETRY_S:.0f} s"
    )


def _watched(config_map: kinds.JsonObject) -> kinds.JsonObject:
    """Add to a ConfigMap the label that the watch of ConfigMaps selects."""
    metadata = config_map["metadata"]
    return {**config_map, "metadata": {**metadata, "labels": {**metadata["labels"], HANDLER_LABEL: RECORD}}}
