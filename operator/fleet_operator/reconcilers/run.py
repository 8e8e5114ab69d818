"""The reconcile that all runs share: gather, decide, do one thing about the run's Job or application, remember,
publish, and delete what has ended when its time is over.

Decisions rest on what is remembered of a run, never on its status. Caches are enough to decide that nothing is to be
done. Before a run is started, and before an end is recorded for good, everything is read live, one run at a time: two
that both see nobody at work must not both begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.model import RunResource
from fleet_operator.clients.kinds import JOB, JsonObject, Kind, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeForbiddenError, KubeInvalidError, KubeNotFoundError
from fleet_operator.planning import times
from fleet_operator.planning.drift import EDITED, others_fields
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.run import Act, RunDecision, renew_final_status, run_conditions
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.runs import RunState
from fleet_operator.reconcilers.context import (
    Context,
    ForeignObjectError,
    has_finalizer,
    publish,
    read_live,
    require_living,
    require_ours,
)
from fleet_operator.reconcilers.run_memory import RunMemory
from fleet_operator.reconcilers.run_session import RunSession, RunSessions
from fleet_operator.reconcilers.states import StateTakenError
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Result
from fleet_operator.runtime.events import EventRecorder, News
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_SECONDS: Final = 5.0
"""The interval at which a running or waiting run is reconciled: no watch reports offsets, a ledger or a usable topic.
"""
TURN_SECONDS: Final = 300.0
"""The longest interval of a run that waits for its turn. It is longer for the later ones: anybody may create thousands.
"""
NEXT_SECONDS: Final = 0.5
"""The pause before a step that rests on what was just remembered."""
ENDED_SECONDS: Final = 1.0
"""The pause between the reconcile that sees a run end and the one that clears up after it: the status that has its
findings must be in the cache first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChildren:
    """The objects of a run that is started: what it needs, in the order of their making, and the run itself.

    `once` are made if they are not there, and never changed; `applied` are made as they are given.
    """

    once: tuple[JsonObject, ...] = ()
    applied: tuple[JsonObject, ...]
    run: JsonObject


class Step(Protocol):
    """A run as found, and the decision about it. `body` owns `child`, the run's Job or application."""

    @property
    def body(self) -> JsonObject: ...
    @property
    def child(self) -> JsonObject | None: ...
    @property
    def decision(self) -> RunDecision: ...

    def children(self) -> RunChildren: ...

    def refused(self, problem: Problem) -> Self:
        """The step with what the API server has refused as its obstacle."""


R = TypeVar("R", bound=RunResource)
S = TypeVar("S", bound=Step)
M = TypeVar("M")


class RunKind(Protocol[R, S, M]):
    """The part of a reconcile that differs from kind to kind. All of it raises KubeError."""

    @property
    def kind(self) -> Kind: ...
    @property
    def model(self) -> type[R]: ...
    @property
    def conditions(self) -> tuple[str, ...]: ...
    @property
    def remembered(self) -> tuple[str, ...]:
        """The fields of the status that decide what is done next."""

    @property
    def counted(self) -> tuple[str, ...]:
        """The fields of the status that are remembered at the end, to be shown."""

    @property
    def finalizer(self) -> str:
        """The finalizer of a run that has something to finish before it goes; empty for a kind without one."""

    @property
    def memory(self) -> Callable[[], M]:
        """Makes the memory of a run of which nothing is known yet."""

    async def decided(self, session: RunSession[M], body: JsonObject, run: R, *, live: bool) -> S:
        """Gather and decide; with `live` from the API server and not from caches."""

    async def remember(self, step: S, status: JsonObject) -> JsonObject:
        """Facts to remember of a decision besides fields of its status; makes what has to be there before."""

    async def follow_up(self, session: RunSession[M], step: S) -> None:
        """Do what the decision asks for besides its act, once it is remembered."""

    def project(self, session: RunSession[M], step: S, now: float) -> JsonObject:
        """The status."""

    async def settle(self, session: RunSession[M], body: JsonObject, run: R) -> float:
        """Clear up after a run whose end is on record; seconds until another try, 0 once it may be deleted."""


class RunReconciler(Generic[R, S, M]):
    """Keeps the runs of one kind, their Jobs or applications, and their status as their objects say.

    Used on the event loop only.
    """

    def __init__(self, context: Context, kind: RunKind[R, S, M]) -> None:
        self._context = context
        self._kind = kind
        self._memory = RunMemory(context, kind.remembered, kind.counted)
        self._sessions = RunSessions(context.clock, kind.memory, context.queues[kind.kind].add)
        context.ending.push_async_callback(self._sessions.close)
        self._one_at_a_time = asyncio.Lock()

    async def reconcile(self, key: Key) -> Result:
        """Bring one run one step closer to its end; raises KubeError to be tried again."""
        context, kind = self._context, self._kind
        body = context.store.get(kind.kind, key)
        if body is None or (body["metadata"].get("deletionTimestamp") and not has_finalizer(body, kind.finalizer)):
            self._sessions.drop(key)
            context.statuses.forget(kind.kind.kind, key)
            context.states.forget(kind.kind, key)
            return Result()
        session = self._sessions.open(key, body["metadata"]["uid"])
        try:
            run, state, stored = self._memory.recall(body, kind.model.model_validate(body))
        except (ValidationError, UnreadableStateError) as error:
            problem = error.problem if isinstance(error, UnreadableStateError) else spec_problem(error)
            now_text = times.to_text(context.clock.wall())
            invalid = conditions.invalid_status(kind.conditions, problem.reason, problem.message, body, now_text)
            return Result(await publish(context, body, invalid))
        if run.is_final and not run.is_reopened:
            session.start_over()
            return Result(await self._finish(session, body, run, state))
        found = await self._advance(session, body, run, stored)
        return Result(ENDED_SECONDS if found is None else await self._show(session, *found, run))

    async def _show(self, session: RunSession[M], step: S, before: RunState, run: R) -> float | None:
        """Remember, follow up and publish; seconds until the next visit."""
        now = self._context.clock.wall()
        status = self._kind.project(session, step, now)
        try:
            facts = self._memory.pick(status, step.decision) | await self._kind.remember(step, status)
            await self._memory.note(step.body, run, facts, step.decision, before)
        except StateTakenError as error:
            step = step.refused(Problem(conditions.NAME_TAKEN, str(error)))
            status = self._kind.project(session, step, now)
        except KubeForbiddenError:
            if not (step.decision.is_final and step.body["metadata"].get("deletionTimestamp")):
                raise
            # In a namespace that is being deleted nothing can be created, so the end is not remembered by anybody.
            await self._kind.settle(session, step.body, run)
        else:
            await self._kind.follow_up(session, step)
        if step.decision.is_final:
            session.note_end()
        again = await publish(self._context, step.body, status)
        return None if again is None else min(again, _pause(step.decision))

    async def _finish(self, session: RunSession[M], body: JsonObject, run: R, state: RunState) -> float | None:
        """Clear up after a run that has ended, and delete it when its time is over; seconds until the next visit."""
        key, ttl, taken = key_of(body), run.spec.ttl_seconds_after_finished, ""
        try:
            await self._memory.keep_end(body, run, state)
        except StateTakenError as error:
            taken = str(error)
            self._context.events.record(News(body, "Warning", conditions.NAME_TAKEN, taken))
        wait = await self._kind.settle(session, body, run)
        again = await publish(self._context, body, self._final_status(run, state))
        if again is None:
            return None
        if taken:
            return min(again, TURN_SECONDS)  # nothing but its object remembers it
        again = min(again, wait) if wait else again
        left = session.seconds_left(run, ttl) if ttl is not None else again
        if left > 0:
            return min(again, left)
        if wait:
            return again
        await self._memory.keep_end(body, run, state, leaves=True)
        if await self._context.store.delete_unchanged(self._kind.kind, body):
            fields = {"key": "/".join(key), "kind": body["kind"], "phase": run.status["phase"]}
            log.info("finished run deleted", extra=fields)
        return again

    def _final_status(self, run: R, state: RunState) -> JsonObject:
        """The status of a run that has ended; where it was lost, and for an object that was made again, by memory."""
        if "conditions" in state.facts:
            return renew_final_status(run.status, run.metadata.generation)
        decision = RunDecision(state.facts["phase"], state.reason, state.message)
        verdicts = run_conditions(decision, None, unready=(), available="")
        now_text = times.to_text(self._context.clock.wall())
        return conditions.with_conditions(run.status, verdicts, now_text, run.metadata.generation)

    async def _advance(
        self, session: RunSession[M], body: JsonObject, run: R, stored: RunState
    ) -> tuple[S, RunState] | None:
        """Decide and act; a refusal of the API server is an obstacle like any other. Returns the step, and the stored
        state that it rests on; None if the object is gone.

        An end that turns out to be none when it is read live may become a start.
        """
        step = await self._kind.decided(session, body, run, live=False)
        report_changes(self._context.events, step)
        try:
            if step.decision.act is Act.CREATE or step.decision.is_final:
                async with self._one_at_a_time:
                    fresh = await self._fresh(body)
                    if fresh is None:
                        return None
                    await self._memory.refresh(fresh, run.group_key)
                    known, state, stored = self._memory.recall(fresh, self._kind.model.model_validate(fresh))
                    if state.is_final and not known.is_reopened:
                        return None  # another operator has ended it
                    step = await self._kind.decided(session, fresh, known, live=True)
                    await self._act(step)
            else:
                await self._act(step)
        except KubeNotFoundError:
            if await self._fresh(body) is None:
                return None
            raise
        except (KubeInvalidError, KubeForbiddenError, ForeignObjectError) as error:
            return step.refused(Problem(conditions.REFUSED_BY_API_SERVER, str(error))), stored
        if step.decision.act is Act.CREATE:
            log.info("run started", extra={"key": "/".join(key_of(body)), "kind": body["kind"]})
        return step, stored

    async def _fresh(self, body: JsonObject) -> JsonObject | None:
        """The run read live; None if it is gone."""
        found = await self._context.store.refresh(self._kind.kind, key_of(body))
        return found if found is not None and found["metadata"]["uid"] == body["metadata"]["uid"] else None

    async def _act(self, step: Step) -> None:
        store, act, child = self._context.store, step.decision.act, step.child
        if act is Act.NOTHING:
            return
        if act is Act.CREATE:
            await _create(store, step.body, step.children())
            return
        assert child is not None, "only what is there is changed"
        if act is Act.DELETE:
            await store.delete(kind_of(child), child)
            return
        # Replaced and not applied: a Job's template can never change, and this operator might render another one.
        found = await read_live(store, step.body, JOB, key_of(child)[1])
        if found is not None:
            spec = {**found["spec"], "suspend": True}
            store.learn(JOB, await store.kube.replace({**found, "spec": spec}))


def report_changes(events: EventRecorder, step: Step) -> None:
    """Report what others have set in a Job or application: it is never put back, for that would run it again."""
    if step.child is None or step.decision.is_final:
        return
    metadata = step.child["metadata"]
    others = ", ".join(others_fields(metadata)) or ("another hand" if metadata.get(EDITED) else "")
    if others:
        of = step.body["kind"]
        note = (
            f"{step.child['kind']} `{metadata['name']}` was changed by {others}: what it does may not be what this "
            f"{of} says; delete the {of} and create it again"
        )
        events.record(News(step.body, "Warning", "ChangedByOthers", note))


def _pause(decision: RunDecision) -> float:
    """Longest time until the next visit."""
    if decision.is_final:
        return ENDED_SECONDS
    if decision.is_noted_first:
        return NEXT_SECONDS
    if decision.place:
        return min(WATCH_SECONDS * decision.place, TURN_SECONDS)
    waits = decision.phase != "Paused" or decision.reason != conditions.SUSPENDED
    return WATCH_SECONDS if waits else float("inf")


async def _create(store: Store, owner: JsonObject, children: RunChildren) -> None:
    """Make what the run reads, then the run."""
    await require_living(store, owner)
    for child in children.once:
        try:
            await store.kube.create(child)
        except KubeConflictError:
            await require_ours(store, owner, child)
    for child in children.applied:
        await require_ours(store, owner, child)
        await store.kube.apply(child)  # not by way of the store, for no watch covers it
    try:
        store.learn(kind_of(children.run), await store.kube.create(children.run))
    except KubeConflictError:
        await require_ours(store, owner, children.run)
        raise  # ours, made a moment ago: the next reconcile sees it
