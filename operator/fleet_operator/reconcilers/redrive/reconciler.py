"""Reconciles Redrive: gather, decide, do one thing about its Job, publish.

Caches are enough to decide that nothing is to be done. Before a run is started, and before an end is written down for
ever, everything is read live, and one Redrive at a time: two that both see nobody at work must not both begin.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import ValidationError

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster, Redrive, conditions
from fleet_operator.api.v1alpha1.model import CustomResource
from fleet_operator.api.v1alpha1.redrive import FINAL_PHASES
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, JOB, KAFKA_CLUSTER, POD, REDRIVE, JsonObject, Kind
from fleet_operator.clients.kube import KubeConflictError, KubeForbiddenError, KubeInvalidError
from fleet_operator.planning.labels import COMPONENT_LABEL, GROUP_LABEL
from fleet_operator.planning.observation import ClusterObservation, as_of
from fleet_operator.planning.redrive import manifests as redrive_manifests
from fleet_operator.planning.redrive.manifests import COMPONENT
from fleet_operator.planning.redrive.needs import find_obstacle, find_refusal, target_of
from fleet_operator.planning.redrive.phase import Act, RedriveDecision, RedriveFacts, decide
from fleet_operator.planning.redrive.readings import at_work, read_job, read_run_pods, redrive_of
from fleet_operator.planning.redrive.status import invalid_redrive_status, project_redrive_status, renew_final_status
from fleet_operator.reconcilers.claims import older_claim
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.owned import ForeignObjectError, is_owned_by
from fleet_operator.reconcilers.publishing import publish
from fleet_operator.reconcilers.redrive.watch import RedriveWatch
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Result

log = logging.getLogger(__name__)

M = TypeVar("M", bound=CustomResource)

WATCH_SECONDS: Final = 5.0
"""How often a Redrive that runs or waits is looked at: no watch tells of offsets, or that a topic has become usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A Redrive and what it depends on, as found."""

    body: JsonObject
    facts: RedriveFacts
    group: ConsumerGroup | None
    cluster: KafkaCluster | None
    observation: ClusterObservation | None
    job: JsonObject | None


class RedriveReconciler:
    """Keeps each Redrive's Job and status as its object says."""

    def __init__(self, context: Context, watch: RedriveWatch) -> None:
        self._context = context
        self._watch = watch
        self._one_at_a_time = asyncio.Lock()

    async def reconcile(self, key: Key) -> Result:
        """Bring one Redrive one step closer to its end; raises KubeError to be tried again."""
        context = self._context
        body = context.store.get(REDRIVE, key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._watch.forget(key)
            context.statuses.forget(REDRIVE.kind, key)
            return Result()
        now, generation = context.clock.wall(), body["metadata"].get("generation", 0)
        try:
            redrive = Redrive.model_validate(body)
        except ValidationError as error:
            status = invalid_redrive_status(generation, str(error), body.get("status") or {}, now)
            return Result(await publish(context, body, status))
        if redrive.is_final:
            self._watch.forget(key)
            return Result(await publish(context, body, renew_final_status(redrive.status, generation)))
        gathered, decision = await self._advance(body, redrive)
        seen = self._watch.latest(key)
        status = project_redrive_status(
            gathered.facts, decision, seen.progress if seen else None, seen.per_second if seen else None, now
        )
        if decision.phase == "Running" and gathered.group is not None:
            group_id = naming.redrive_group(gathered.group.group_id, redrive.metadata.uid)
            self._watch.ask(key, _cluster_key(gathered.group), group_id)
        again = await publish(context, body, status)
        watched = decision.phase in ("Running", "Pending") or gathered.facts.halted
        if again is not None and watched:
            again = min(again, WATCH_SECONDS)
        return Result(again)

    async def _advance(self, body: JsonObject, redrive: Redrive) -> tuple[Gathered, RedriveDecision]:
        """Decide and act; what the API server will not have is an obstacle like any other."""
        gathered = self._from_caches(body, redrive)
        decision = decide(gathered.facts)
        try:
            if decision.act in (Act.CREATE, Act.RESUME) or decision.phase in FINAL_PHASES:
                # An end that turns out to be none may become a start.
                async with self._one_at_a_time:
                    gathered = await self._live(body, redrive)
                    decision = decide(gathered.facts)
                    await self._act(gathered, decision.act)
            else:
                await self._act(gathered, decision.act)
        except (KubeInvalidError, KubeForbiddenError, ForeignObjectError) as error:
            decision = RedriveDecision("Pending", conditions.REFUSED_BY_API_SERVER, str(error))
        return gathered, decision

    def _from_caches(self, body: JsonObject, redrive: Redrive) -> Gathered:
        namespace, _ = key_of(body)
        index = (namespace, redrive.spec.group_ref.name)
        store = self._context.store
        return self._gathered(body, redrive, store.cache(JOB).having(index), store.cache(POD).having(index))

    async def _live(self, body: JsonObject, redrive: Redrive) -> Gathered:
        namespace, _ = key_of(body)
        store = self._context.store
        selector = f"{GROUP_LABEL}={redrive.spec.group_ref.name},{COMPONENT_LABEL}={COMPONENT}"
        jobs = await store.list(JOB, namespace, selector)
        pods = await store.list(POD, namespace, selector)
        return self._gathered(body, redrive, jobs.items, pods.items)

    def _gathered(self, body: JsonObject, redrive: Redrive, jobs: list[JsonObject], pods: list[JsonObject]) -> Gathered:
        """`jobs` and `pods` are those of the group; only what belongs to Redrives counts."""
        context, key = self._context, key_of(body)
        group_body = context.store.get(CONSUMER_GROUP, (key[0], redrive.spec.group_ref.name))
        gone = group_body is None or "deletionTimestamp" in group_body["metadata"]
        group = None if gone else _parsed(ConsumerGroup, group_body)
        cluster = observation = older = None
        if group is not None and group_body is not None:
            older = older_claim(context, group_body)
            cluster = _parsed(KafkaCluster, context.store.get(KAFKA_CLUSTER, _cluster_key(group)))
            observation = self._observation(cluster, _cluster_key(group))
        job = next((found for found in jobs if is_owned_by(found, body)), None)
        mine = [pod for pod in pods if redrive_of(pod) == key[1]]
        facts = RedriveFacts(
            redrive=redrive,
            obstacle=find_obstacle(redrive, group, cluster, observation, older=older),
            refusal=find_refusal(redrive),
            failed_topic_id=_failed_topic_id(group, observation),
            group_gone=gone,
            job=read_job(job),
            pods=read_run_pods(mine, job_uid=job["metadata"]["uid"] if job else ""),
            rival=self._rival(body, jobs, pods),
        )
        return Gathered(body=body, facts=facts, group=group, cluster=cluster, observation=observation, job=job)

    def _observation(self, cluster: KafkaCluster | None, key: Key) -> ClusterObservation | None:
        if cluster is None:
            return None
        interval = float(cluster.spec.observe_interval_seconds)
        return as_of(self._context.observers.latest(key), interval_s=interval, now=self._context.clock.wall())

    def _rival(self, body: JsonObject, jobs: list[JsonObject], pods: list[JsonObject]) -> str | None:
        """Who must come before this Redrive: one that is at work, else the oldest that wants to be."""
        namespace, name = key_of(body)
        older = [
            other
            for other in self._context.store.cache(REDRIVE).having((namespace, body["spec"]["groupRef"]["name"]))
            if _wants_to_run(other) and _age(other) < _age(body)
        ]
        waiting = [key_of(other)[1] for other in sorted(older, key=_age)]
        return next((other for other in (*at_work(jobs, pods), *waiting) if other != name), None)

    async def _act(self, gathered: Gathered, act: Act) -> None:
        store = self._context.store
        match act:
            case Act.NOTHING:
                return
            case Act.CREATE:
                await self._create(gathered)
                return
            case _:
                assert gathered.job is not None, "only a Job that is there is changed"
        if act is Act.DELETE:
            await store.delete(JOB, gathered.job)
            return
        # Replaced and not applied: a Job's template can never change, and this operator might render another one.
        found = await store.kube.get(JOB, *key_of(gathered.job))
        if found is not None and is_owned_by(found, gathered.body):
            spec = {**found["spec"], "suspend": act is Act.SUSPEND}
            store.learn(JOB, await store.kube.replace({**found, "spec": spec}))

    async def _create(self, gathered: Gathered) -> None:
        """The settings first, then the Job that reads them."""
        redrive, group, cluster = gathered.facts.redrive, gathered.group, gathered.cluster
        assert group is not None, "a Redrive without its group has an obstacle"
        assert cluster is not None, "a Redrive without its cluster has an obstacle"
        assert gathered.observation is not None, "a Redrive whose cluster was never seen has an obstacle"
        kube = self._context.store.kube
        if not await self._context.store.is_living(gathered.body):
            raise KubeConflictError(f"Redrive `{redrive.metadata.name}` is gone: nothing is made for it")
        target = target_of(group, gathered.observation)
        settings = redrive_manifests.config_map(
            redrive, redrive_manifests.redrive_config(redrive, group, cluster, target)
        )
        await self._claim(gathered, CONFIG_MAP, settings)
        await kube.apply(settings)  # not by way of the store, for no watch covers it
        job = redrive_manifests.job(redrive, group, cluster, image=self._context.settings.consumer_image)
        try:
            self._context.store.learn(JOB, await kube.create(job))
        except KubeConflictError:
            await self._claim(gathered, JOB, job)
            raise  # ours, made a moment ago: the next reconcile sees it
        log.info("redrive started", extra={"key": "/".join(key_of(gathered.body)), "group": group.group_id})

    async def _claim(self, gathered: Gathered, kind: Kind, body: JsonObject) -> None:
        """Make sure that a child's name is free or ours."""
        found = await self._context.store.kube.get(kind, *key_of(body))
        if found is not None and not is_owned_by(found, gathered.body):
            raise ForeignObjectError(
                f"{kind} `{key_of(body)[1]}` exists and is not of this Redrive: remove it, or make a Redrive of "
                "another name"
            )


def _failed_topic_id(group: ConsumerGroup | None, seen: ClusterObservation | None) -> str | None:
    topic = seen.topics.get(naming.failed_topic(group.group_id)) if group is not None and seen is not None else None
    return topic.topic_id if topic is not None else None


def _cluster_key(group: ConsumerGroup) -> Key:
    return group.metadata.namespace, group.spec.cluster_ref.name


def _wants_to_run(body: JsonObject) -> bool:
    ended = (body.get("status") or {}).get("phase") in FINAL_PHASES
    return not (ended or body["spec"].get("suspend") or "deletionTimestamp" in body["metadata"])


def _age(body: JsonObject) -> tuple[str, str]:
    """Sorts the oldest first."""
    return body["metadata"].get("creationTimestamp") or "", body["metadata"]["name"]


def _parsed(model: type[M], body: JsonObject | None) -> M | None:
    """An object as its model; None for one that is not there, going, or beyond parsing (its own reconcile says so)."""
    if body is None or "deletionTimestamp" in body["metadata"]:
        return None
    try:
        return model.model_validate(body)
    except ValidationError:
        return None
