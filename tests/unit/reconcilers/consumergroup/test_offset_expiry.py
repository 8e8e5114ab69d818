"""Visits of empty groups beside the reconciles: their steps, their failures, and what a reconcile makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.planning.fleet.parts import RETRY, PartPlan
from fleet_operator.planning.observation import RetryObservation
from fleet_operator.planning.offsets.expiry import ExpiryDecision
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.offsets import OffsetsState
from fleet_operator.reconcilers.consumergroup.kafka_side import PAUSE_SECONDS, KafkaSide
from fleet_operator.reconcilers.consumergroup.offset_expiry import VISITS_MAX, OffsetExpiry
from fleet_operator.runtime.metrics import Metrics
from tests.unit.planning.builders import consumer_group, kafka_cluster, observation, observed_group
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY = ("shop", "orders")
NO_RESET = SimpleNamespace(stop=False, step=None)
ALONE, BOTH = ExpiryDecision(visit=True), ExpiryDecision(visit=True, visit_retry=True)


class Observers:
    """Answers of a cluster to visits: each takes `steps` looks at its join, and ends as `outcome` or raises it."""

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
        key=("shop", name),
        body={"metadata": {"name": name, "namespace": "shop"}},
        state=GroupState(offsets=remembered or OffsetsState()),
        group=group,
        cluster=kafka_cluster(),
        cluster_key=("shop", "main"),
        cluster_id="cluster-a",
        observation=seen,
        older=None,
        cluster_changed=False,
    )


def make(observers: Observers) -> tuple[OffsetExpiry, KafkaSide]:
    nobody, clock = cast("Any", None), VirtualClock(asyncio.get_running_loop())
    side = KafkaSide(nobody, clock, nobody, nobody)
    return OffsetExpiry(side, cast("Any", observers), Metrics(), clock), side


def decide(work: OffsetExpiry, found: Any, parts: tuple[PartPlan, ...] = ()) -> Any:
    return work.decide(found, found.observation.groups[found.group.group_id], cast("Any", NO_RESET), parts)


def test_visit_is_made_in_steps_and_stands_in_the_next_decision() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        work, side = make(observers)
        found, queued = gathered(), list[float]()
        first = decide(work, found)
        assert not first.visit
        await asyncio.sleep(first.requeue_after)
        due = decide(work, found)
        assert due.visit
        began = work.clock.wall()
        for _ in range(3):
            work.take_step(found, due, lambda: queued.append(work.clock.wall()))
        await asyncio.sleep(PAUSE_SECONDS)
        assert observers.visited == ["orders"], "one visit at a time"
        assert queued, "its end queues the group"
        done = decide(work, found)
        assert (done.visit, done.kept_at) == (False, began)
        assert done.verdict[:2] == ("True", "Visited")
        await side.close()

    run_virtual(main())


def test_retry_group_is_visited_with_the_main_group() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        work, side = make(observers)
        await work._visit(gathered(retry=RetryObservation(observed_at=0.0)))
        assert observers.visited == ["orders", naming.retry_group("orders")]
        await side.close()

    run_virtual(main())


def test_empty_retry_group_is_visited_by_itself_while_the_main_group_works() -> None:
    """`spec.retry` was removed: nobody joins the group any more, and its commits say what was handled."""

    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        work, side = make(observers)
        found = gathered(state="Stable", retry=RetryObservation(observed_at=0.0, state="Empty"))
        first = decide(work, found)
        assert (first.visit, first.visit_retry) == (False, False)
        await asyncio.sleep(first.requeue_after)
        wanted = (PartPlan(part=RETRY, target="aaaaaaaaaa", replicas=1),)
        assert not decide(work, found, wanted).visit_retry, "a worker joins"
        due = decide(work, found)
        assert (due.visit, due.visit_retry, due.verdict[1]) == (False, True, "GroupActive")
        work.take_step(found, due, lambda: None)
        await asyncio.sleep(PAUSE_SECONDS)
        assert observers.visited == [naming.retry_group("orders")]
        done = decide(work, found)
        assert not done.visit_retry
        assert done.requeue_after > 86_400 / 8
        await side.close()

    run_virtual(main())


def test_visit_with_the_main_group_counts_for_the_retry_group() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT)
        work, side = make(observers)
        found = gathered(retry=RetryObservation(observed_at=0.0, state="Empty"))
        decide(work, found)
        work.take_step(found, BOTH, lambda: None)
        await asyncio.sleep(PAUSE_SECONDS)
        assert observers.visited == ["orders", naming.retry_group("orders")]
        assert not decide(work, found).visit_retry
        await side.close()

    run_virtual(main())


def test_visits_of_the_retry_group_that_fail_have_growing_pauses_and_no_verdict() -> None:
    async def main() -> None:
        work, side = make(Observers(KafkaError(30, "group 'orders.retry'")))
        found = gathered(state="Stable", retry=RetryObservation(observed_at=0.0, state="Empty"))
        pauses = []
        for _ in range(3):
            work.take_step(found, ExpiryDecision(visit_retry=True), lambda: None)
            await asyncio.sleep(PAUSE_SECONDS)
            decision = decide(work, found)
            assert decision.verdict[:2] == ("True", "GroupActive")
            pauses.append(round(decision.requeue_after + PAUSE_SECONDS, -1))
            await asyncio.sleep(decision.requeue_after)
        assert pauses == [60, 120, 240]
        await side.close()

    run_virtual(main())


def test_refused_right_is_a_problem_that_names_it() -> None:
    async def main() -> None:
        work, side = make(Observers(KafkaError(30, "group 'orders'")))
        found = gathered()
        work.take_step(found, ALONE, lambda: None)
        await asyncio.sleep(PAUSE_SECONDS)
        decision = decide(work, found)
        assert not decision.visit, "not at once again"
        assert decision.verdict[:2] == ("False", "AuthorizationFailed")
        assert "Read the group" in decision.verdict[2]
        await side.close()

    run_virtual(main())


def test_group_that_turns_out_not_to_be_empty_is_left_alone_for_longer_each_time() -> None:
    async def main() -> None:
        work, side = make(Observers(VisitOutcome.NOT_EMPTY))
        found = gathered()
        pauses = []
        for _ in range(3):
            await work._visit(found)
            decision = decide(work, found)
            assert decision.verdict[:2] == ("Unknown", "NotYetKept"), "no problem"
            pauses.append(round(decision.requeue_after))
        assert pauses == [60, 120, 240]
        await side.close()

    run_virtual(main())


def test_thousands_of_groups_are_visited_a_few_at_a_time() -> None:
    async def main() -> None:
        observers = Observers(VisitOutcome.KEPT, steps=6)
        work, side = make(observers)
        groups = [gathered(f"group-{number}") for number in range(100)]
        waiting = list(groups)
        while waiting:
            for found in waiting:
                work.take_step(found, ALONE, lambda: None)
            await asyncio.sleep(1.0)
            waiting = [found for found in groups if found.group.group_id not in observers.visited]
        assert observers.most <= VISITS_MAX
        await asyncio.sleep(PAUSE_SECONDS)
        await side.close()

    run_virtual(main())


def test_another_cluster_says_nothing_about_the_group() -> None:
    async def main() -> None:
        work, side = make(Observers(VisitOutcome.KEPT))
        found = gathered(remembered=OffsetsState(kept_at=1_767_225_600.0))
        found.cluster_changed = True
        dead = observed_group(state="Dead", members=(), committed={})
        decision = work.decide(found, dead, cast("Any", NO_RESET), ())
        assert decision.verdict is None
        assert decision.kept_at is not None
        await side.close()

    run_virtual(main())
