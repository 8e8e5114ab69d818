"""Backfills: what is decided from what is gathered, their children, their status, and the orders to their drivers.

`reconcilers.run` has the reconcile itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import Control
from fleet_operator.api.v1alpha1 import Backfill, KafkaCluster, conditions
from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP, SPARK_APPLICATION, JsonObject
from fleet_operator.planning.backfill import manifests
from fleet_operator.planning.backfill.manifests import backfill_config, for_attempt
from fleet_operator.planning.backfill.phase import BackfillDecision, LiveGroup, control_of, decide
from fleet_operator.planning.backfill.readings import AT_LEAST, Kept, Progress, read_kept, round_down
from fleet_operator.planning.backfill.spark import read_application
from fleet_operator.planning.backfill.status import COUNTED, DECIDING, project_backfill_status
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.planning.run import Act
from fleet_operator.reconcilers.backfill.gather import Frozen, Gathered, Gatherer, Memory, read_frozen
from fleet_operator.reconcilers.context import Context, ForeignObjectError, read_live, require_ours
from fleet_operator.reconcilers.run import RunChildren
from fleet_operator.reconcilers.run_session import RunSession
from fleet_operator.runtime.cache import key_of

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 60.0
"""Orders that stay the same are written again after this time, in case somebody has changed them."""


GUARD: Final = "Guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStep:
    """A Backfill, what it depends on, and the decision about it. `frozen` is what a further attempt is made from."""

    found: Gathered
    decision: BackfillDecision
    orders: Control
    context: Context
    frozen: Frozen | None = None

    @property
    def body(self) -> JsonObject:
        return self.found.body

    @property
    def child(self) -> JsonObject | None:
        return self.found.application

    def refused(self, problem: Problem) -> BackfillStep:
        return replace(self, decision=BackfillDecision.of("Pending", problem))

    def children(self) -> RunChildren:
        facts, referenced, settings = self.found.facts, self.found.referenced, self.context.settings
        backfill, group, cluster = facts.backfill, referenced.group, referenced.cluster
        assert group is not None, "a Backfill without its group has an obstacle"
        assert isinstance(cluster, KafkaCluster), "a Backfill without its cluster has an obstacle"
        handlers, frozen = self.found.handlers, self.frozen
        sources = manifests.sources(backfill, handlers) if frozen is None and handlers is not None else []
        made = frozen or handlers
        assert made is not None, "a Backfill without its handlers has an obstacle"
        return RunChildren(
            once=(manifests.ledger(backfill),) if backfill.attempts == 1 else (),
            applied=(
                *manifests.driver_rights(backfill, settings.spark_driver_role, manifests.executor_account(group)),
                *sources,
                manifests.settings(backfill, self._config()),
                manifests.control(backfill, self.orders),
            ),
            run=manifests.application(backfill, group, cluster, made.files, image=self._image()),
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
        assert isinstance(progress, Progress), "an attempt is started with a ledger that can be read"
        return progress.next_pass

    def _image(self) -> str:
        spec = self.found.facts.backfill.spec
        if self._pass() == "Candidate" and spec.compare is not None and spec.compare.image is not None:
            return spec.compare.image
        return spec.spark.image or self.context.settings.spark_image


class Backfills:
    """All Backfills, as a `RunKind`."""

    kind = BACKFILL
    model = Backfill
    conditions = conditions.BACKFILL_CONDITIONS
    finalizer = ""
    memory = Memory
    remembered = ("phase", "retries", AT_LEAST, *DECIDING)
    counted = (*COUNTED, "estimate")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._gatherer = Gatherer(context)

    async def decided(
        self, session: RunSession[Memory], body: JsonObject, run: Backfill, *, live: bool
    ) -> BackfillStep:
        found = await self._gatherer.read(session.memory, body, run.played, live=live)
        decision = decide(found.facts)
        if not run.attempts and (decision.resolved is not None or decision.attempt is not None):
            # What rests on a status must not rest on one that was lost.
            found = replace(found, facts=replace(found.facts, kept=await self._kept(body, run)))
            decision = decide(found.facts)
        frozen: Frozen | None = None
        if decision.act is Act.CREATE and found.handlers is None:
            kept = await read_frozen(self._context.store, body, run)
            if isinstance(kept, Problem):
                found = replace(found, facts=replace(found.facts, lost=kept))
                decision = decide(found.facts)
            else:
                frozen = kept
        return BackfillStep(
            found=found,
            decision=decision,
            orders=_orders(found),
            context=self._context,
            frozen=frozen,
        )

    async def _kept(self, body: JsonObject, backfill: Backfill) -> Kept | None:
        """Read live whether there were attempts that the status does not know of. Raises KubeError."""
        store, name = self._context.store, backfill.metadata.name
        settings = await read_live(store, body, CONFIG_MAP, naming.backfill_settings(name))
        ledger = await read_live(store, body, CONFIG_MAP, naming.backfill_ledger(name))
        return read_kept(backfill, settings, ledger)

    async def remember(self, step: BackfillStep, status: JsonObject) -> JsonObject:
        at_least = step.found.memory.at_least
        if at_least is None or step.decision.is_final:
            return {}
        return {AT_LEAST: round_down(at_least, status.get("offsetsTotal", 0))}

    async def follow_up(self, session: RunSession[Memory], step: BackfillStep) -> None:
        """Give a driver its orders; have the range of one without it read, for the next reconcile."""
        facts = step.found.facts
        if step.decision.phase == "Running" and not facts.application.state.over:
            try:
                await self._give_orders(step.found)
            except ForeignObjectError as error:
                fields = {"key": "/".join(key_of(step.body)), "error": str(error)}
                log.warning("orders cannot be given", extra=fields)
        asks = step.decision.phase in ("Resolving", "Pending") and facts.resolved is None and facts.obstacle is None
        if asks and step.decision.resolved is None:
            self._gatherer.ask_range(session, step.found)

    async def _give_orders(self, found: Gathered) -> None:
        """Write the orders, unless they are known to stand. Raises KubeError and ForeignObjectError."""
        memory, orders, now = found.memory, _orders(found), self._context.clock.monotonic()
        if memory.orders == orders and now - memory.ordered_at < RENEW_SECONDS:
            return
        body = manifests.control(found.facts.backfill, orders)
        await require_ours(self._context.store, found.body, body)
        await self._context.store.kube.apply(body)
        memory.orders, memory.ordered_at = orders, now

    def project(self, session: RunSession[Memory], step: BackfillStep, now: float) -> JsonObject:
        return project_backfill_status(step.found.facts, step.decision, now)

    async def settle(self, session: RunSession[Memory], body: JsonObject, run: Backfill) -> float:
        """Delete the application of a Backfill that has ended before it: its end is on record by now."""
        if session.settled or not run.attempts:
            return 0.0
        name = naming.backfill_application(session.key[1], run.attempts)
        found = await read_live(self._context.store, body, SPARK_APPLICATION, name)
        if found is not None and not read_application(found).state.over:
            await self._context.store.delete(SPARK_APPLICATION, found)
        session.settled = True
        return 0.0


def _orders(found: Gathered) -> Control:
    """The orders for a driver now."""
    facts, group, seen, before = found.facts, found.referenced.group, found.referenced.seen, found.memory.orders
    if before is not None and before.guard is not None:
        paused = before.guard.pause
    else:
        # A process that has given no orders yet goes by what the driver says about those of the one before.
        ledger = facts.progress.ledger if isinstance(facts.progress, Progress) else None
        paused = ledger is not None and ledger.throttled_by == GUARD
    live = None
    if group is not None and seen is not None:
        lag = view_group(group, seen, None, own_cluster=False).lag
        live = LiveGroup(seen.observed_at, lag.behind if lag is not None and lag.complete else None)
    return control_of(facts.backfill, live, stop=facts.stop, paused=paused)
