"""The commits of empty groups in a reconcile: facts of the decision, and visits, which run beside the reconciles.

A visit that was made is remembered until it stands in the state. What else is remembered is lost with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.observe.aggregation import reason_of
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.parts import RETRY, PartPlan
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.offsets.expiry import (
    ExpiryDecision,
    ExpiryFacts,
    ExpiryMemory,
    RetryExpiryFacts,
    decide_expiry,
    decide_retry_expiry,
)
from fleet_operator.planning.offsets.reset import ResetDecision
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.offsets import OffsetsState
from fleet_operator.planning.status.members import shorten_id
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.kafka_side import FAILURES, KafkaSide
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

VISITS_MAX: Final = 16
"""Visits at a time: each has a connection, for about as long as group.initial.rebalance.delay.ms."""
STEP_SECONDS: Final = 0.5
"""Pause between two looks at a join that is under way."""
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: "let the operator's principal Read the group, as the workers need it too",
}
Memories = dict[Key, ExpiryMemory]


@dataclass(slots=True)
class OffsetExpiry:
    """The visits of all groups. Used on the event loop only."""

    kafka: KafkaSide
    observers: ObserverPool
    metrics: Metrics
    clock: Clock
    _memories: Memories = field(default_factory=dict)
    _retry_memories: Memories = field(default_factory=dict)
    _visiting: set[Key] = field(default_factory=set)

    def forget(self, group: Key) -> None:
        self._memories.pop(group, None)
        self._retry_memories.pop(group, None)

    def decide(
        self, gathered: Gathered, observed: GroupObservation | None, reset: ResetDecision, parts: Iterable[PartPlan]
    ) -> ExpiryDecision:
        """The decision for the group as `observed`, None while it could not be. It is the view for the status: nothing
        is done on it before the live group was asked. `parts` are the wanted workers."""
        decision = self._decide_main(gathered, observed, reset)
        beside = self._decide_retry(gathered, observed, reset, parts)
        wishes = [each.requeue_after for each in (decision, beside) if each.requeue_after is not None]
        return replace(decision, visit_retry=beside.visit_retry, requeue_after=min(wishes, default=None))

    def _decide_main(
        self, gathered: Gathered, observed: GroupObservation | None, reset: ResetDecision
    ) -> ExpiryDecision:
        before, observation = gathered.state.offsets, gathered.observation
        facts = ExpiryFacts(
            group_id=gathered.group.group_id,
            observed=None if gathered.cluster_changed else observed,
            retention_s=observation.offsets_retention_s if observation is not None else None,
            kept_at=before.kept_at,
            safe_until=before.safe_until,
            allowed=gathered.group.spec.offsets.expiry == "Allow",
            obstacle=_obstacle(gathered, reset),
            memory=self._memories.get(gathered.key, ExpiryMemory()),
        )
        decision = decide_expiry(facts, self.clock.wall())
        self._memories[gathered.key] = decision.memory
        return decision

    def _decide_retry(
        self,
        gathered: Gathered,
        observed: GroupObservation | None,
        reset: ResetDecision,
        parts: Iterable[PartPlan],
    ) -> ExpiryDecision:
        observation, flow = gathered.observation, observed.retry if observed is not None else None
        facts = RetryExpiryFacts(
            group_id=naming.retry_group(gathered.group.group_id),
            state=None if flow is None or gathered.cluster_changed else flow.state,
            retention_s=observation.offsets_retention_s if observation is not None else None,
            workers=sum(part.replicas for part in parts if part.part is RETRY),
            allowed=gathered.group.spec.offsets.expiry == "Allow",
            obstacle=_obstacle(gathered, reset),
            memory=self._retry_memories.get(gathered.key, ExpiryMemory()),
        )
        decision = decide_retry_expiry(facts, self.clock.wall())
        self._retry_memories[gathered.key] = decision.memory
        return decision

    def take_step(self, gathered: Gathered, decision: ExpiryDecision, again: Callable[[], None]) -> None:
        """Begin the decided visit, if any; where too many are under way, it begins after a pause. A visit of the main
        group goes on to the retry workers' by itself."""
        if decision.visit:
            self.kafka.visit(gathered.key, lambda: self._visit(gathered), again)
        elif decision.visit_retry:
            self.kafka.visit(gathered.key, lambda: self._visit_retry(gathered), again)

    async def _visit(self, gathered: Gathered) -> None:
        """Visit the main group, and with it that of the retry workers, which are stopped with a suspended fleet."""
        group_id, began = gathered.group.group_id, self.clock.wall()

        async def join_both() -> VisitOutcome:
            outcome = await self._join_and_leave(gathered, group_id)
            if outcome is VisitOutcome.KEPT and _has_flow(gathered):
                beside = await self._join_and_leave(gathered, naming.retry_group(group_id))
                if beside is VisitOutcome.KEPT:
                    _keep(self._retry_memories, gathered.key, began)
                outcome = VisitOutcome.COMMITS_LOST if beside is VisitOutcome.COMMITS_LOST else outcome
            return outcome

        await self._make(gathered.key, self._memories, join_both)

    async def _visit_retry(self, gathered: Gathered) -> None:
        """Visit the group of the retry workers alone."""
        group_id = naming.retry_group(gathered.group.group_id)
        await self._make(gathered.key, self._retry_memories, lambda: self._join_and_leave(gathered, group_id))

    async def _make(self, key: Key, memories: Memories, visit: Callable[[], Awaitable[VisitOutcome]]) -> None:
        if len(self._visiting) >= VISITS_MAX:
            return
        began = self.clock.wall()
        self._visiting.add(key)
        try:
            outcome = await visit()
        except FAILURES as error:
            self._failed(memories, key, _problem(error))
            raise
        except asyncio.CancelledError:  # the attempt's time is over
            late = Problem(conditions.BROKER_UNREACHABLE, "the brokers did not answer in time")
            self._failed(memories, key, late)
            raise
        finally:
            self._visiting.discard(key)
        self._note(memories, key, outcome, began)

    async def _join_and_leave(self, gathered: Gathered, group_id: str) -> VisitOutcome:
        classic = gathered.group.spec.consumer.classic
        named = tuple(name for name in classic.assignors if ":" not in name)
        # A class of the user's has a name of its own, which the group shows while it has members.
        last = gathered.state.offsets.assignor
        assignors = (*named, *((last,) if last else ()))
        visit = GroupVisit(group_id, classic.session_timeout_seconds * 1000, assignors)
        outcome = await self.observers.change(
            gathered.cluster_key, gathered.cluster_id, lambda admin: admin.begin_visit(visit)
        )
        while outcome is None:
            await asyncio.sleep(STEP_SECONDS)
            outcome = await self.observers.act(gathered.cluster_key, visit.advance)
        return outcome

    def _failed(self, memories: Memories, key: Key, problem: Problem) -> None:
        self.metrics.group_visits.labels("Failed").inc()
        memories[key] = memories.get(key, ExpiryMemory()).failed(problem, self.clock.wall())

    def _note(self, memories: Memories, key: Key, outcome: VisitOutcome, began: float) -> None:
        self.metrics.group_visits.labels(outcome.value).inc()
        memory = memories.get(key, ExpiryMemory())
        match outcome:
            case VisitOutcome.KEPT:
                _keep(memories, key, began)
                log.info("commits of an empty group are kept", extra={"key": "/".join(key)})
            case VisitOutcome.COMMITS_LOST:
                message = (
                    "commits that were there before the operator's visit were gone after it: see the brokers' logs"
                )
                memories[key] = memory.failed(Problem(conditions.OFFSETS_GONE, message), began)
                log.error("commits of an empty group are gone", extra={"key": "/".join(key)})
            case VisitOutcome.NOT_EMPTY | VisitOutcome.NO_COMMITS:
                # The next look shows it. Until then, and if it does not, the pauses grow.
                memories[key] = memory.failed(None, self.clock.wall())


def offsets_after(gathered: Gathered, observed: GroupObservation | None, decision: ExpiryDecision) -> OffsetsState:
    """The state of offsets after a decision."""
    seen = shorten_id(observed.assignor) if observed is not None else ""
    assignor = seen or gathered.state.offsets.assignor
    return OffsetsState(kept_at=decision.kept_at, safe_until=decision.safe_until, assignor=assignor)


def _keep(memories: Memories, key: Key, began: float) -> None:
    """Note a visit that kept the commits."""
    memory = memories.get(key, ExpiryMemory())
    memories[key] = ExpiryMemory(empty_since=memory.empty_since, visited_at=began)


def _has_flow(gathered: Gathered) -> bool:
    """True if the group has retry topics, or had some that are not drained."""
    observation = gathered.observation
    seen = observation.groups.get(gathered.group.group_id) if observation is not None else None
    return seen is not None and seen.retry is not None


def _problem(error: Exception) -> Problem:
    if isinstance(error, KafkaError):
        reason = reason_of(error.code)
        advice = f"; {ADVICE[reason]}" if reason in ADVICE else ""
        return Problem(reason, f"{error}{advice}")
    reason = str(getattr(error, "reason", conditions.BROKER_UNREACHABLE))
    return Problem(reason, str(error) or "the brokers did not answer in time")


def _obstacle(gathered: Gathered, reset: ResetDecision) -> Problem | None:
    """The reason why the operator may not join this group now."""
    if gathered.group.paused:
        message = "annotation consumerfleet.io/paused is set: the operator changes nothing"
        return Problem(conditions.PAUSED_BY_ANNOTATION, message)
    if gathered.older is not None:
        return Problem(conditions.GROUP_ID_TAKEN, "another ConsumerGroup owns the Kafka group and keeps its commits")
    if reset.stop or reset.step is not None:
        return Problem(conditions.RESETTING_OFFSETS, "a reset of offsets needs the group empty, and commits anew")
    return None
