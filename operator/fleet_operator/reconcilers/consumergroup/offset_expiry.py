"""The commits of empty groups in a reconcile: facts of the decision, and visits, which run beside the reconciles.

A visit that was made is remembered until it stands in the status. What else is remembered is lost with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.observe.folding import reason_of
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning import times
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.offsets.expiry import ExpiryDecision, ExpiryFacts, ExpiryMemory, decide_expiry
from fleet_operator.planning.offsets.reset import ResetDecision
from fleet_operator.planning.problem import Problem
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


@dataclass(slots=True)
class OffsetExpiry:
    """The visits of all groups. Used on the event loop only."""

    kafka: KafkaSide
    observers: ObserverPool
    metrics: Metrics
    clock: Clock
    _memories: dict[Key, ExpiryMemory] = field(default_factory=dict)
    _visiting: set[Key] = field(default_factory=set)

    def forget(self, group: Key) -> None:
        self._memories.pop(group, None)

    def decide(self, gathered: Gathered, observed: GroupObservation | None, reset: ResetDecision) -> ExpiryDecision:
        """The decision for the group as `observed`, None while it could not be. It is the view for the status: nothing
        is done on it before the live group was asked."""
        before = (gathered.body.get("status") or {}).get("offsets") or {}
        observation = gathered.observation
        facts = ExpiryFacts(
            group_id=gathered.group.group_id,
            observed=None if gathered.cluster_changed else observed,
            retention_s=observation.offsets_retention_s if observation is not None else None,
            kept_at=times.from_text(before.get("keptAt")),
            safe_until=times.from_text(before.get("safeUntil")),
            allowed=gathered.group.spec.offsets.expiry == "Allow",
            obstacle=_obstacle(gathered, reset),
            memory=self._memories.get(gathered.key, ExpiryMemory()),
        )
        decision = decide_expiry(facts, self.clock.wall())
        self._memories[gathered.key] = decision.memory
        return decision

    def take_step(self, gathered: Gathered, decision: ExpiryDecision, again: Callable[[], None]) -> None:
        """Begin the decided visit, if any; where too many are under way, it begins after a pause."""
        if decision.visit:
            self.kafka.visit(gathered.key, lambda: self._visit(gathered), again)

    async def _visit(self, gathered: Gathered) -> None:
        """Visit the main group, and with it that of the retry workers, which are stopped with a suspended fleet."""
        if len(self._visiting) >= VISITS_MAX:
            return
        key, group_id, began = gathered.key, gathered.group.group_id, self.clock.wall()
        self._visiting.add(key)
        try:
            outcome = await self._join_and_leave(gathered, group_id)
            if outcome is VisitOutcome.KEPT and _has_flow(gathered):
                beside = await self._join_and_leave(gathered, naming.retry_group(group_id))
                outcome = VisitOutcome.COMMITS_LOST if beside is VisitOutcome.COMMITS_LOST else outcome
        except FAILURES as error:
            self._failed(key, _problem(error))
            raise
        except asyncio.CancelledError:  # the attempt's time is over
            self._failed(key, Problem(conditions.BROKER_UNREACHABLE, "the brokers did not answer in time"))
            raise
        finally:
            self._visiting.discard(key)
        self._note(key, outcome, began)

    async def _join_and_leave(self, gathered: Gathered, group_id: str) -> VisitOutcome:
        classic = gathered.group.spec.consumer.classic
        named = tuple(name for name in classic.assignors if ":" not in name)
        # A class of the user's has a name of its own, which the group shows while it has members.
        last = str((gathered.body.get("status") or {}).get("assignor") or "")
        assignors = (*named, *((last,) if last else ()))
        visit = GroupVisit(group_id, classic.session_timeout_seconds * 1000, assignors)
        outcome = await self.observers.change(
            gathered.cluster_key, gathered.cluster_id, lambda admin: admin.begin_visit(visit)
        )
        while outcome is None:
            await asyncio.sleep(STEP_SECONDS)
            outcome = await self.observers.act(gathered.cluster_key, visit.advance)
        return outcome

    def _failed(self, key: Key, problem: Problem) -> None:
        self.metrics.group_visits.labels("Failed").inc()
        self._memories[key] = self._memories.get(key, ExpiryMemory()).failed(problem, self.clock.wall())

    def _note(self, key: Key, outcome: VisitOutcome, began: float) -> None:
        self.metrics.group_visits.labels(outcome.value).inc()
        memory = self._memories.get(key, ExpiryMemory())
        match outcome:
            case VisitOutcome.KEPT:
                self._memories[key] = ExpiryMemory(empty_since=memory.empty_since, visited_at=began)
                log.info("commits of an empty group are kept", extra={"key": "/".join(key)})
            case VisitOutcome.COMMITS_LOST:
                message = (
                    "commits that were there before the operator's visit were gone after it: see the brokers' logs"
                )
                self._memories[key] = memory.failed(Problem(conditions.OFFSETS_GONE, message), began)
                log.error("commits of an empty group are gone", extra={"key": "/".join(key)})
            case VisitOutcome.NOT_EMPTY | VisitOutcome.NO_COMMITS:
                # The next look shows it. Until then, and if it does not, the pauses grow.
                self._memories[key] = memory.failed(None, self.clock.wall())


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
