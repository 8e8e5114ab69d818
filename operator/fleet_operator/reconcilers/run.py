"""Runs of Redrives and Backfills: created and deleted, with live reads before what cannot be taken back.

Caches are enough to decide that nothing is to be done. Before a run is started, and before an end is recorded for ever,
everything is read live, one run at a time: two that both see nobody at work must not both begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.model import CustomResource
from fleet_operator.clients.kinds import JOB, JsonObject, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeForbiddenError, KubeInvalidError
from fleet_operator.planning import times
from fleet_operator.planning.drift import EDITED, others_fields
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Act
from fleet_operator.reconcilers.context import ForeignObjectError, read_live, require_living, require_ours
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.events import EventRecorder, News
from fleet_operator.runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChildren:
    """The objects of a run that is started: what it needs, in the order of their making, and the run itself.

    `once` are made if they are not there, and never changed; `applied` are made as they are given.
    """

    once: tuple[JsonObject, ...] = ()
    applied: tuple[JsonObject, ...]
    run: JsonObject


class Run(Protocol):
    """A run as found, and the decision about its Job or application.

    `body` owns the child, `is_final` says that the run has ended.
    """

    @property
    def body(self) -> JsonObject: ...
    @property
    def child(self) -> JsonObject | None: ...
    @property
    def act(self) -> Act: ...
    @property
    def is_final(self) -> bool: ...

    def children(self) -> RunChildren: ...


R = TypeVar("R", bound=Run)


class Runs:
    """All runs of one kind. Used on the event loop only."""

    def __init__(self, store: Store, events: EventRecorder) -> None:
        self._store = store
        self._events = events
        self._one_at_a_time = asyncio.Lock()

    async def advance(self, seen: R, live: Callable[[], Awaitable[R]]) -> tuple[R, Problem | None]:
        """Carry out a decision; returns the run that was acted on, and the API server's refusal if there was one.

        `seen` rests on caches, `live` on live reads. An end that turns out to be none may become a start. Raises
        KubeError for what may pass by itself.
        """
        self._report_changes(seen)
        try:
            if seen.act in (Act.CREATE, Act.RESUME) or seen.is_final:
                async with self._one_at_a_time:
                    seen = await live()
                    await self._act(seen)
            else:
                await self._act(seen)
        except (KubeInvalidError, KubeForbiddenError, ForeignObjectError) as error:
            return seen, Problem(conditions.REFUSED_BY_API_SERVER, str(error))
        return seen, None

    def _report_changes(self, run: Run) -> None:
        """Tell of what others have set in a Job or application: it is never put back, for that would run it again."""
        if run.child is None or run.is_final:
            return
        metadata = run.child["metadata"]
        others = ", ".join(others_fields(metadata)) or ("another hand" if metadata.get(EDITED) else "")
        if others:
            of = run.body["kind"]
            note = (
                f"{run.child['kind']} `{metadata['name']}` was changed by {others}: what it does may not be what this "
                f"{of} says; delete the {of} and create it again"
            )
            self._events.record(News(run.body, "Warning", "ChangedByOthers", note))

    async def _act(self, run: Run) -> None:
        if run.act is Act.NOTHING:
            return
        if run.act is Act.CREATE:
            await self._create(run)
            return
        assert run.child is not None, "only what is there is changed"
        if run.act is Act.DELETE:
            await self._store.delete(kind_of(run.child), run.child)
            return
        # Replaced and not applied: a Job's template can never change, and this operator might render another one.
        found = await read_live(self._store, run.body, JOB, key_of(run.child)[1])
        if found is not None:
            spec = {**found["spec"], "suspend": run.act is Act.SUSPEND}
            self._store.learn(JOB, await self._store.kube.replace({**found, "spec": spec}))

    async def _create(self, run: Run) -> None:
        """Make what the run reads, then the run."""
        store, owner = self._store, run.body
        await require_living(store, owner)
        children = run.children()
        for child in children.once:
            await self._create_once(owner, child)
        for child in children.applied:
            await require_ours(store, owner, child)
            await store.kube.apply(child)  # not by way of the store, for no watch covers it
        try:
            store.learn(kind_of(children.run), await store.kube.create(children.run))
        except KubeConflictError:
            await require_ours(store, owner, children.run)
            raise  # ours, made a moment ago: the next reconcile sees it

    async def _create_once(self, owner: JsonObject, child: JsonObject) -> None:
        try:
            await self._store.kube.create(child)
        except KubeConflictError:
            await require_ours(self._store, owner, child)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run (monotonic seconds), or the first look of a process that did not see it end."""

    uid: str
    at: float
    seen: bool


class Expiry:
    """Ends of Redrives or Backfills. An operator that saw an end measures from it; one that was started since believes
    the status.

    So a wall clock that jumps ahead deletes nothing that this process saw end. One that jumps back, and leaves ends in
    the future, delays a deletion by the whole time at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[Key, End] = {}

    def ended(self, key: Key, run: CustomResource) -> None:
        """Remember that a run has ended just now."""
        known = self._ends.get(key)
        if known is None or known.uid != run.metadata.uid:
            self._ends[key] = End(run.metadata.uid, self._clock.monotonic(), seen=True)

    def seconds_left(self, key: Key, run: CustomResource, ttl_seconds: int) -> float:
        """Seconds until a run that has ended may be deleted; none are left at 0 and below."""
        end = self._ends.get(key)
        if end is None or end.uid != run.metadata.uid:
            end = self._ends[key] = End(run.metadata.uid, self._clock.monotonic(), seen=False)
        left = end.at + ttl_seconds - self._clock.monotonic()
        finished = times.from_text(run.status.get("finishedAt"))
        if end.seen or finished is None:
            return left
        return min(left, finished + ttl_seconds - self._clock.wall())

    def forget(self, key: Key) -> None:
        self._ends.pop(key, None)
