"""Visits empty Kafka groups in the background, so that brokers do not expire their commits. A visit joins a group and
leaves the group again.

The time of the last successful visit is stored in the group's state; other facts about visits are kept only in memory.
While the fleet is suspended, the retry workers' group is visited together with the main group.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.parts import MAIN, RETRY, Part
from fleet_operator.planning.offsets.expiry import ExpiryDecision, ExpiryMemory
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.kafka_side import ATTEMPT_SECONDS
from fleet_operator.reconcilers.consumergroup.offsets import NEVER_VISITED
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.reconcilers.context import FAILURES, problem_of
from fleet_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

VISITS_MAX: Final = 16
"""Largest number of concurrent visits. Each visit holds a connection for about group.initial.rebalance.delay.ms (3 s by
default)."""
STEP_SECONDS: Final = 0.5
"""Pause in seconds between two checks of whether the broker has answered the join request."""
ADVICE: Final = {
    conditions.AUTHORIZATION_FAILED: (
        "grant the operator's principal Read on the group; the workers need this permission too"
    )
}


@dataclass(slots=True)
class Visits:
    observers: ObserverPool
    metrics: Metrics
    clock: Clock
    _under_way: int = 0

    def start(self, session: GroupSession, gathered: Gathered, decision: ExpiryDecision) -> None:
        """Start the visit that was decided, if any. While too many visits are running, the visit waits."""
        if decision.visit or decision.visit_retry:
            make = partial(self._visit, session, gathered, MAIN if decision.visit else RETRY)
            session.background.start("visit", make, seconds=ATTEMPT_SECONDS)

    async def _visit(self, session: GroupSession, gathered: Gathered, part: Part) -> None:
        """Visit a part's Kafka group. A visit to the main group includes the retry workers' group, because both parts
        stop when the fleet is suspended."""
        if self._under_way >= VISITS_MAX:
            return
        began, seen = self.clock.wall(), gathered.observed_group
        self._under_way += 1
        try:
            outcome = await self._join_and_leave(gathered, part)
            # If a retry flow was observed, the group has retry topics, or had retry topics that are not drained yet.
            if part is MAIN and outcome is VisitOutcome.KEPT and seen is not None and seen.retry is not None:
                of_retry = await self._join_and_leave(gathered, RETRY)
                if of_retry is VisitOutcome.KEPT:
                    _keep(session, RETRY, began)
                outcome = VisitOutcome.COMMITS_LOST if of_retry is VisitOutcome.COMMITS_LOST else outcome
        except (*FAILURES, asyncio.CancelledError) as error:  # a timeout raises CancelledError here
            problem = problem_of(error)
            if problem.reason in ADVICE:
                problem = replace(problem, message=f"{problem.message}; {ADVICE[problem.reason]}")
            self.metrics.group_visits.labels("Failed").inc()
            session.visited(part, _memory(session, part).failed(problem, self.clock.wall()))
            raise
        finally:
            self._under_way -= 1
        self._record_visit(session, part, outcome, began)

    async def _join_and_leave(self, gathered: Gathered, part: Part) -> VisitOutcome:
        group_id, classic = part.kafka_group(gathered.group.group_id), gathered.group.spec.consumer.classic
        named = tuple(name for name in classic.assignors if ":" not in name)
        # The protocol name of a custom assignor is known only if the group was observed while it had members.
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

    def _record_visit(self, session: GroupSession, part: Part, outcome: VisitOutcome, began: float) -> None:
        self.metrics.group_visits.labels(outcome.value).inc()
        match outcome:
            case VisitOutcome.KEPT:
                _keep(session, part, began)
                log.info("commits of an empty group are kept", extra={"key": session.background.name})
            case VisitOutcome.COMMITS_LOST:
                message = (
                    "commits that existed before the operator's visit were missing after it: see the brokers' logs"
                )
                session.visited(part, _memory(session, part).failed(Problem(conditions.OFFSETS_GONE, message), began))
                log.error("commits of an empty group are gone", extra={"key": session.background.name})
            case VisitOutcome.NOT_EMPTY | VisitOutcome.NO_COMMITS:
                # The next poll should show that no visit is needed. While it does not, the pauses between visits grow.
                session.visited(part, _memory(session, part).failed(None, self.clock.wall()))


def _memory(session: GroupSession, part: Part) -> ExpiryMemory:
    return session.findings.visits.get(part, NEVER_VISITED)


def _keep(session: GroupSession, part: Part, began: float) -> None:
    session.visited(part, ExpiryMemory(empty_since=_memory(session, part).empty_since, visited_at=began))
