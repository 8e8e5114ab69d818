"""Carries out a plan on a ConsumerGroup's children, in the one order in which every interruption is harmless.

Policies come before the workers that mount them, records before the objects that they describe, marks before what they
allow, then the StatefulSets, pod annotations, and removals. Whatever of these the API server refuses, the fleet gets
its size at the revision that it has, and waiting retries their workers; nothing is removed then. An object that has a
child's name but another owner is never taken over: the plan stops there and the status reports it.
"""

from __future__ import annotations

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
from fleet_operator.planning.retry.publication import tell_of_kept
from fleet_operator.planning.retry.records import Published, group_config_map
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan
from fleet_operator.reconcilers.context import Context, ForeignObjectError, apply_owned, create_owned, is_owned_by
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.events import News
from fleet_operator.runtime.store import digest

REFUSED_RETRY_S: Final = 30.0
"""Pause before the API server is asked again for a child that it has refused."""


BUDGETED_WORKERS: Final = 2
"""Number of workers from which on a part has a disruption budget: it lets one of them be evicted at a time."""


@dataclass(frozen=True, slots=True)
class Children:
    context: Context
    gathered: Gathered
    plan: Plan

    async def carry_out(self) -> Problem | None:
        """Carry out the plan. Returns the first refusal of the API server, if any; raises other KubeErrors."""
        publication = self.plan.retry.publication if self.plan.retry is not None else None
        self._report_changed_pods()
        try:
            held = await _refusal_of(self._prepare(publication))
            if held is not None:
                for part in self.plan.parts:
                    await _refusal_of(self._resize(part))
                return held
            check = await _refusal_of(self._check())
            parts = [
                await _refusal_of(self._remove_part(part) if part.remove else self._apply_part(part))
                for part in self.plan.parts
            ]
            await self._notify_pods(publication)
            refused = next((refusal for refusal in parts if refusal is not None), None)
            if refused is None:
                await self._clean_up()
        except (KubeInvalidError, KubeForbiddenError) as error:
            return _refusal(error)
        except ForeignObjectError as error:
            # Often one of a group of the same name that was deleted just now: garbage collection takes a moment.
            return Problem(conditions.NAME_TAKEN, str(error))
        return check or refused

    async def _prepare(self, publication: Published | None) -> None:
        """Make what workers of the wanted revision need."""
        if publication is not None and self.gathered.older is None:
            await self._publish(publication)
        await self._publish_skips()
        await self._record_revision()

    def _report_changed_pods(self) -> None:
        """Tell of pods whose containers somebody has changed: to put them back is to delete them."""
        for pod in (pod for part in self.gathered.parts.values() for pod in part.pods):
            if editors := pod["metadata"].get(EDITED):
                note = (
                    f"Pod `{pod['metadata']['name']}` was changed by {editors}: its containers may not be those of its "
                    "revision; delete the pod to have it made again"
                )
                self.context.events.record(News(self.gathered.body, "Warning", "ChangedByOthers", note))

    async def _publish(self, publication: Published) -> None:
        before, group = self.gathered.published, self.gathered.group
        await (self._apply if before is not None else self._create)(group_config_map(group, publication))
        if before is None or before.current != publication.current:
            self._record("PolicyPublished", f"failures from now on follow {publication.policy}@{publication.current}")
        if before is None:
            return
        dropped = {revision.hash for revision in before.known} - {revision.hash for revision in publication.known}
        if dropped:
            self._record("PolicyForgotten", f"no record waits under revision {', '.join(sorted(dropped))} any more")
        if group.spec.deletion.retry_topics == "Keep":
            for note in tell_of_kept(group.group_id, before, publication, self.plan.views.view.flow):
                self._record("RetryTopicsKept", note)

    async def _notify_pods(self, publication: Published | None) -> None:
        """Have running pods read the newest policies and skipped records soon; a pod that is gone needs neither."""
        store = self.context.store
        pods = [pod for part in self.gathered.parts.values() for pod in part.pods]
        with_retries = [pod for pod in pods if has_retries({"spec": pod["spec"]})]
        policies = pods_with_old_policies(with_retries, publication) if publication is not None else {}
        skips = pods_with_old_skips(pods, self.gathered.group)
        for patch in notices(pods, policies, skips):
            try:
                store.learn(kinds.POD, await store.kube.apply(patch))
            except (KubeConflictError, KubeNotFoundError):
                continue

    async def _publish_skips(self) -> None:
        """A group that never had records to skip, and never grew, gets no ConfigMap; an emptied list is published as
        empty. It comes before the StatefulSet: the workers of a step read it when they start.

        Without records the name may be anybody's, and the file of a step is a convenience: a ConfigMap of another
        owner, or a refusal, is in the way of nothing.
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
        """The handler's copy comes first: a record proves by its existence that the objects it names exist."""
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
            await self._believe_siblings(found, wanted, siblings, proof)
        for sibling in siblings:
            await make(sibling)
        try:
            await make(_proving(self.plan.fleet.stateful_set(self.gathered, wanted), proof))
        except (KubeInvalidError, KubeForbiddenError):
            fleet = self.gathered.parts[wanted.part].fleet
            if fleet is not None and fleet.revision != wanted.target and fleet.revision in self.plan.fleet.templates:
                kept = self.plan.fleet.stateful_set(self.gathered, replace(wanted, target=fleet.revision))
                await self._apply(_proving(kept, proof))
            raise
        if wanted.event is not None:
            self._record(*wanted.event)

    async def _believe_siblings(
        self, found: kinds.JsonObject, wanted: PartPlan, siblings: list[kinds.JsonObject], proof: str
    ) -> None:
        """Believe the StatefulSet that its siblings are in place, or remove the budget of a fleet that became small.

        Before that it proves no longer that the budget is there: the fleet may grow again before it is gone.
        """
        if annotation_of(found, SIBLINGS_ANNOTATION) == proof:
            for sibling in siblings:
                self.context.store.trust(sibling)
        elif wanted.replicas < BUDGETED_WORKERS:
            await self._withdraw_proof(found)
            await self._remove(kinds.POD_DISRUPTION_BUDGET, wanted.part.child(self.gathered.group.metadata.name))

    async def _resize(self, wanted: PartPlan) -> None:
        """Give a part its number of workers at the revision that it has."""
        fleet = self.gathered.parts[wanted.part].fleet
        if fleet is not None and fleet.revision in self.plan.fleet.templates and not wanted.remove:
            await self._apply_part(replace(wanted, target=fleet.revision, event=None))

    async def _remove_part(self, wanted: PartPlan) -> None:
        """Delete a part's children, the StatefulSet last: it shows the next reconcile that something is left.

        Before that it proves no longer that the others are there: the part may be wanted again before it is gone. The
        policies stay, for older revisions mount them.
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
        """Delete pods that hold up the return to a good revision, and unused records."""
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
            note = f"{what} was changed by {others}: put back; what pods need belongs into spec.template"
            self.context.events.record(News(self.gathered.body, "Warning", "ChangedByOthers", note))

    def _record(self, reason: str, note: str) -> None:
        self.context.events.record(News(self.gathered.body, "Normal", reason, note))


def _proving(stateful_set: kinds.JsonObject, proof: str) -> kinds.JsonObject:
    """A StatefulSet that proves of its siblings that they were made before."""
    return kinds.annotated(stateful_set, SIBLINGS_ANNOTATION, proof)


async def _refusal_of(step: Awaitable[None]) -> Problem | None:
    """The API server's refusal of a step that holds up no other."""
    try:
        await step
    except (KubeInvalidError, KubeForbiddenError) as error:
        return _refusal(error)
    return None


def _refusal(error: KubeInvalidError | KubeForbiddenError) -> Problem:
    if isinstance(error, KubeInvalidError):
        return Problem(conditions.REFUSED_BY_API_SERVER, str(error))
    # A quota, a right, an admission policy: the revision is not to blame, and it may pass.
    return Problem(conditions.FORBIDDEN_BY_API_SERVER, f"{error}; tried again every {REFUSED_RETRY_S:.0f} s")


def _watched(config_map: kinds.JsonObject) -> kinds.JsonObject:
    """A record with the label that its watch selects by."""
    metadata = config_map["metadata"]
    return {**config_map, "metadata": {**metadata, "labels": {**metadata["labels"], HANDLER_LABEL: RECORD}}}
