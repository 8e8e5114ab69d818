"""Visits of empty groups, which keep their commits; they run in the background.

A visit that was made is remembered until it stands in the state. What else is remembered is lost with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.observe.aggregation import reason_of
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.parts import MAIN, RETRY, Part
from fleet_operator.planning.offsets.expiry import ExpiryDecision, ExpiryMemory
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.kafka_side import ATTEMPT_SECONDS
from fleet_operator.reconcilers.consumergroup.offsets import NEVER_VISITED
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.reconcilers.context import FAILURES
from fleet_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

VISIT: Final = "visit"
VISITS_MAX: Final = 16
"""Visits at a time: each has a connection, for about as long as group.initial.rebalance.delay.ms."""
STEP_SECONDS: Final = 0.5
"""Pause between two looks at a join that is under way."""
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: "let the operator's principal Read the group, as the workers need it too"
}


@dataclass(slots=True)
class Visits:
    """The visits of all groups. Used on the event loop only."""

    observers: ObserverPool
    metrics: Metrics
    clock: Clock
    _under_way: int = 0

    def start(self, session: GroupSession, gathered: Gathered, decision: ExpiryDecision) -> None:
        """Begin the decided visit, if any; where too many are under way, it begins after a pause. A visit of the main
        group goes on to the retry workers' by itself."""
        if decision.visit or decision.visit_retry:
            make = partial(self._visit if decision.visit else self._visit_retry, session, gathered)
            session.background.start(VISIT, make, seconds=ATTEMPT_SECONDS)

    async def _visit(self, session: GroupSession, gathered: Gathered) -> None:
        """Visit the main group, and with it that of the retry workers, which are stopped with a suspended fleet."""
        group_id, began = gathered.group.group_id, self.clock.wall()

        async def join_both() -> VisitOutcome:
            outcome = await self._join_and_leave(gathered, group_id)
            if outcome is VisitOutcome.KEPT and _has_flow(gathered):
                of_retry = await self._join_and_leave(gathered, naming.retry_group(group_id))
                if of_retry is VisitOutcome.KEPT:
                    _keep(session, RETRY, began)
                outcome = VisitOutcome.COMMITS_LOST if of_retry is VisitOutcome.COMMITS_LOST else outcome
            return outcome

        await self._make(session, MAIN, join_both)

    async def _visit_retry(self, session: GroupSession, gathered: Gathered) -> None:
        """Visit the group of the retry workers alone."""
        group_id = naming.retry_group(gathered.group.group_id)
        await self._make(session, RETRY, lambda: self._join_and_leave(gathered, group_id))

    async def _make(self, session: GroupSession, part: Part, visit: Callable[[], Awaitable[VisitOutcome]]) -> None:
        if self._under_way >= VISITS_MAX:
            return
        began = self.clock.wall()
        self._under_way += 1
        try:
            outcome = await visit()
        except FAILURES as error:
            self._failed(session, part, _problem(error))
            raise
        except asyncio.CancelledError:  # the attempt's time is over
            late = Problem(conditions.BROKER_UNREACHABLE, "the brokers did not answer in time")
            self._failed(session, part, late)
            raise
        finally:
            self._under_way -= 1
        self._note(session, part, outcome, began)

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

    def _failed(self, session: GroupSession, part: Part, problem: Problem) -> None:
        self.metrics.group_visits.labels("Failed").inc()
        session.visited(part, _memory(session, part).failed(problem, self.clock.wall()))

    def _note(self, session: GroupSession, part: Part, outcome: VisitOutcome, began: float) -> None:
        self.metrics.group_visits.labels(outcome.value).inc()
        match outcome:
            case VisitOutcome.KEPT:
                _keep(session, part, began)
                log.info("commits of an empty group are kept", extra={"key": session.background.name})
            case VisitOutcome.COMMITS_LOST:
                message = (
                    "commits that were there before the operator's visit were gone after it: see the brokers' logs"
                )
                session.visited(part, _memory(session, part).failed(Problem(conditions.OFFSETS_GONE, message), began))
                log.error("commits of an empty group are gone", extra={"key": session.background.name})
            case VisitOutcome.NOT_EMPTY | VisitOutcome.NO_COMMITS:
                # The next look shows it. Until then, and if it does not, the pauses grow.
                session.visited(part, _memory(session, part).failed(None, self.clock.wall()))


def _memory(session: GroupSession, part: Part) -> ExpiryMemory:
    return session.findings.visits.get(part, NEVER_VISITED)


def _keep(session: GroupSession, part: Part, began: float) -> None:
    """Note a visit that kept the commits."""
    session.visited(part, ExpiryMemory(empty_since=_memory(session, part).empty_since, visited_at=began))


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
