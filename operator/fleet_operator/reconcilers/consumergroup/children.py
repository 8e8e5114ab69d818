"""Carries out a plan on a ConsumerGroup's children, in the one order in which every interruption is harmless.

Policies before whoever mounts them, records before what they describe, marks before what they allow, the StatefulSet
after all of these, removal last. An object
that has a child's name but is not ours is never taken over: the plan stops there and the status says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.clients.kinds import CONFIG_MAP, POD, JsonObject
from fleet_operator.clients.kube import KubeForbiddenError, KubeInvalidError
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.known_revisions import with_known
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.consumergroup.decide import Plan
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.retry_children import RetryChildren
from fleet_operator.reconcilers.context import Context, ForeignObjectError, apply_owned
from fleet_operator.reconcilers.routing import HANDLER_RECORD
from fleet_operator.reconcilers.transitions import ACTION
from fleet_operator.runtime.events import News

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Children:
    """One reconcile's hands on the children of one ConsumerGroup."""

    context: Context
    gathered: Gathered
    plan: Plan

    async def carry_out(self) -> Problem | None:
        """Do what the plan says; returns why the API server would not have it, if so. Raises other KubeErrors."""
        retry = self.plan.retry
        retries = RetryChildren(self.context, self.gathered, self.plan, retry) if retry is not None else None
        try:
            if retries is not None:
                await retries.publish()
            await self._record_revision()
            await self._check()
            await self._run_fleet()
            if retries is not None:
                await retries.run_fleet()
                await retries.tell_pods()
            await self._clean_up()
        except (KubeInvalidError, KubeForbiddenError, ForeignObjectError) as error:
            return Problem(conditions.REFUSED_BY_API_SERVER, str(error))
        return None

    async def _record_revision(self) -> None:
        """The handler's copy comes first: a record says by its existence that what it names is there."""
        revision, decision = self.plan.revision, self.plan.decision
        if revision is None:
            return
        group = self.gathered.group
        if decision.write_revision:
            handler = manifests.handler_config_map(group, revision)
            if handler is not None:
                await self._apply(_watched(handler))
        if decision.mark is not None:
            assert decision.mark.hash == revision.hash, "only the wanted revision is marked"
            await self._apply(_watched(manifests.revision_config_map(group, revision, decision.mark)))

    async def _check(self) -> None:
        """Remove answered checks, start the wanted one."""
        decision, revision = self.plan.decision, self.plan.revision
        for pod in self.gathered.checks:
            if pod["metadata"]["name"] in decision.delete_checks:
                await self.context.store.delete(POD, pod)
        if decision.run_check and revision is not None:
            pod = manifests.preflight_pod(
                self.gathered.group, revision=revision.hash, pod_template=revision.pod_template
            )
            await self._apply(pod)

    async def _run_fleet(self) -> None:
        """The workers at the target revision, with what stands beside them."""
        target, group = self.plan.decision.target, self.gathered.group
        if target is None:
            return
        revision = self.plan.revision
        if revision is not None and revision.hash == target:
            template = revision.pod_template
        else:
            template = self.plan.records[target].pod_template
        wanted = manifests.stateful_set(group, revision=target, pod_template=template, replicas=self.plan.replicas)
        await self._apply(manifests.headless_service(group))
        await self._apply(manifests.disruption_budget(group))
        await self._apply(with_known(wanted, self.plan.templates))
        self._tell_of_fleet(target)

    def _tell_of_fleet(self, target: str) -> None:
        """An Event for what the StatefulSet was just made to be."""
        fleet, replicas = self.plan.fleet, self.plan.replicas
        if fleet is None:
            self._tell("FleetCreated", f"{replicas} workers at revision {target}")
        elif fleet.revision != target:
            self._tell("RevisionApplied", f"from revision {fleet.revision} to {target}")
        elif fleet.replicas != replicas:
            self._tell("Scaled", f"from {fleet.replicas} to {replicas} workers")

    def _tell(self, reason: str, note: str) -> None:
        self.context.events.record(News(self.gathered.body, "Normal", reason, ACTION, note))

    async def _clean_up(self) -> None:
        """Pods that hold up a return to the last good revision, and records that nobody needs."""
        decision, name = self.plan.decision, self.gathered.group.metadata.name
        for pod in self.gathered.workers:
            if pod["metadata"]["name"] in decision.delete_pods:
                await self.context.store.delete(POD, pod)
        pruned = {naming.revision_config(name, old) for old in decision.prune}
        pruned |= {naming.revision_handler(name, old) for old in decision.prune}
        for config_map in self.gathered.config_maps:
            if config_map["metadata"]["name"] in pruned:
                await self.context.store.delete(CONFIG_MAP, config_map)

    async def _apply(self, body: JsonObject) -> None:
        await apply_owned(self.context.store, self.gathered.body, body)


def _watched(config_map: JsonObject) -> JsonObject:
    """A record with the label that its watch selects by."""
    metadata = config_map["metadata"]
    return {**config_map, "metadata": {**metadata, "labels": {**metadata["labels"], HANDLER_LABEL: HANDLER_RECORD}}}
