"""Reconciles Backfill: gather, decide, do one thing about its Spark application, publish."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import Control
from fleet_operator.api.v1alpha1 import Backfill, KafkaCluster, conditions
from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP, JsonObject
from fleet_operator.clients.kube import KubeNotFoundError
from fleet_operator.clients.spark import SparkBackend
from fleet_operator.planning import times
from fleet_operator.planning.backfill import manifests, needs
from fleet_operator.planning.backfill.manifests import backfill_config, for_attempt
from fleet_operator.planning.backfill.phase import BackfillDecision, BackfillFacts, LiveGroup, control_of, decide
from fleet_operator.planning.backfill.readings import Kept, Progress, read_kept
from fleet_operator.planning.backfill.status import (
    project_backfill_status,
)
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.planning.run import Act, renew_final_status
from fleet_operator.reconcilers.backfill.gather import GUARD, Frozen, Gathered, Gatherer, read_frozen
from fleet_operator.reconcilers.backfill.watch import RangeWatch
from fleet_operator.reconcilers.context import Context, ForeignObjectError, publish, read_live, require_ours
from fleet_operator.reconcilers.references import ReferencedGroup
from fleet_operator.reconcilers.run import Expiry, RunChildren, Runs
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.dispatcher import Result

RENEW_SECONDS: Final = 60.0
"""Orders that stay the same are written again after this time, in case somebody has changed them."""


@dataclass(frozen=True, slots=True)
class _Given:
    uid: str
    orders: Control
    at: float


class Orders:
    """The orders to all drivers. Used on the event loop only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._given: dict[Key, _Given] = {}

    def forget(self, key: Key) -> None:
        self._given.pop(key, None)

    def wanted(self, key: Key, facts: BackfillFacts, referenced: ReferencedGroup) -> Control:
        """The orders for a driver now."""
        given = self._given.get(key)
        if given is not None and given.uid == facts.backfill.metadata.uid and given.orders.guard is not None:
            paused = given.orders.guard.pause
        else:
            paused = facts.backfill.status.get("throttledBy") == GUARD
        return control_of(facts.backfill, _live(referenced), stop=facts.stop, paused=paused)

    async def give(self, found: Gathered) -> None:
        """Write the orders, unless they are known to stand. Raises KubeError and ForeignObjectError."""
        key, uid, now = key_of(found.body), found.body["metadata"]["uid"], self._context.clock.monotonic()
        orders, given = self.wanted(key, found.facts, found.referenced), self._given.get(key)
        if given is not None and (given.uid, given.orders) == (uid, orders) and now - given.at < RENEW_SECONDS:
            return
        body = manifests.control(found.facts.backfill, orders)
        await require_ours(self._context.store, found.body, body)
        await self._context.store.kube.apply(body)
        self._given[key] = _Given(uid, orders, now)


def _live(referenced: ReferencedGroup) -> LiveGroup | None:
    group, seen = referenced.group, referenced.observation
    if group is None or seen is None:
        return None
    view = view_group(group, seen, None, own_cluster=False)
    lag = view.lag
    return LiveGroup(seen.observed_at, lag.behind if lag is not None and lag.complete else None)


log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 5.0
"""The interval at which a running or waiting Backfill is looked at: no watch reports its ledger."""
NEXT_SECONDS: Final = 0.5
"""The pause before a step that rests on the status which was just written."""
ENDED_SECONDS: Final = 1.0
"""The pause between the visit that sees a Backfill end and the one that clears up after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStep:
    """A Backfill, what it depends on, and the decision about it. `frozen` is what a further attempt is made from."""

    found: Gathered
    decision: BackfillDecision
    orders: Control
    backend: SparkBackend
    context: Context
    frozen: Frozen | None = None

    @property
    def body(self) -> JsonObject:
        return self.found.body

    @property
    def child(self) -> JsonObject | None:
        return self.found.application

    @property
    def act(self) -> Act:
        return self.decision.act

    @property
    def is_final(self) -> bool:
        return self.decision.is_final

    def children(self) -> RunChildren:
        facts, referenced, settings = self.found.facts, self.found.referenced, self.context.settings
        backfill, group, cluster = facts.backfill, referenced.group, referenced.cluster
        assert group is not None, "a Backfill without its group has an obstacle"
        assert isinstance(cluster, KafkaCluster), "a Backfill without its cluster has an obstacle"
        handlers, frozen = self.found.handlers, self.frozen
        sources = manifests.sources(backfill, handlers) if frozen is None and handlers is not None else []
        if frozen is not None:
            handler_keys, candidate_keys = frozen.handler_keys, frozen.candidate_keys
        else:
            assert handlers is not None, "a Backfill without its handlers has an obstacle"
            handler_keys, candidate_keys = _keys(handlers.handler_files), _keys(handlers.candidate_files)
        launch = manifests.launch(
            backfill,
            group,
            cluster,
            image=self._image(),
            handler_keys=handler_keys,
            candidate_keys=candidate_keys,
        )
        return RunChildren(
            once=(manifests.ledger(backfill),) if backfill.attempts == 1 else (),
            applied=(
                *manifests.driver_rights(backfill, settings.spark_driver_role, manifests.executor_account(group)),
                *sources,
                manifests.settings(backfill, self._config()),
                manifests.control(backfill, self.orders),
            ),
            run=self.backend.render(launch),
        )

    def _config(self) -> dict[str, Any]:
        facts, referenced = self.found.facts, self.found.referenced
        group, cluster, handlers = referenced.group, referenced.cluster, self._pass()
        assert group is not None
        assert isinstance(cluster, KafkaCluster)
        assert facts.resolved is not None, "an attempt is numbered once there is a range"
        if self.frozen is not None:
            connection = worker_config(group, cluster, revision="")["connection"]
            return for_attempt(self.frozen.config, connection, handlers)
        assert self.found.handlers is not None
        return backfill_config(facts.backfill, facts.resolved, self.found.handlers.worker, handlers)

    def _pass(self) -> str:
        progress = self.found.facts.progress
        assert isinstance(progress, Progress), "an attempt is started beside a ledger that can be read"
        return progress.next_pass

    def _image(self) -> str:
        spec = self.found.facts.backfill.spec
        if self._pass() == "Candidate" and spec.compare is not None and spec.compare.image is not None:
            return spec.compare.image
        return spec.spark.image or self.context.settings.spark_image


class BackfillReconciler:
    """Keeps each Backfill's Spark application and status as its object says."""

    def __init__(self, context: Context, ranges: RangeWatch, backend: SparkBackend) -> None:
        self._context = context
        self._ranges = ranges
        self._backend = backend
        self._gatherer = Gatherer(context, ranges, backend)
        self._orders = Orders(context)
        self._expiry = Expiry(context.clock)
        self._runs = Runs(context.store, context.events)
        self._cleared: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> Result:
        """Bring one Backfill one step closer to its end; raises KubeError to be tried again."""
        context = self._context
        body = context.store.get(BACKFILL, key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            self._expiry.forget(key)
            self._cleared.pop(key, None)
            context.statuses.forget(BACKFILL.kind, key)
            return Result()
        now, generation = context.clock.wall(), body["metadata"].get("generation", 0)
        try:
            backfill = Backfill.model_validate(body)
        except ValidationError as error:
            problem = spec_problem(error)
            status = conditions.invalid_status(
                conditions.BACKFILL_CONDITIONS, problem.reason, problem.message, body, times.to_text(now)
            )
            return Result(await publish(context, body, status))
        if backfill.is_final:
            self._forget(key)
            await self._clear(body, backfill)
            again = await publish(context, body, renew_final_status(backfill.status, generation))
            return Result(await self._expire(body, backfill, again))
        step = await self._advance(body, backfill)
        if step is None:
            return Result(ENDED_SECONDS)
        decision, facts = step.decision, step.found.facts
        await self._follow_up(step)
        if decision.is_final:
            self._expiry.ended(key, backfill)
        again = await publish(context, step.body, project_backfill_status(facts, decision, now))
        return Result(self._next_visit(decision, again))

    def _forget(self, key: Key) -> None:
        self._ranges.forget(key)
        self._gatherer.forget(key)
        self._orders.forget(key)

    async def _advance(self, body: JsonObject, backfill: Backfill) -> BackfillStep | None:
        """Decide and act; a refusal of the API server is an obstacle like any other. None if the object is gone."""
        seen = await self._decided(body, backfill, live=False)

        async def live() -> BackfillStep:
            fresh = await self._gatherer.fresh(body)
            if fresh is None:
                raise KubeNotFoundError(f"Backfill {'/'.join(key_of(body))} is gone")
            return await self._decided(fresh, Backfill.model_validate(fresh), live=True)

        try:
            step, refusal = await self._runs.advance(seen, live)
        except KubeNotFoundError:
            if await self._gatherer.fresh(body) is None:
                return None
            raise
        if refusal is not None:
            refused = BackfillDecision("Pending", refusal.reason, refusal.message)
            return replace(step, decision=refused)
        if step.act is Act.CREATE:
            fields = {"key": "/".join(key_of(body)), "attempt": step.found.facts.backfill.attempts}
            log.info("attempt of a backfill started", extra=fields)
        return step

    async def _decided(self, body: JsonObject, backfill: Backfill, *, live: bool) -> BackfillStep:
        found = await self._gatherer.read(body, backfill, live=live)
        decision = decide(found.facts)
        if not backfill.attempts and (decision.resolved is not None or decision.attempt is not None):
            # What rests on a status must not rest on one that was lost.
            found = replace(found, facts=replace(found.facts, kept=await self._kept(body, backfill)))
            decision = decide(found.facts)
        frozen: Frozen | None = None
        if decision.act is Act.CREATE and found.handlers is None:
            kept = await read_frozen(self._context.store, body, backfill)
            if isinstance(kept, Problem):
                found = replace(found, facts=replace(found.facts, lost=kept))
                decision = decide(found.facts)
            else:
                frozen = kept
        return BackfillStep(
            found=found,
            decision=decision,
            orders=self._orders.wanted(key_of(body), found.facts, found.referenced),
            backend=self._backend,
            context=self._context,
            frozen=frozen,
        )

    async def _kept(self, body: JsonObject, backfill: Backfill) -> Kept | None:
        """Read live whether there were attempts that the status does not know of. Raises KubeError."""
        store, name = self._context.store, backfill.metadata.name
        settings = await read_live(store, body, CONFIG_MAP, naming.backfill_settings(name))
        ledger = await read_live(store, body, CONFIG_MAP, naming.backfill_ledger(name))
        return read_kept(backfill, settings, ledger)

    async def _follow_up(self, step: BackfillStep) -> None:
        """Go on beside the decision: with a question for the range, orders to a driver."""
        facts, referenced, key = step.found.facts, step.found.referenced, key_of(step.body)
        if step.decision.phase == "Running" and not facts.application.state.over:
            try:
                await self._orders.give(step.found)
            except ForeignObjectError as error:
                log.warning("orders cannot be given", extra={"key": "/".join(key), "error": str(error)})
        asks = step.decision.phase in ("Resolving", "Pending") and facts.resolved is None and facts.obstacle is None
        if not asks or step.decision.resolved is not None:
            return
        group, seen = referenced.group, referenced.observation
        assert group is not None, "without a group there is an obstacle"
        assert seen is not None, "without an observation there is an obstacle"
        topic = needs.source_topic(facts.backfill, group)
        if isinstance(topic, str):
            self._ranges.ask(key, facts.backfill, group, topic, seen.cluster_id)

    def _next_visit(self, decision: BackfillDecision, again: float | None) -> float | None:
        if again is None:
            return None
        if decision.is_final:
            return min(again, ENDED_SECONDS)
        if decision.resolved is not None or decision.attempt is not None or decision.ended is not None:
            return min(again, NEXT_SECONDS)
        waits = decision.phase != "Paused" or decision.reason != conditions.SUSPENDED
        return min(again, WATCH_SECONDS) if waits else again

    async def _clear(self, body: JsonObject, backfill: Backfill) -> None:
        """Delete the application of a Backfill that has ended before it: its end is on record by now."""
        key, uid = key_of(body), backfill.metadata.uid
        if self._cleared.get(key) == uid or not backfill.attempts:
            return
        name = naming.backfill_application(key[1], backfill.attempts)
        found = await read_live(self._context.store, body, self._backend.kind, name)
        if found is not None and not self._backend.observe(found).state.over:
            await self._context.store.delete(self._backend.kind, found)
        self._cleared[key] = uid

    async def _expire(self, body: JsonObject, backfill: Backfill, again: float | None) -> float | None:
        """Delete a Backfill that has ended when its time is over; returns the seconds until the next visit."""
        ttl, key = backfill.spec.ttl_seconds_after_finished, key_of(body)
        if ttl is None or again is None:
            return again
        left = self._expiry.seconds_left(key, backfill, ttl)
        if left > 0:
            return min(again, left)
        if await self._context.store.delete_unchanged(BACKFILL, body):
            log.info("finished backfill deleted", extra={"key": "/".join(key), "phase": backfill.status["phase"]})
        return again


def _keys(files: Mapping[str, str] | None) -> tuple[str, ...] | None:
    return tuple(sorted(files)) if files is not None else None
