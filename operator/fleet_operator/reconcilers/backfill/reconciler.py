"""Reconciles Backfills: decides, renders the children, computes the status, and writes instructions for the drivers.

The reconcile loop that all kinds of runs share is in `reconcilers.run`.
"""

import logging
from dataclasses import dataclass, replace
from typing import Final, Self

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import Control
from fleet_operator.api.v1alpha1 import Backfill, KafkaCluster, conditions
from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP, SPARK_APPLICATION, JsonObject
from fleet_operator.planning.backfill import manifests
from fleet_operator.planning.backfill.manifests import backfill_config, for_attempt
from fleet_operator.planning.backfill.parsing import AT_LEAST, Kept, Progress, read_kept, round_down
from fleet_operator.planning.backfill.phase import BackfillDecision, control_of, decide
from fleet_operator.planning.backfill.spark import read_application
from fleet_operator.planning.backfill.status import COUNTED, DECIDING, project_backfill_status
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.planning.run import Act
from fleet_operator.reconcilers.backfill.gather import Frozen, Gathered, Gatherer, Memory, read_frozen
from fleet_operator.reconcilers.context import Context, ForeignObjectError, read_live, require_ours
from fleet_operator.reconcilers.run import RunChildren, RunKind
from fleet_operator.reconcilers.run_session import RunSession
from fleet_operator.runtime.cache import key_of

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 60.0
"""Seconds after which unchanged instructions for a driver are written again, in case somebody has edited them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStep:
    """A Backfill, its dependencies, and the decision about it. `control`: instructions for the driver; `frozen`:
    settings and sources of the first attempt, only for a later attempt."""

    found: Gathered
    decision: BackfillDecision
    control: Control
    context: Context
    frozen: Frozen | None = None

    @property
    def body(self) -> JsonObject:
        return self.found.body

    @property
    def child(self) -> JsonObject | None:
        return self.found.application

    def refused(self, problem: Problem) -> Self:
        return replace(self, decision=BackfillDecision.from_problem("Pending", problem))

    def children(self) -> RunChildren:
        facts, referenced, settings = self.found.facts, self.found.referenced, self.context.settings
        backfill, group, cluster, progress = facts.backfill, referenced.group, referenced.cluster, facts.progress
        made = self.frozen or self.found.handlers
        assert group is not None, "no attempt starts without the ConsumerGroup"
        assert isinstance(cluster, KafkaCluster), "no attempt starts without the KafkaCluster"
        assert made is not None, "no attempt starts without the handlers"
        assert isinstance(progress, Progress), "an attempt needs a readable ledger"
        assert facts.resolved is not None, "an attempt needs a resolved range"
        spec, next_pass = backfill.spec, progress.next_pass
        sources: list[JsonObject] = []
        if isinstance(made, Frozen):
            connection = worker_config(group, cluster)["connection"]
            config = for_attempt(made.config, connection, next_pass)
        else:
            sources = manifests.sources(backfill, made)
            config = backfill_config(backfill, facts.resolved, made.worker, next_pass)
        candidate = spec.compare.image if spec.compare is not None and next_pass == "Candidate" else None
        image = candidate or spec.spark.image or settings.spark_image
        return RunChildren(
            once=(manifests.ledger(backfill),) if backfill.attempts == 1 else (),
            applied=(
                *manifests.driver_permissions(backfill, settings.spark_driver_role, manifests.executor_account(group)),
                *sources,
                manifests.settings(backfill, config),
                manifests.control(backfill, self.control),
            ),
            run=manifests.application(backfill, group, cluster, made.files, image=image),
        )


class Backfills(RunKind[Backfill, BackfillStep, Memory]):
    kind = BACKFILL
    model = Backfill
    conditions = conditions.BACKFILL_CONDITIONS
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
            # The status may have been lost, so search for earlier attempts.
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
            control=_control_for(found),
            context=self._context,
            frozen=frozen,
        )

    async def _kept(self, body: JsonObject, backfill: Backfill) -> Kept | None:
        """Read the settings and the ledger of earlier attempts from the API server, because the cache may be old.
        Returns None if there were no earlier attempts. Raises KubeError."""
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
        """Write the instructions for a running driver. If the range is not resolved yet, start to resolve it for the
        next reconcile."""
        facts = step.found.facts
        if step.decision.phase == "Running" and not facts.application.state.over:
            try:
                await self._write_control(step.found)
            except ForeignObjectError as error:
                fields = {"key": "/".join(key_of(step.body)), "error": str(error)}
                log.warning("control cannot be written", extra=fields)
        asks = step.decision.phase in ("Resolving", "Pending") and facts.resolved is None and facts.obstacle is None
        if asks and step.decision.resolved is None:
            self._gatherer.ask_range(session, step.found)

    async def _write_control(self, found: Gathered) -> None:
        """Write the instructions for the driver, unless the same instructions were written within RENEW_SECONDS. Raises
        KubeError and ForeignObjectError."""
        memory, control, now = found.memory, _control_for(found), self._context.clock.monotonic()
        if memory.control == control and now - memory.control_written_at < RENEW_SECONDS:
            return
        body = manifests.control(found.facts.backfill, control)
        await require_ours(self._context.store, found.body, body)
        await self._context.store.kube.apply(body)
        memory.control, memory.control_written_at = control, now

    def project(self, session: RunSession[Memory], step: BackfillStep, now: float) -> JsonObject:
        return project_backfill_status(step.found.facts, step.decision, now)

    async def settle(self, session: RunSession[Memory], body: JsonObject, run: Backfill) -> float:
        """Delete a SparkApplication that still runs after its Backfill's end, which is already recorded."""
        if session.settled or not run.attempts:
            return 0.0
        name = naming.backfill_application(session.key[1], run.attempts)
        found = await read_live(self._context.store, body, SPARK_APPLICATION, name)
        if found is not None and not read_application(found).state.over:
            await self._context.store.delete(SPARK_APPLICATION, found)
        session.settled = True
        return 0.0


def _control_for(found: Gathered) -> Control:
    facts, group, seen, before = found.facts, found.referenced.group, found.referenced.seen, found.memory.control
    if before is not None and before.guard is not None:
        paused = before.guard.pause
    else:
        # A new process does not know the last instructions. The ledger shows if they paused the driver.
        ledger = facts.progress.ledger if isinstance(facts.progress, Progress) else None
        paused = ledger is not None and ledger.throttled_by == "Guard"
    if group is None or seen is None:
        return control_of(facts.backfill, stop=facts.stop, paused=paused)
    lag = view_group(group, seen, None, own_cluster=False).lag
    behind = lag.behind if lag is not None and lag.complete else None
    return control_of(facts.backfill, behind, at=seen.observed_at, stop=facts.stop, paused=paused)
