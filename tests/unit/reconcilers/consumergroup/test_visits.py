"""Visits of empty groups in the background: their steps, their failures, and what a reconcile makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.planning.fleet.parts import MAIN, RETRY, PartPlan
from fleet_operator.planning.observation import RetryObservation
from fleet_operator.planning.offsets.expiry import ExpiryDecision
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.state.group import GroupState, OffsetsState
from fleet_operator.reconcilers.consumergroup.offsets import decide_offsets
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.reconcilers.consumergroup.visits import VISITS_MAX, Visits
from fleet_operator.runtime.background import PAUSE_SECONDS, Tasks
from fleet_operator.runtime.metrics import Metrics
from tests.unit.planning.builders import consumer_group, kafka_cluster, observation, observed_group
from tests.unit.reconcilers.consumergroup.sessions import fresh_session
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY = ("shop", "orders")
COUNTS = {"orders": 4}
ALONE, BOTH = ExpiryDecision(visit=True), ExpiryDecision(visit=True, visit_retry=True)


class Observers:
    """Answers of a cluster to visits: each takes `steps` polls of its join, and ends as `outcome` or raises it."""

    def __init__(self, outcome: VisitOutcome | Exception, steps: int = 3) -> None:
        self.outcome, self.steps = outcome, steps
        self.visited, self.running, self.most = list[str](), 0, 0
        self._left = dict[str, int]()

    async def change(self, cluster: Any, cluster_id: Any, run: Callable[[Any], Any]) -> Any:
        assert (cluster, cluster_id) == (("shop", "main"), "cluster-a")

        def begin(visit: GroupVisit) -> None:
            self.visited.append(visit.group_id)
            self._left[visit.group_id] = self.steps
            self.running += 1
            self.most = max(self.most, self.running)

        run(SimpleNamespace(begin_visit=begin))

    async def act(self, cluster: Any, run: Callable[[Any], Any]) -> Any:
        group_id = cast("Any", run).__self__.group_id
        self._left[group_id] -= 1
        if self._left[group_id] > 0:
            return None
        self.running -= 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def gathered(
    name: str = "orders",
    *,
    remembered: OffsetsState | None = None,
    state: str = "Empty",
    retry: RetryObservation | None = None,
    **spec: Any,
) -> Any:
    group = consumer_group(name, suspend=True, **spec)
    seen = observation(observed_group(group_id=group.group_id, state=state, members=(), retry=retry))
    return SimpleNamespace(
        hold=None,
        key=("shop", name),
        body={"metadata": {"name": name, "namespace": "shop"}},
        state=GroupState(offsets=remembered or OffsetsState()),
        group=group,
        cluster=kafka_cluster(),
        cluster_key=("shop", "main"),
        cluster_id="cluster-a",
        observation=seen,
        observed_group=seen.groups[group.group_id],
        older=None,
        cluster_changed=False,
    )


class Desk:
    """The visits of an operator, with a session for each group."""

    def __init__(self, observers: Observers) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.visits = Visits(cast("Any", observers), Metrics(), self.clock)
        self.tasks, self.queued = Tasks(), list[float]()
        self.sessions: dict[Any, GroupSession] = {}

    def session(self, found: Any) -> GroupSession:
        if found.key not in self.sessions:
            again = partial(self._record, self.queued)
            self.sessions[found.key] = fresh_session(self.clock, tasks=self.tasks, again=again, name=found.key[1])
        return self.sessions[found.key]

    def decide(self, found: Any, parts: tuple[PartPlan, ...] = ()) -> Any:
        session, seen = self.session(found), found.observation.groups[found.group.group_id]
        visits = session.findings.visits
        decision = decide_offsets(
            found, GroupView(observed=seen, partition_counts=COUNTS), parts, visits, self.clock.wall()
        )
        session.visited(MAIN, decision.memory)
        session.visited(RETRY, decision.retry_memory)
        return decision

    def start(self, found: Any, decision: ExpiryDecision) -> None:
        self.visits.start(self.session(found), found, decision)

    def _record(self, times: list[float]) -> None:
        times.append(self.clock.wall())


def test_visit_is_made_in_steps_and_stands_in_the_next_decision() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        desk = Desk(observers)
        found = gathered()
        first = desk.decide(found)
        assert not first.visit
        await asyncio.sleep(first.requeue_after)
        due = desk.decide(found)
        assert due.visit
        began = desk.clock.wall()
        for _ in range(3):
            desk.start(found, due)
        await asyncio.sleep(PAUSE_SECONDS)
        assert observers.visited == ["orders"], "one visit at a time"
        assert desk.queued, "its end queues the group"
        done = desk.decide(found)
        assert (done.visit, done.kept_at) == (False, began)
        assert done.verdict[:2] == ("True", "Visited")
        await desk.tasks.close()

    run_virtual(main())


def test_retry_group_is_visited_with_the_main_group() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        desk = Desk(observers)
        found = gathered(retry=RetryObservation(observed_at=0.0))
        await desk.visits._visit(desk.session(found), found, MAIN)
        assert observers.visited == ["orders", naming.retry_group("orders")]
        await desk.tasks.close()

    run_virtual(main())


def test_empty_retry_group_is_visited_by_itself_while_the_main_group_works() -> None:
    """`spec.retry` was removed: nobody joins the group any more, and its commits say what was handled."""

    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        desk = Desk(observers)
        found = gathered(state="Stable", retry=RetryObservation(observed_at=0.0, state="Empty"))
        first = desk.decide(found)
        assert (first.visit, first.visit_retry) == (False, False)
        await asyncio.sleep(first.requeue_after)
        wanted = (PartPlan(part=RETRY, target="aaaaaaaaaa", replicas=1),)
        assert not desk.decide(found, wanted).visit_retry, "a worker joins"
        due = desk.decide(found)
        assert (due.visit, due.visit_retry, due.verdict[1]) == (False, True, "GroupActive")
        desk.start(found, due)
        await asyncio.sleep(PAUSE_SECONDS)
        assert observers.visited == [naming.retry_group("orders")]
        done = desk.decide(found)
        assert not done.visit_retry
        assert done.requeue_after > 86_400 / 8
        await desk.tasks.close()

    run_virtual(main())


def test_visit_with_the_main_group_counts_for_the_retry_group() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        desk = Desk(observers)
        found = gathered(retry=RetryObservation(observed_at=0.0, state="Empty"))
        desk.decide(found)
        desk.start(found, BOTH)
        await asyncio.sleep(PAUSE_SECONDS)
        assert observers.visited == ["orders", naming.retry_group("orders")]
        assert not desk.decide(found).visit_retry
        await desk.tasks.close()

    run_virtual(main())


def test_visits_of_the_retry_group_that_fail_have_growing_pauses_and_no_verdict() -> None:
    async def main() -> None:
        desk = Desk(Observers(KafkaError(30, "group 'orders.retry'")))
        found = gathered(state="Stable", retry=RetryObservation(observed_at=0.0, state="Empty"))
        pauses = []
        for _ in range(3):
            desk.start(found, ExpiryDecision(visit_retry=True))
            await asyncio.sleep(PAUSE_SECONDS)
            decision = desk.decide(found)
            assert decision.verdict[:2] == ("True", "GroupActive")
            pauses.append(round(decision.requeue_after + PAUSE_SECONDS, -1))
            await asyncio.sleep(decision.requeue_after)
        assert pauses == [60, 120, 240]
        await desk.tasks.close()

    run_virtual(main())


def test_refused_right_is_a_problem_that_names_it() -> None:
    async def main() -> None:
        desk = Desk(Observers(KafkaError(30, "group 'orders'")))
        found = gathered()
        desk.start(found, ALONE)
        await asyncio.sleep(PAUSE_SECONDS)
        decision = desk.decide(found)
        assert not decision.visit, "not at once again"
        assert decision.verdict[:2] == ("False", "AuthorizationFailed")
        assert "Read on the group" in decision.verdict[2]
        await desk.tasks.close()

    run_virtual(main())


def test_group_that_turns_out_not_to_be_empty_is_left_alone_for_longer_each_time() -> None:
    async def main() -> None:
        desk = Desk(Observers(VisitOutcome.NOT_EMPTY))
        found = gathered()
        pauses = []
        for _ in range(3):
            await desk.visits._visit(desk.session(found), found, MAIN)
            decision = desk.decide(found)
            assert decision.verdict[:2] == ("Unknown", "NotYetKept"), "no problem"
            pauses.append(round(decision.requeue_after))
        assert pauses == [60, 120, 240]
        await desk.tasks.close()

    run_virtual(main())


def test_thousands_of_groups_are_visited_a_few_at_a_time() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT, steps=6)
        desk = Desk(observers)
        groups = [gathered(f"group-{number}") for number in range(100)]
        waiting = list(groups)
        async with asyncio.timeout(3600.0):
            while waiting:
                for found in waiting:
                    desk.start(found, ALONE)
                await asyncio.sleep(1.0)
                waiting = [found for found in groups if found.group.group_id not in observers.visited]
        assert observers.most <= VISITS_MAX
        await asyncio.sleep(PAUSE_SECONDS)
        await desk.tasks.close()

    run_virtual(main())


def test_another_cluster_says_nothing_about_the_group() -> None:
    async def main() -> None:
        desk = Desk(Observers(VisitOutcome.KEPT))
        found = gathered(remembered=OffsetsState(kept_at=1_767_225_600.0))
        found.cluster_changed = True
        dead = observed_group(state="Dead", members=(), committed={})
        decision: Any = decide_offsets(
            found, GroupView(observed=dead, partition_counts=COUNTS), (), {}, desk.clock.wall()
        )
        assert decision.verdict is None
        assert decision.kept_at is not None
        await desk.tasks.close()

    run_virtual(main())
