"""Publication of a group's retry policies: the ConfigMap first, the running pods after it."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_consumer.contract import naming
from fleet_operator.clients.kinds import POD
from fleet_operator.clients.kube import KubeConflictError, KubeNotFoundError
from fleet_operator.planning.retry.fleet import has_retries, pods_to_notify
from fleet_operator.planning.retry.records import Published, group_config_map
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.context import Context, apply_owned
from fleet_operator.reconcilers.transitions import ACTION
from fleet_operator.runtime.events import News


@dataclass(frozen=True, slots=True)
class Policies:
    """One publication for one ConsumerGroup. Raises KubeErrors and ForeignObjectError."""

    context: Context
    gathered: Gathered
    publication: Published

    async def publish(self) -> None:
        """Write the ConfigMap."""
        publication, before = self.publication, self.gathered.published
        if self.gathered.older is not None:
            return
        await apply_owned(self.context.store, self.gathered.body, group_config_map(self.gathered.group, publication))
        if before is None or before.current != publication.current:
            name = f"{publication.policy}@{publication.current}"
            self._record("PolicyPublished", f"failures from now on follow {name}")
        if before is None:
            return
        dropped = {revision.hash for revision in before.known} - {revision.hash for revision in publication.known}
        if dropped:
            self._record("PolicyForgotten", f"no record waits under revision {', '.join(sorted(dropped))} any more")
        self._record_kept_topics(before)

    def _record_kept_topics(self, before: Published) -> None:
        """An Event about topics of removed delays that the spec keeps on the cluster."""
        unread = set(before.delays) - set(self.publication.delays)
        if unread and self.gathered.group.spec.deletion.retry_topics == "Keep":
            topics = [naming.retry_topic(self.gathered.group.group_id, delay) for delay in sorted(unread)]
            note = f"no record waits in {', '.join(topics)} and no worker reads them any more: delete them if unused"
            self._record("RetryTopicsKept", note)

    async def notify_pods(self) -> None:
        """Have running pods read the newest policies soon; a pod that is gone needs none."""
        pods = [pod for part in self.gathered.parts.values() for pod in part.pods if has_retries({"spec": pod["spec"]})]
        for patch in pods_to_notify(pods, self.publication):
            try:
                self.context.store.learn(POD, await self.context.store.kube.apply(patch))
            except (KubeConflictError, KubeNotFoundError):
                continue

    def _record(self, reason: str, note: str) -> None:
        self.context.events.record(News(self.gathered.body, "Normal", reason, ACTION, note))
