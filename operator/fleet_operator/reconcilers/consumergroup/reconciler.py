"""Reconciler of ConsumerGroups: gather, decide, write the state, act, show.

The state is written before anything is done that rests on it; the status is a projection that no action reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.fleet.waves import read_standing
from fleet_operator.planning.offsets.skips import awaits_skips
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.status.consumergroup import invalid_spec_status, project_consumergroup_status
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.problems import needs_reports, needs_revisit
from fleet_operator.planning.status.rollout import is_being_made
from fleet_operator.planning.status.transitions import awaits_report
from fleet_operator.reconcilers.consumergroup.adoption import adopt
from fleet_operator.reconcilers.consumergroup.children import REFUSED_RETRY_S, Children
from fleet_operator.reconcilers.consumergroup.deletion import DeletionWork
from fleet_operator.reconcilers.consumergroup.gather import Gathered, gather
from fleet_operator.reconcilers.consumergroup.kafka_side import KafkaSide
from fleet_operator.reconcilers.consumergroup.offset_changes import OffsetChanges, show_group
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from fleet_operator.reconcilers.consumergroup.scale_field import give_replicas
from fleet_operator.reconcilers.consumergroup.session import GroupSession, GroupSessions, Load
from fleet_operator.reconcilers.consumergroup.visits import Visits
from fleet_operator.reconcilers.context import FIRST_LOOK_SECONDS, Context, has_finalizer, publish
from fleet_operator.reconcilers.states import StateTakenError
from fleet_operator.reconcilers.waves import Waves
from fleet_operator.reconcilers.worker_watch import FRESH_SECONDS
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Result

T = TypeVar("T")

LARGE_BYTES: Final = 98_304
"""Objects of more bytes, with their status, are planned in a thread."""
OWNED_SECONDS: Final = 15.0
"""Interval at which a group looks again whose Kafka group another one owns: of that one's workers no event tells it."""


class ConsumerGroupReconciler:
    """Keeps fleets and statuses as their objects specify. Used on the event loop only."""

    def __init__(self, context: Context, kafka: KafkaSide) -> None:
        self._context = context
        self._kafka = kafka
        self._sessions = GroupSessions(context)
        self._changes = OffsetChanges(context, self._sessions)
        context.moved.append(self._changes.moved)
        context.beside.append(self._changes.keep_aging)
        self._deletion = DeletionWork(context, kafka)
        self._waves = Waves(context)
        self._visits = Visits(context.observers, context.metrics, context.clock)

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one ConsumerGroup by one step. Raises KubeError, to be retried."""
        context = self._context
        body = context.store.get(CONSUMER_GROUP, key)
        if body is None or (body["metadata"].get("deletionTimestamp") and not has_finalizer(body)):
            self._drop(key)
            return Result()
        if self._sessions.is_of_namesake(key, body["metadata"]["uid"]):
            self._drop(key)
        session = self._sessions.open(key)
        session.refer_to(body)
        if body["metadata"].get("deletionTimestamp"):
            self._stop_following(session)
            return await self._deletion.end(session, body)
        if await adopt(context, body):
            return Result(0.0)
        try:
            gathered = await gather(context, body)
            gathered = replace(gathered, turn=self._waves.turn(body, key, gathered.state.upgrade))
        except (ValidationError, UnreadableStateError) as error:
            self._stop_following(session)
            problem = error.problem if isinstance(error, UnreadableStateError) else spec_problem(error)
            previous, now = body.get("status") or {}, context.clock.wall()
            return Result(await publish(context, body, invalid_spec_status(body["metadata"], problem, previous, now)))
        return await self._step(session, gathered)

    async def _step(self, session: GroupSession, gathered: Gathered) -> Result:
        """Decide about what was gathered, act, and show it."""
        context, body, now = self._context, gathered.body, self._context.clock.wall()
        findings = session.findings
        # Offsets of tens of thousands of partitions take long, and everybody else would wait.
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
        context.observers.watch(session.key, gathered.cluster_key, plan.interest)
        if not plan.upgrade.turn.begins:
            self._waves.give_back(session.key)
        facts, is_first = plan.facts, gathered.state == GroupState() and not session.begun
        if not is_first:
            if session.first_look.awaits(coming=_is_look_coming(session, gathered, plan)):
                return Result(FIRST_LOOK_SECONDS)
            facts = replace(facts, refusal=await self._act(session, gathered, plan))
        shown = replace(facts, view=plan.views.shown)
        status = await pure(project_consumergroup_status, shown, body.get("status") or {}, now)
        if not is_first:
            self._tell(session, gathered, plan, facts, status)
        again = await publish(context, body, status, settling=is_being_made(body.get("status") or {}, status))
        session.begun = True
        if again is None:
            return Result()
        if is_first:
            # When a thousand objects are created at once, all have a status before the first of them has its children.
            return Result(0.0)
        if not gathered.group.paused:
            await give_replicas(context.store, body, plan.state.sizing.count or plan.state.sizing.replicas)
        wish = self._follow(session, gathered, plan, facts, status)
        return Result(min(again, wish) if wish is not None else again)

    async def _act(self, session: GroupSession, gathered: Gathered, plan: Plan) -> Problem | None:
        """Write the state, then carry out the plan; returns the refusal of the API server, if any."""
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

    def _tell(
        self, session: GroupSession, gathered: Gathered, plan: Plan, facts: ConsumerGroupFacts, status: JsonObject
    ) -> None:
        """Tell the ledger of upgrades and the metrics of what was found."""
        canaries = self._context.settings.canary_namespaces
        conditions_now, upgrade = status["conditions"], plan.state.upgrade
        standing = read_standing(gathered.body, conditions_now, upgrade, gathered.cluster_key, canaries)
        self._waves.note(gathered.body, session.key, standing)
        show_group(self._context.metrics.groups, session.key, facts, status)

    def _follow(
        self, session: GroupSession, gathered: Gathered, plan: Plan, facts: ConsumerGroupFacts, status: JsonObject
    ) -> float | None:
        """Take in what happens until the next reconcile; returns the seconds until that, None without a wish."""
        self._context.workers.follow(session.key, closely=needs_reports(facts))
        self._changes.follow(session, facts, gathered.cluster_key)
        sizing, entry = plan.sizing, status.get("scaling") or {}
        session.load = None if sizing.facts is None else Load(sizing.facts, entry, sizing.decision)
        # An idle group gives no other sign that would requeue it.
        skips = awaits_skips((status.get("offsets") or {}).get("skipped") or ())
        reports = awaits_report(status["transitions"], gathered.worker_reports, self._context.clock.wall())
        unjudged = facts.observed_group is not None and plan.state.offsets.is_unjudged
        watched = FRESH_SECONDS if skips or reports or unjudged or needs_revisit(facts) else None
        watched = OWNED_SECONDS if gathered.older is not None else watched
        wishes = (plan.requeue_after if facts.refusal is None else REFUSED_RETRY_S, watched, plan.expiry.requeue_after)
        return min((wish for wish in wishes if wish is not None), default=None)

    def _stop_following(self, session: GroupSession) -> None:
        """Take no part in decisions between reconciles, nor show what nobody renews: the group is going, which may
        take a day, or cannot be read."""
        session.stop_following()
        self._context.metrics.groups.remove(session.key)
        self._waves.forget(session.key)

    def _drop(self, key: Key) -> None:
        """Drop all that is known of a deleted object; owner references clean up the cluster."""
        session = self._sessions.drop(key)
        if session is not None:
            known = json_text.loads(session.references)
            self._context.store.forget(known["metadata"]["uid"])
            if not has_finalizer(known):
                self._deletion.tell_of_kept(known)
        self._waves.forget(key)
        context = self._context
        context.observers.forget(key)
        context.workers.forget(key)
        context.statuses.forget(CONSUMER_GROUP.kind, key)
        context.states.forget(CONSUMER_GROUP, key)
        context.metrics.groups.remove(key)


def _is_look_coming(session: GroupSession, gathered: Gathered, plan: Plan) -> bool:
    """True if what a status would show as unknown will be known soon: the group that this process has not observed
    yet, or the rates of a fleet whose status it has not written yet, which take a second poll."""
    seen, load = gathered.observation, plan.sizing.facts
    if seen is not None and gathered.group.group_id in seen.groups:
        return not session.begun and load is not None and load.awaits_rates
    return not isinstance(gathered.cluster, Problem) and (seen is None or seen.reachable or seen.doubtful)


async def _here(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As `asyncio.to_thread`, on the event loop."""
    return work(*args, **kwargs)
