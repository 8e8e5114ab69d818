"""Jobs of runs: created, suspended, resumed and deleted, with live reads before what cannot be taken back.

Caches are enough to decide that nothing is to be done. Before a run is started, and before an end is recorded for ever,
everything is read live, one run at a time: two that both see nobody at work must not both begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import JOB, JsonObject
from fleet_operator.clients.kube import KubeConflictError, KubeForbiddenError, KubeInvalidError
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Act
from fleet_operator.reconcilers.context import ForeignObjectError, is_owned_by, require_living, require_ours
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store


class Run(Protocol):
    """A run as found, and the decision about its Job.

    `body` owns the Job, `is_final` says that the run has ended. `children` are the ConfigMap of the Job's settings and
    the Job, for a run that may be started.
    """

    @property
    def body(self) -> JsonObject: ...
    @property
    def job(self) -> JsonObject | None: ...
    @property
    def act(self) -> Act: ...
    @property
    def is_final(self) -> bool: ...

    def children(self) -> tuple[JsonObject, JsonObject]: ...


R = TypeVar("R", bound=Run)


class RunJobs:
    """The Jobs of all runs of one kind. Used on the event loop only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._one_at_a_time = asyncio.Lock()

    async def advance(self, seen: R, live: Callable[[], Awaitable[R]]) -> tuple[R, Problem | None]:
        """Carry out a decision; returns the run that was acted on, and the API server's refusal if there was one.

        `seen` rests on caches, `live` on live reads. An end that turns out to be none may become a start. Raises
        KubeError for what may pass by itself.
        """
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

    async def _act(self, run: Run) -> None:
        if run.act is Act.NOTHING:
            return
        if run.act is Act.CREATE:
            await self._create(run)
            return
        assert run.job is not None, "only a Job that is there is changed"
        if run.act is Act.DELETE:
            await self._store.delete(JOB, run.job)
            return
        # Replaced and not applied: a Job's template can never change, and this operator might render another one.
        found = await self._store.kube.get(JOB, *key_of(run.job))
        if found is not None and is_owned_by(found, run.body):
            spec = {**found["spec"], "suspend": run.act is Act.SUSPEND}
            self._store.learn(JOB, await self._store.kube.replace({**found, "spec": spec}))

    async def _create(self, run: Run) -> None:
        """The settings first, then the Job that reads them."""
        store, owner = self._store, run.body
        await require_living(store, owner)
        settings, job = run.children()
        await require_ours(store, owner, settings)
        await store.kube.apply(settings)  # not by way of the store, for no watch covers it
        try:
            store.learn(JOB, await store.kube.create(job))
        except KubeConflictError:
            await require_ours(store, owner, job)
            raise  # ours, made a moment ago: the next reconcile sees it
