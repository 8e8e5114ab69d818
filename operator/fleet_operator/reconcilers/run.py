"""The reconcile loop that all kinds of runs share: gather facts, decide, act on the Job or SparkApplication, store the
state, publish the status, and delete an ended run after its TTL.

Decisions use the stored state of a run, never its status. Cached data suffices for decisions without consequences.
Before a run is started, and before its end is recorded, everything is read live, for one run at a time. Otherwise two
runs could each find no other active run, and both start.
"""

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
from fleet_operator.runtime.events import Event, EventRecorder
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 5.0
"""Interval between reconciles of a running or waiting run, because offsets, ledgers and topics are not watched."""
QUEUED_SECONDS: Final = 300.0
"""Longest interval between reconciles of a run that waits for other runs. The interval grows with the number of runs
that come first, because anybody may create thousands of runs."""
NEXT_SECONDS: Final = 0.5
"""Pause in seconds between writing a state and the step that depends on it."""
ENDED_SECONDS: Final = 1.0
"""Pause in seconds between a run's end and the clean-up. Before the clean-up, the cache must have received the status
with the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChildren:
    """The child objects of a run, in the order of their creation. Objects in `once` are created if absent, and never
    changed; objects in `applied` are created or updated. `run` is the Job or SparkApplication."""

    once: tuple[JsonObject, ...] = ()
    applied: tuple[JsonObject, ...]
    run: JsonObject


class Step(Protocol):
    """A run and the decision about it. `body` is the run's object as it was read. `child` is the run's Job or
    SparkApplication, or None."""

    @property
    def body(self) -> JsonObject: ...
    @property
    def child(self) -> JsonObject | None: ...
    @property
    def decision(self) -> RunDecision: ...

    def children(self) -> RunChildren: ...

    def refused(self, problem: Problem) -> Self:
        """Return this step with its decision replaced: the run waits, because the API server refused a request."""


R = TypeVar("R", bound=RunResource)
S = TypeVar("S", bound=Step)
M = TypeVar("M")


class RunKind(Protocol[R, S, M]):
    """The steps of a reconcile that differ between the kinds of runs. The coroutines raise KubeError.

    - `remembered`: names of the status fields that are stored in the state, because later actions depend on them.
    - `counted`: names of the status fields that are stored in the state when the run ends. They only serve to restore a
      lost status.
    - `finalizer`: the finalizer of runs that must finish some work before they are deleted.
    - `memory`: creates the empty in-memory data of a run (`RunSession.memory`).
    """

    kind: Kind
    model: type[R]
    conditions: tuple[str, ...] = conditions.RUN_CONDITIONS
    remembered: tuple[str, ...]
    counted: tuple[str, ...] = ()
    finalizer: str = ""
    memory: Callable[[], M]

    async def decided(self, session: RunSession[M], body: JsonObject, run: R, *, live: bool) -> S:
        """Gather facts and decide; with `live`, read from the API server instead of caches."""

    async def remember(self, step: S, status: JsonObject) -> JsonObject:
        """Create or change the objects that must exist before the state is stored. Returns further fields to store in
        the state."""

    async def follow_up(self, session: RunSession[M], step: S) -> None:
        """Carry out the steps of the decision that must come after the state has been stored."""

    def project(self, session: RunSession[M], step: S, now: float) -> JsonObject: ...

    async def settle(self, session: RunSession[M], body: JsonObject, run: R) -> float:
        """Clean up after a run whose end is stored. Returns the seconds until the next attempt, or 0 if the clean-up is
        done and the run may be deleted."""


class RunReconciler(Generic[R, S, M]):
    """Reconciles all runs of one kind: their Jobs or applications, states and statuses. Used on the event loop only."""

    def __init__(self, context: Context, kind: RunKind[R, S, M]) -> None:
        self._context = context
        self._kind = kind
        self._memory = RunMemory(context, kind.remembered, kind.counted)
        self._sessions = RunSessions(context.clock, kind.memory, context.queues[kind.kind].add)
        context.ending.push_async_callback(self._sessions.tasks.close)
        self._one_at_a_time = asyncio.Lock()

    async def reconcile(self, key: Key) -> float | None:
        context, kind = self._context, self._kind
        body = context.store.get(kind.kind, key)
        if body is None or (body["metadata"].get("deletionTimestamp") and not has_finalizer(body, kind.finalizer)):
            self._sessions.drop(key)
            context.statuses.drop_object(kind.kind.kind, key)
            context.states.drop_state(kind.kind, key)
            return None
        session = self._sessions.open(key, body["metadata"]["uid"])
        try:
            run, state, stored = self._memory.recall(body, kind.model.model_validate(body))
        except (ValidationError, UnreadableStateError) as error:
            problem = error.problem if isinstance(error, UnreadableStateError) else spec_problem(error)
            now_text = times.to_text(context.clock.wall())
            invalid = conditions.invalid_status(kind.conditions, problem.reason, problem.message, body, now_text)
            return await publish(context, body, invalid)
        if run.is_final and not run.is_reopened:
            session.start_over()
            return await self._finish(session, body, run, state)
        found = await self._advance(session, body, run, stored)
        return ENDED_SECONDS if found is None else await self._show(session, *found, run)

    async def _show(self, session: RunSession[M], step: S, before: RunState, run: R) -> float | None:
        """Store the state, call `follow_up`, and publish the status. Returns the seconds until the next reconcile, None
        if the run no longer exists."""
        now = self._context.clock.wall()
        status = self._kind.project(session, step, now)
        try:
            facts = self._memory.pick(status, step.decision) | await self._kind.remember(step, status)
            await self._memory.record(step.body, run, facts, step.decision, before)
        except StateTakenError as error:
            step = step.refused(Problem(conditions.NAME_TAKEN, str(error)))
            status = self._kind.project(session, step, now)
        except KubeForbiddenError:
            if not (step.decision.is_final and step.body["metadata"].get("deletionTimestamp")):
                raise
            # Nothing can be created in a namespace that is being deleted, so the end cannot be stored.
            await self._kind.settle(session, step.body, run)
        else:
            await self._kind.follow_up(session, step)
        if step.decision.is_final:
            session.record_end()
        again = await publish(self._context, step.body, status)
        return None if again is None else min(again, _pause(step.decision))

    async def _finish(self, session: RunSession[M], body: JsonObject, run: R, state: RunState) -> float | None:
        """Clean up after an ended run, and delete it after its TTL. Returns the same as `_show`."""
        key, ttl, taken = key_of(body), run.spec.ttl_seconds_after_finished, ""
        try:
            await self._memory.keep_end(body, run, state)
        except StateTakenError as error:
            taken = str(error)
            self._context.events.record(Event(body, "Warning", conditions.NAME_TAKEN, taken))
        wait = await self._kind.settle(session, body, run)
        again = await publish(self._context, body, self._final_status(run, state))
        if again is None:
            return None
        if taken:
            return min(again, QUEUED_SECONDS)  # keep the run, because its end is not recorded elsewhere
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
        """The status of an ended run, rebuilt from the state if the status was lost or the object was recreated."""
        if "conditions" in state.facts:
            return renew_final_status(run.status, run.metadata.generation)
        decision = RunDecision(state.facts["phase"], state.reason, state.message)
        verdicts = run_conditions(decision, None, unready=(), available="")
        now_text = times.to_text(self._context.clock.wall())
        return conditions.with_conditions(run.status, verdicts, now_text, run.metadata.generation)

    async def _advance(
        self, session: RunSession[M], body: JsonObject, run: R, stored: RunState
    ) -> tuple[S, RunState] | None:
        """Decide and act; a refusal by the API server becomes an obstacle.

        A decision to start or end a run is made a second time, from live reads, and only the second decision is carried
        out.

        Returns the step with the last decision, and the stored state on which that decision is based. Returns None if
        the object no longer exists, or if another operator has ended the run.
        """
        step = await self._kind.decided(session, body, run, live=False)
        report_changes(self._context.events, step)
        try:
            if step.decision.act is Act.CREATE or step.decision.is_final:
                async with self._one_at_a_time:
                    fresh = await self._context.store.read_again(body)
                    if fresh is None:
                        return None
                    await self._memory.refresh(fresh, run.group_key)
                    known, state, stored = self._memory.recall(fresh, self._kind.model.model_validate(fresh))
                    if state.is_final and not known.is_reopened:
                        return None  # another operator has ended the run
                    step = await self._kind.decided(session, fresh, known, live=True)
                    await self._act(step)
            else:
                await self._act(step)
        except KubeNotFoundError:
            if await self._context.store.read_again(body) is None:
                return None
            raise
        except (KubeInvalidError, KubeForbiddenError, ForeignObjectError) as error:
            return step.refused(Problem(conditions.REFUSED_BY_API_SERVER, str(error))), stored
        if step.decision.act is Act.CREATE:
            log.info("run started", extra={"key": "/".join(key_of(body)), "kind": body["kind"]})
        return step, stored

    async def _act(self, step: Step) -> None:
        store, act, child = self._context.store, step.decision.act, step.child
        if act is Act.NOTHING:
            return
        if act is Act.CREATE:
            await _create(store, step.body, step.children())
            return
        assert child is not None, "only an existing child can be changed"
        if act is Act.DELETE:
            await store.delete(kind_of(child), child)
            return
        # Replace, do not apply: a Job's template is immutable, and this operator version might render a different
        # template.
        found = await read_live(store, step.body, JOB, key_of(child)[1])
        if found is not None:
            spec = {**found["spec"], "suspend": True}
            store.learn(JOB, await store.kube.replace({**found, "spec": spec}))


def report_changes(events: EventRecorder, step: Step) -> None:
    """Report changes by other clients to a Job or SparkApplication. The changes are not reverted, because this would
    start the run's work a second time."""
    if step.child is None or step.decision.is_final:
        return
    metadata = step.child["metadata"]
    others = ", ".join(others_fields(metadata)) or ("another client" if metadata.get(EDITED) else "")
    if others:
        of = step.body["kind"]
        note = (
            f"{step.child['kind']} `{metadata['name']}` was changed by {others}: it may no longer do what this "
            f"{of} specifies; delete the {of} and create it again"
        )
        events.record(Event(step.body, "Warning", "ChangedByOthers", note))


def _pause(decision: RunDecision) -> float:
    """Longest time until the next reconcile, in seconds."""
    if decision.is_final:
        return ENDED_SECONDS
    if decision.is_recorded_first:
        return NEXT_SECONDS
    if decision.place:
        return min(WATCH_SECONDS * decision.place, QUEUED_SECONDS)
    waits = decision.phase != "Paused" or decision.reason != conditions.SUSPENDED
    return WATCH_SECONDS if waits else float("inf")


async def _create(store: Store, owner: JsonObject, children: RunChildren) -> None:
    await require_living(store, owner)
    for child in children.once:
        try:
            await store.kube.create(child)
        except KubeConflictError:
            await require_ours(store, owner, child)
    for child in children.applied:
        await require_ours(store, owner, child)
        await store.kube.apply(child)  # not through the store, because this object's kind is not watched
    try:
        store.learn(kind_of(children.run), await store.kube.create(children.run))
    except KubeConflictError:
        await require_ours(store, owner, children.run)
        raise  # the child is ours and was created a moment ago: the next reconcile finds the child
