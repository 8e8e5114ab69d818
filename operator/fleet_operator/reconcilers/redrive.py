"""Reconciles Redrive: gather, decide, do one thing about its Job, publish.

Progress is read from Kafka in the background: a reconcile starts a read and takes the last result; the end of a read
brings the Redrive back into the queue. Nothing is lost with this process: the next one asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError, NetError
from fleet_operator.api.v1alpha1 import KafkaCluster, Redrive
from fleet_operator.api.v1alpha1.conditions import RUN_CONDITIONS, invalid_status
from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.clients.kinds import CONSUMER_GROUP, JOB, POD, REDRIVE, JsonObject
from fleet_operator.observe.kafka_admin import read_positions
from fleet_operator.observe.observer import ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning import times
from fleet_operator.planning.labels import COMPONENT_LABEL, GROUP_LABEL
from fleet_operator.planning.problem import spec_problem
from fleet_operator.planning.redrive import manifests
from fleet_operator.planning.redrive.phase import (
    RedriveFacts,
    RedriveProgress,
    at_work,
    decide,
    find_obstacle,
    find_refusal,
    read_progress,
    read_run_pods,
    redrive_of,
    target_of,
)
from fleet_operator.planning.redrive.status import project_redrive_status
from fleet_operator.planning.run import Act, RunDecision, read_job, renew_final_status
from fleet_operator.planning.status.retry import is_noted
from fleet_operator.reconcilers.context import Context, is_owned_by, publish
from fleet_operator.reconcilers.references import ReferencedGroup, read_group
from fleet_operator.reconcilers.run import Expiry, RunChildren, Runs
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Result

ASK_SECONDS: Final = 4.0
"""A question is not repeated sooner than this after the last answer; runs commit about once a second."""
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest progress of a Redrive, and its pace since the one before."""

    progress: RedriveProgress
    at: float  # monotonic seconds
    per_second: int | None = None


class RedriveWatch:
    """The progress of all Redrives. Used on the event loop only; `close` ends the questions that are under way."""

    def __init__(self, clock: Clock, observers: ObserverPool, again: Callable[[Key], None]) -> None:
        self._clock = clock
        self._observers = observers
        self._again = again
        self._seen: dict[Key, Seen] = {}
        self._asked: dict[Key, float] = {}  # when the last answer came (monotonic seconds)
        self._asking: dict[Key, asyncio.Task[None]] = {}

    def latest(self, redrive: Key) -> Seen | None:
        """The newest progress; None before the first."""
        return self._seen.get(redrive)

    def ask(self, redrive: Key, cluster: Key, group_id: str) -> None:
        """Have the progress read, unless that is under way or was done a moment ago."""
        asked = self._asked.get(redrive)
        if redrive in self._asking or (asked is not None and self._clock.monotonic() - asked < ASK_SECONDS):
            return
        self._asking[redrive] = asyncio.create_task(
            self._ask(redrive, cluster, group_id), name=f"progress-of-{'/'.join(redrive)}"
        )

    def forget(self, redrive: Key) -> None:
        """Drop what is known of a Redrive that has ended or is gone."""
        self._seen.pop(redrive, None)
        self._asked.pop(redrive, None)

    async def close(self) -> None:
        asking = list(self._asking.values())
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, redrive: Key, cluster: Key, group_id: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                positions = await self._observers.act(cluster, lambda client: read_positions(client, group_id))
        except (NetError, KafkaError, ObserverStoppedError, TimeoutError) as error:
            fields = {"key": "/".join(redrive), "group": group_id, "error": str(error) or type(error).__name__}
            log.warning("progress of a redrive cannot be read", extra=fields)
        else:
            self._take(redrive, read_progress(positions))
        finally:
            del self._asking[redrive]
            self._asked[redrive] = self._clock.monotonic()
        self._again(redrive)

    def _take(self, redrive: Key, progress: RedriveProgress | None) -> None:
        if progress is None:
            return
        before, now = self._seen.get(redrive), self._clock.monotonic()
        pace = None
        if before is not None and now > before.at:
            pace = round(max(progress.moved - before.progress.moved, 0) / (now - before.at))
        self._seen[redrive] = Seen(progress, now, pace)


log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 5.0
"""The interval at which a running or waiting Redrive is looked at: no watch reports offsets, or a usable topic."""

ENDED_SECONDS: Final = 1.0
"""The shortest pause between the visit that sees a Redrive end and the one that deletes it: the status that has its
findings must be in the cache first."""

NOTED_SECONDS: Final = 30.0
"""The interval at which a Redrive is looked at whose time is over before its ConsumerGroup has noted what it found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveStep:
    """A Redrive, what it depends on, and the decision about it. `image` is the group's worker image, `now` in epoch
    seconds."""

    body: JsonObject
    facts: RedriveFacts
    decision: RunDecision
    referenced: ReferencedGroup
    child: JsonObject | None
    image: str
    now: float

    @property
    def act(self) -> Act:
        return self.decision.act

    @property
    def is_final(self) -> bool:
        return self.decision.is_final

    def children(self) -> RunChildren:
        redrive, group, cluster = self.facts.redrive, self.referenced.group, self.referenced.cluster
        assert group is not None, "a Redrive without its group has an obstacle"
        assert isinstance(cluster, KafkaCluster), "a Redrive without its cluster has an obstacle"
        assert self.referenced.observation is not None, "a Redrive whose cluster was never seen has an obstacle"
        target = target_of(group, self.referenced.observation)
        config = manifests.redrive_config(redrive, group, cluster, target, now=self.now)
        return RunChildren(
            applied=(manifests.config_map(redrive, config),),
            run=manifests.job(redrive, group, cluster, image=self.image),
        )


class RedriveReconciler:
    """Keeps each Redrive's Job and status as its object says."""

    def __init__(self, context: Context, watch: RedriveWatch) -> None:
        self._context = context
        self._watch = watch
        self._expiry = Expiry(context.clock)
        self._runs = Runs(context.store, context.events)

    async def reconcile(self, key: Key) -> Result:
        """Bring one Redrive one step closer to its end; raises KubeError to be tried again."""
        context = self._context
        body = context.store.get(REDRIVE, key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._watch.forget(key)
            self._expiry.forget(key)
            context.statuses.forget(REDRIVE.kind, key)
            return Result()
        now, generation = context.clock.wall(), body["metadata"].get("generation", 0)
        try:
            redrive = Redrive.model_validate(body)
        except ValidationError as error:
            problem = spec_problem(error)
            status = invalid_status(RUN_CONDITIONS, problem.reason, problem.message, body, times.to_text(now))
            return Result(await publish(context, body, status))
        if redrive.is_final:
            self._watch.forget(key)
            again = await publish(context, body, renew_final_status(redrive.status, generation))
            if not self._is_noted(redrive, redrive.status):
                again = None if again is None else min(again, NOTED_SECONDS)
                self._context.queues[CONSUMER_GROUP].add(redrive.group_key)
            return Result(await self._expire(body, redrive, again))
        step = await self._advance(body, redrive)
        if step.is_final:
            self._expiry.ended(key, redrive)
        seen, phase, group = self._watch.latest(key), step.decision.phase, step.referenced.group
        status = project_redrive_status(
            step.facts, step.decision, seen.progress if seen else None, seen.per_second if seen else None, now
        )
        if phase == "Running" and group is not None:
            cluster = (group.metadata.namespace, group.spec.cluster_ref.name)
            self._watch.ask(key, cluster, naming.redrive_group(group.group_id, redrive.metadata.uid))
        again = await publish(context, body, status)
        if again is not None and (phase in ("Running", "Pending") or step.facts.halted):
            again = min(again, WATCH_SECONDS)
        if again is not None and step.is_final and not self._is_noted(redrive, status):
            again = min(again, ENDED_SECONDS)
        if again is not None and step.is_final and (ttl := redrive.spec.ttl_seconds_after_finished) is not None:
            again = min(again, max(ENDED_SECONDS, self._expiry.seconds_left(key, redrive, ttl)))
        return Result(again)

    async def _expire(self, body: JsonObject, redrive: Redrive, again: float | None) -> float | None:
        """Delete a Redrive that has ended when its time is over; returns the seconds until the next visit.

        Its findings must be in the status of its ConsumerGroup first, where they count from then on.
        """
        ttl = redrive.spec.ttl_seconds_after_finished
        if ttl is None or again is None:
            return again
        key = key_of(body)
        left = self._expiry.seconds_left(key, redrive, ttl)
        if left > 0:
            return min(again, left)
        if not self._is_noted(redrive, redrive.status):
            return again
        if await self._context.store.delete_unchanged(REDRIVE, body):
            log.info("finished redrive deleted", extra={"key": "/".join(key), "phase": redrive.status["phase"]})
        return again

    def _is_noted(self, redrive: Redrive, status: Mapping[str, Any]) -> bool:
        """True if the findings of a finished Redrive with this status are in its group's state, or the group is gone.

        Nothing brings the group back for them: a status that the operator wrote is no news.
        """
        referenced = read_group(self._context, redrive.group_key)
        return referenced.gone or (
            referenced.group is not None and is_noted(status, referenced.redriven, _failed_topic_id(referenced))
        )

    async def _advance(self, body: JsonObject, redrive: Redrive) -> RedriveStep:
        """Decide and act; a refusal of the API server is an obstacle like any other."""
        step, refusal = await self._runs.advance(self._from_caches(body, redrive), lambda: self._live(body, redrive))
        if refusal is not None:
            return replace(step, decision=RunDecision("Pending", refusal.reason, refusal.message))
        if step.act is Act.CREATE and step.referenced.group is not None:
            log.info("redrive started", extra={"key": "/".join(key_of(body)), "group": step.referenced.group.group_id})
        return step

    def _from_caches(self, body: JsonObject, redrive: Redrive) -> RedriveStep:
        index = (key_of(body)[0], redrive.spec.group_ref.name)
        store = self._context.store
        return self._decided(body, redrive, store.cache(JOB).having(index), store.cache(POD).having(index))

    async def _live(self, body: JsonObject, redrive: Redrive) -> RedriveStep:
        selector = f"{GROUP_LABEL}={redrive.spec.group_ref.name},{COMPONENT_LABEL}={manifests.COMPONENT}"
        jobs, pods = [await self._context.store.list(kind, key_of(body)[0], selector) for kind in (JOB, POD)]
        return self._decided(body, redrive, jobs.items, pods.items)

    def _decided(
        self, body: JsonObject, redrive: Redrive, jobs: list[JsonObject], pods: list[JsonObject]
    ) -> RedriveStep:
        """`jobs` and `pods` are those of the group; only what belongs to Redrives counts."""
        namespace, name = key_of(body)
        referenced = read_group(self._context, (namespace, redrive.spec.group_ref.name))
        job = next((found for found in jobs if is_owned_by(found, body)), None)
        mine = [pod for pod in pods if redrive_of(pod) == name]
        facts = RedriveFacts(
            redrive=redrive,
            obstacle=find_obstacle(
                redrive, referenced.group, referenced.cluster, referenced.observation, older=referenced.older
            ),
            refusal=find_refusal(redrive),
            failed_topic_id=_failed_topic_id(referenced),
            group_gone=referenced.gone,
            job=read_job(job),
            pods=read_run_pods(mine, job_uid=job["metadata"]["uid"] if job else ""),
            rival=self._rival(body, jobs, pods),
        )
        return RedriveStep(
            body=body,
            facts=facts,
            decision=decide(facts),
            referenced=referenced,
            child=job,
            image=referenced.image,
            now=self._context.clock.wall(),
        )

    def _rival(self, body: JsonObject, jobs: list[JsonObject], pods: list[JsonObject]) -> str | None:
        """The Redrive that goes before this one: one at work, else the oldest that wants to be."""
        namespace, name = key_of(body)
        older = [
            other
            for other in self._context.store.cache(REDRIVE).having((namespace, body["spec"]["groupRef"]["name"]))
            if _wants_to_run(other) and _age(other) < _age(body)
        ]
        waiting = [key_of(other)[1] for other in sorted(older, key=_age)]
        return next((other for other in (*at_work(jobs, pods), *waiting) if other != name), None)


def _failed_topic_id(referenced: ReferencedGroup) -> str | None:
    if referenced.group is None or referenced.observation is None:
        return None
    topic = referenced.observation.topics.get(naming.failed_topic(referenced.group.group_id))
    return topic.topic_id if topic is not None else None


def _wants_to_run(body: JsonObject) -> bool:
    ended = (body.get("status") or {}).get("phase") in FINAL_PHASES
    return not (ended or body["spec"].get("suspend") or "deletionTimestamp" in body["metadata"])


def _age(body: JsonObject) -> tuple[str, str]:
    """Sorts the oldest first."""
    return body["metadata"].get("creationTimestamp") or "", body["metadata"]["name"]
