"""Carries out the plan for a group's retries: the policies first, the retry workers after them, the news to pods last.

No worker may start before the policies that it mounts are there, and none may be told of policies that are not written
yet. The StatefulSet goes last when retries end: it is what tells the next visit that there is something to remove.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_consumer.contract import naming
from fleet_operator.clients.kinds import POD, POD_DISRUPTION_BUDGET, SERVICE, STATEFUL_SET, JsonObject, Kind
from fleet_operator.clients.kube import KubeConflictError, KubeNotFoundError
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.manifests import RETRY
from fleet_operator.planning.fleet.rollout import RevisionState
from fleet_operator.planning.retry.fleet import changed_at_of, has_retries, pods_to_tell, retry_stateful_set
from fleet_operator.planning.retry.plan import RetryPlan, retry_target
from fleet_operator.planning.retry.records import group_config_map
from fleet_operator.reconcilers.consumergroup.decide import Plan
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.context import Context, apply_owned, is_owned_by
from fleet_operator.reconcilers.transitions import ACTION
from fleet_operator.runtime.events import News


@dataclass(frozen=True, slots=True)
class RetryChildren:
    """One reconcile's hands on what one ConsumerGroup's retries need. Raises KubeErrors and ForeignObjectError."""

    context: Context
    gathered: Gathered
    plan: Plan
    retry: RetryPlan

    async def publish(self) -> None:
        """Write what workers should be told."""
        publication, before = self.retry.publication, self.gathered.published
        if publication is None or self.gathered.older is not None:
            return
        await self._apply(group_config_map(self.gathered.group, publication))
        if before is None or before.current != publication.current:
            name = f"{publication.policy}@{publication.current}"
            self._tell("PolicyPublished", f"failures from now on follow {name}")
        dropped = {revision.hash for revision in before.known} if before else set()
        dropped -= {revision.hash for revision in publication.known}
        if dropped:
            self._tell("PolicyForgotten", f"nothing waits under revision {', '.join(sorted(dropped))} any more")
        self._tell_of_kept_topics()

    def _tell_of_kept_topics(self) -> None:
        """Topics of removed delays that stay on the cluster, as the spec asks for."""
        publication, before = self.retry.publication, self.gathered.published
        if publication is None or before is None:
            return
        unread = set(before.delays) - set(publication.delays)
        if unread and self.gathered.group.spec.deletion.retry_topics == "Keep":
            topics = [naming.retry_topic(self.gathered.group.group_id, delay) for delay in sorted(unread)]
            note = f"nothing waits in {', '.join(topics)} and nobody reads them any more; they are yours to delete"
            self._tell("RetryTopicsKept", note)

    async def run_fleet(self) -> None:
        """The retry workers at their revision and count, with what stands beside them."""
        if self.retry.over:
            await self._remove_fleet()
            return
        intent, fleet = self.gathered.retry, self.retry.fleet
        assert intent is not None, "a plan for retries has an intent"
        target = retry_target(fleet, self.plan.decision.target, self.plan.templates, ending=intent.ending)
        if target is None or self.retry.publication is None or (fleet is None and self.gathered.older is not None):
            return
        group, replicas = self.gathered.group, self.retry.scale.replicas
        changed = fleet is None or fleet.replicas != replicas
        changed_at = self.context.clock.wall() if changed else changed_at_of(self.gathered.retry_stateful_set)
        wanted = retry_stateful_set(
            group,
            revision=target,
            pod_template=self.plan.templates[target],
            replicas=replicas,
            changed_at=changed_at,
        )
        await self._apply(manifests.headless_service(group, RETRY))
        await self._apply(manifests.disruption_budget(group, RETRY))
        await self._apply(wanted)
        if fleet is not None and changed:
            self._tell("RetryScaled", f"from {fleet.replicas} to {replicas} retry workers: {self.retry.scale.reason}")
        await self._free_refused(target)

    async def tell_pods(self) -> None:
        """Have running pods read the newest policies soon; one that is gone meanwhile needs none."""
        publication = self.retry.publication
        if publication is None:
            return
        pods = [
            pod for pod in (*self.gathered.workers, *self.gathered.retry_workers) if has_retries({"spec": pod["spec"]})
        ]
        for patch in pods_to_tell(pods, publication):
            try:
                self.context.store.learn(POD, await self.context.store.kube.apply(patch))
            except (KubeConflictError, KubeNotFoundError):
                continue

    async def _free_refused(self, target: str) -> None:
        """Unready pods of refused revisions hold up the way back, as in the main fleet."""
        fleet = self.retry.fleet
        if fleet is None or fleet.revision != target or not fleet.observed:
            return
        records = self.plan.records.values()
        refused = {record.hash for record in records if record.state is RevisionState.REJECTED} - {target}
        stuck = {pod.name for pod in self.retry.pods if pod.revision in refused and not pod.ready and not pod.deleting}
        for pod in self.gathered.retry_workers:
            if pod["metadata"]["name"] in stuck:
                await self.context.store.delete(POD, pod)

    async def _remove_fleet(self) -> None:
        """Retries have ended and nothing waits: their workers go. The policies stay, older revisions mount them."""
        fleet = self.gathered.retry_stateful_set
        if fleet is None:
            return
        name = self.gathered.group.metadata.name
        await self._remove(SERVICE, naming.retry_headless_service(name))
        await self._remove(POD_DISRUPTION_BUDGET, naming.retry_disruption_budget(name))
        await self.context.store.delete(STATEFUL_SET, fleet)
        self._tell("RetryWorkersRemoved", "spec.retry was removed, and nothing waits in the retry topics any more")

    async def _remove(self, kind: Kind, name: str) -> None:
        found = await self.context.store.kube.get(kind, self.gathered.group.metadata.namespace, name)
        if found is not None and is_owned_by(found, self.gathered.body):
            await self.context.store.delete(kind, found)

    async def _apply(self, body: JsonObject) -> None:
        await apply_owned(self.context.store, self.gathered.body, body)

    def _tell(self, reason: str, note: str) -> None:
        self.context.events.record(News(self.gathered.body, "Normal", reason, ACTION, note))
