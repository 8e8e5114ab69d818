"""Reconciles ConsumerGroups: gathers facts, decides, writes the state, acts, and publishes the status.

The state is written before any action that depends on it. No action depends on the status.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients import json_text, kube
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject, identity
from fleet_operator.planning.fleet.waves import read_rollout_status
from fleet_operator.planning.offsets.skips import awaits_skips
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.status.consumergroup import invalid_spec_status, project_consumergroup_status
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.problem_series import GROUP_PROBLEMS, find_problems
from fleet_operator.planning.status.problems import needs_reports, needs_revisit
from fleet_operator.planning.status.rollout import is_being_made
from fleet_operator.planning.status.transitions import awaits_report
from fleet_operator.planning.times import soonest
from fleet_operator.reconcilers.consumergroup.adoption import adopt
from fleet_operator.reconcilers.consumergroup.children import REFUSED_RETRY_S, Children
from fleet_operator.reconcilers.consumergroup.deletion import DeletionWork
from fleet_operator.reconcilers.consumergroup.gather import Gathered, gather
from fleet_operator.reconcilers.consumergroup.kafka_side import KafkaSide
from fleet_operator.reconcilers.consumergroup.offset_changes import OffsetChanges, show_group
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from fleet_operator.reconcilers.consumergroup.session import GroupSession, GroupSessions, Load
from fleet_operator.reconcilers.consumergroup.visits import Visits
from fleet_operator.reconcilers.context import FIRST_OBSERVATION_SECONDS, Context, has_finalizer, publish
from fleet_operator.reconcilers.states import StateTakenError
from fleet_operator.reconcilers.waves import Waves
from fleet_operator.reconcilers.worker_watch import FRESH_SECONDS
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.store import Store

T = TypeVar("T")

LARGE_BYTES: Final = 98_304
"""Size of an object in bytes, including the status, above which its reconcile is planned in a thread."""
OWNED_SECONDS: Final = 15.0
"""Interval in seconds between reconciles of a ConsumerGroup whose Kafka group another ConsumerGroup owns. The interval
is needed, because changes of the owner's workers do not queue this ConsumerGroup."""


class ConsumerGroupReconciler:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._kafka = kafka = KafkaSide(context.store, context.events, context.observers)
        context.ending.push_async_callback(kafka.creations.close)
        self._sessions = GroupSessions(context)
        self._changes = OffsetChanges(context, self._sessions)
        context.moved.append(self._changes.moved)
        context.background_tasks.append(self._changes.keep_aging)
        self._deletion = DeletionWork(context, kafka)
        self._waves = Waves(context)
        self._visits = Visits(context.observers, context.metrics, context.clock)

    async def reconcile(self, key: Key) -> float | None:
        context = self._context
        body = context.store.get(CONSUMER_GROUP, key)
        if body is None or (body["metadata"].get("deletionTimestamp") and not has_finalizer(body)):
            self._drop(key)
            return None
        if self._sessions.is_of_namesake(key, body["metadata"]["uid"]):
            self._drop(key)
        session = self._sessions.open(key)
        session.refer_to(body)
        if body["metadata"].get("deletionTimestamp"):
            self._stop_following(session)
            return await self._deletion.end(session, body)
        if await adopt(context, body):
            return 0.0
        try:
            gathered = await gather(context, body)
            gathered = replace(gathered, slot=self._waves.slot(body, key, gathered.state.upgrade))
        except (ValidationError, UnreadableStateError) as error:
            self._stop_following(session)
            problem = error.problem if isinstance(error, UnreadableStateError) else spec_problem(error)
            previous, now = body.get("status") or {}, context.clock.wall()
            status = invalid_spec_status(body["metadata"], problem, previous, now)
            context.metrics.group_problems.show(key, find_problems(status["conditions"], GROUP_PROBLEMS))
            return await publish(context, body, status)
        return await self._step(session, gathered)

    async def _step(self, session: GroupSession, gathered: Gathered) -> float | None:
        context, body, now = self._context, gathered.body, self._context.clock.wall()
        findings = session.findings
        # Planning for tens of thousands of partitions takes long, and would block the event loop.
        pure = asyncio.to_thread if len(json_text.dumps(body)) > LARGE_BYTES else _here
        plan = await pure(
            make_plan,
            gathered,
            now,
            image=context.settings.consumer_image,
            memory=session.memory,
            findings=findings,
            tick=context.clock.monotonic(),
        )
        session.remember(plan.memory, plan.visits, findings)
        context.observers.watch(session.key, gathered.cluster_key, plan.subscription)
        if not plan.upgrade.slot.begins:
            self._waves.release(session.key)
        facts, is_first = plan.facts, gathered.state == GroupState() and not session.begun
        if not is_first:
            if session.first_observation.awaits(coming=_is_observation_coming(session, gathered, plan)):
                return FIRST_OBSERVATION_SECONDS
            facts = replace(facts, refusal=await self._act(session, gathered, plan))
        shown = replace(facts, view=plan.views.shown)
        status = await pure(project_consumergroup_status, shown, body.get("status") or {}, now)
        if not is_first:
            canaries, upgrade = context.settings.canary_namespaces, plan.state.upgrade
            verdict = read_rollout_status(body, status["conditions"], upgrade, gathered.cluster_key, canaries)
            self._waves.record_group(body, session.key, verdict)
            show_group(context.metrics.groups, session.key, facts, status)
            context.metrics.group_problems.show(session.key, find_problems(status["conditions"], GROUP_PROBLEMS))
        again = await publish(context, body, status, settling=is_being_made(body.get("status") or {}, status))
        session.begun = True
        if again is None:
            return None
        if is_first:
            # If a thousand objects are created together, all of them get a first status before children are created.
            return 0.0
        if not gathered.group.paused:
            await give_replicas(context.store, body, plan.state.sizing.count or plan.state.sizing.replicas)
        delay = self._follow(session, gathered, plan, facts, status)
        return min(again, delay) if delay is not None else again

    async def _act(self, session: GroupSession, gathered: Gathered, plan: Plan) -> Problem | None:
        """Write the state, then carry out the plan; returns the API server's refusal, if any."""
        if gathered.group.paused:
            return None
        if plan.state != gathered.state:
            try:
                await self._context.states.save(gathered.body, plan.state, before=gathered.state)
            except StateTakenError as error:
                return Problem(conditions.NAME_TAKEN, str(error))
        await self._deletion.keep_finalizer(gathered.body, gathered.group)
        refusal = await Children(self._context, gathered, plan).carry_out()
        session.found(child_refusal=refusal)
        if gathered.older is None and gathered.on_its_cluster:
            view = plan.views.view
            self._kafka.keep_topics(session, gathered, view.topics)
            self._kafka.remove_departed(session, gathered, view.observed)
            self._visits.start(session, gathered, plan.expiry)
        return refusal

    def _follow(
        self, session: GroupSession, gathered: Gathered, plan: Plan, facts: ConsumerGroupFacts, status: JsonObject
    ) -> float | None:
        """Set how often workers are asked for reports, and store the inputs of the decisions that are made between
        reconciles. Returns the seconds until the next reconcile; None if only an event causes it."""
        self._context.workers.follow(session.key, closely=needs_reports(facts))
        self._changes.follow(session, facts, gathered.cluster_key)
        sizing, entry = plan.sizing, status.get("scaling") or {}
        session.load = None if sizing.facts is None else Load(sizing.facts, entry, sizing.decision)
        # An idle group needs a time, because no event queues it.
        skips = awaits_skips((status.get("offsets") or {}).get("skipped") or ())
        reports = awaits_report(status["transitions"], gathered.worker_reports, self._context.clock.wall())
        unjudged = facts.observed_group is not None and plan.state.offsets.is_unjudged
        watched = FRESH_SECONDS if skips or reports or unjudged or needs_revisit(facts) else None
        watched = OWNED_SECONDS if gathered.older is not None else watched
        delays = (plan.requeue_after if facts.refusal is None else REFUSED_RETRY_S, watched, plan.expiry.requeue_after)
        return soonest(*delays)

    def _stop_following(self, session: GroupSession) -> None:
        """Stop the decisions and metrics between reconciles, because the group cannot be read or is being deleted. A
        deletion may take a day."""
        session.stop_following()
        self._context.metrics.drop_group(session.key)
        self._waves.drop_group(session.key)

    def _drop(self, key: Key) -> None:
        """Drop all data about a deleted object. Kubernetes deletes its children because of their owner references."""
        session = self._sessions.drop(key)
        if session is not None:
            known = json_text.loads(session.references)
            self._context.store.drop_owner(known["metadata"]["uid"])
            if not has_finalizer(known):
                self._deletion.report_kept(known)
        self._waves.drop_group(key)
        context = self._context
        context.observers.unwatch(key)
        context.workers.drop_group(key)
        context.statuses.drop_object(CONSUMER_GROUP.kind, key)
        context.states.drop_state(CONSUMER_GROUP, key)
        context.metrics.drop_group(key)


def _is_observation_coming(session: GroupSession, gathered: Gathered, plan: Plan) -> bool:
    """True if the status should wait for the next observation: this process has not observed the group yet, or the
    rates of a scaled fleet need a second poll before the first status."""
    seen, load = gathered.observation, plan.sizing.facts
    if seen is not None and gathered.group.group_id in seen.groups:
        return not session.begun and load is not None and load.awaits_rates
    return not isinstance(gathered.cluster, Problem) and (seen is None or seen.reachable or seen.unconfirmed)


async def _here(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run `work` on the event loop. Has the signature of `asyncio.to_thread`."""
    return work(*args, **kwargs)


async def give_replicas(store: Store, body: JsonObject, replicas: int | None) -> None:
    """Write the number of workers into `spec.replicas` of a ConsumerGroup that lacks it, unless another client has
    written the field since the read.

    Without this field, reads of the scale subresource fail and an HPA never starts.

    Like a default, the field then has no field manager: a server-side apply without the field does not change it, and
    an apply with the field takes it over without a conflict (docs/decisions/0053-names-and-replicas.md).

    If permissions or an admission policy prevent the write, the field stays absent, which does not change the number of
    workers. Raises other KubeErrors.
    """
    spec, found = body["spec"], store.get(CONSUMER_GROUP, key_of(body))
    if replicas is None or "replicas" in spec or "scaling" in spec or found is None or found["spec"] != spec:
        return
    with suppress(kube.KubeConflictError, kube.KubeNotFoundError, kube.KubeForbiddenError, kube.KubeInvalidError):
        stored = await store.kube.merge({**identity(found), "spec": {"replicas": replicas}})
        released = identity(stored)
        released["metadata"]["managedFields"] = [_without_spec(each) for each in stored["metadata"]["managedFields"]]
        store.learn(CONSUMER_GROUP, await store.kube.merge(released))


def _without_spec(entry: JsonObject) -> JsonObject:
    if entry["manager"] != kube.FIELD_MANAGER:
        return entry
    return {**entry, "fieldsV1": {name: part for name, part in entry["fieldsV1"].items() if name != "f:spec"}}
