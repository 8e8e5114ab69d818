"""Topics of many groups are created together, and each group gets its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import Disconnected
from fleet_operator.observe.kafka_admin import Refusal, TopicChanges
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.reconcilers.consumergroup.kafka_side import PARTITIONS_MAX, Cluster, TopicCreations
from tests.unit.runtime.virtual_time import run_virtual

CLUSTER: Cluster = (("shop", "main"), "id")


def topic(name: str, partitions: int = 4) -> WantedTopic:
    return WantedTopic(name=name, partitions=partitions, replication_factor=1, configs={})


class Observers:
    """Requests as they come; a topic named `refused…` is refused, and while `error` is set all fail."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.error: Exception | None = None

    async def change(self, cluster: Any, cluster_id: Any, run: Callable[[Any], TopicChanges]) -> TopicChanges:
        await asyncio.sleep(1.0)
        if self.error is not None:
            raise self.error
        return run(self)

    def create_topics(self, wanted: tuple[WantedTopic, ...]) -> TopicChanges:
        self.requests.append([each.name for each in wanted])
        refused = [each.name for each in wanted if each.name.startswith("refused")]
        return TopicChanges(
            made=[each.name for each in wanted if each.name not in refused],
            refusals=[Refusal(subject=name, reason="PolicyViolation", message="no") for name in refused],
        )


def run(life: Callable[[TopicCreations, Observers], Awaitable[None]]) -> None:
    async def main() -> None:
        observers = Observers()
        creations = TopicCreations(cast(ObserverPool, observers))
        await life(creations, observers)
        await creations.close()

    run_virtual(main())


def test_wishes_of_many_groups_go_into_one_request() -> None:
    async def life(creations: TopicCreations, observers: Observers) -> None:
        requests = [(topic(f"a{n}"), topic(f"refused{n}")) for n in range(20)]
        outcomes = await asyncio.gather(*(creations.create(CLUSTER, each) for each in requests))
        assert len(observers.requests) == 1
        assert [outcome.made for outcome in outcomes] == [[f"a{n}"] for n in range(20)]
        assert [[r.subject for r in outcome.refusals] for outcome in outcomes] == [[f"refused{n}"] for n in range(20)]

    run(life)


def test_requests_are_bounded_and_follow_one_another() -> None:
    async def life(creations: TopicCreations, observers: Observers) -> None:
        each = PARTITIONS_MAX // 2
        await asyncio.gather(*(creations.create(CLUSTER, (topic(f"t{n}", each),)) for n in range(5)))
        assert observers.requests == [["t0", "t1"], ["t2", "t3"], ["t4"]]
        await creations.create(CLUSTER, (topic("huge", PARTITIONS_MAX * 3),))
        assert observers.requests[-1] == ["huge"], "one that is too large goes alone"

    run(life)


def test_clusters_do_not_wait_for_one_another() -> None:
    async def life(creations: TopicCreations, observers: Observers) -> None:
        other: Cluster = (("other", "main"), "id")
        began = asyncio.get_running_loop().time()
        await asyncio.gather(creations.create(CLUSTER, (topic("a"),)), creations.create(other, (topic("b"),)))
        assert asyncio.get_running_loop().time() - began < 2.0
        assert observers.requests == [["a"], ["b"]]

    run(life)


def test_failure_reaches_everybody_and_the_next_request_is_tried() -> None:
    async def life(creations: TopicCreations, observers: Observers) -> None:
        observers.error = Disconnected("away")
        outcomes = await asyncio.gather(
            *(creations.create(CLUSTER, (topic(f"t{n}"),)) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(outcome, Disconnected) for outcome in outcomes)
        observers.error = None
        assert (await creations.create(CLUSTER, (topic("again"),))).made == ["again"]

    run(life)


def test_wish_that_was_given_up_is_made_once() -> None:
    """Its attempt ran out of time; the next one finds it in the queue."""

    async def life(creations: TopicCreations, observers: Observers) -> None:
        first = asyncio.ensure_future(creations.create(CLUSTER, (topic("first"),)))
        await asyncio.sleep(0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await creations.create(CLUSTER, (topic("late"),))
        assert (await creations.create(CLUSTER, (topic("late"),))).made == ["late"]
        assert (await first).made == ["first"]
        assert observers.requests == [["first"], ["late"]]

    run(life)
