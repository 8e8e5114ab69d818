"""Attempts on `__consumer_offsets`: only where it is asked for, on the recorded cluster, with pauses, and reported."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from fleet_consumer.net import Disconnected
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.observe.kafka_admin import Refusal, TopicChanges
from fleet_operator.planning.observation import BrokerSettings, ClusterObservation
from fleet_operator.reconcilers.context import FAILURES, FirstObservation
from fleet_operator.reconcilers.kafkacluster import (
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    ClusterSession,
    KafkaClusterReconciler,
)
from fleet_operator.runtime.background import Background, Tasks
from tests.unit.planning.builders import kafka_cluster, observation, unreachable
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY = ("shop", "main")
PROVISION = {"manage": "Provision"}
BODY: dict[str, Any] = {"metadata": {"name": "main", "namespace": "shop", "uid": "c1"}}


def absent(**changes: Any) -> ClusterObservation:
    told = dict.fromkeys((1, 2), BrokerSettings(partitions=50, replication_factor=1, segment_bytes=1_048_576))
    return observation(offsets_topic=None, broker_settings=told, **changes)


class Scene:
    """The work with a cluster that answers each attempt with `outcome`."""

    def __init__(self, outcome: TopicChanges | Exception) -> None:
        self.outcome, self.attempts = outcome, list[str]()
        self.queued, self.polls, self.events = list[Any](), list[Any](), list[str]()
        self.clock = VirtualClock(asyncio.get_running_loop())
        observers = SimpleNamespace(
            change=self._change, poll_soon=lambda key, changed: self.polls.append((key, changed))
        )
        events = SimpleNamespace(record=lambda event: self.events.append(event.reason))
        context = SimpleNamespace(observers=observers, events=events, ending=AsyncExitStack())
        self.reconciler = KafkaClusterReconciler(cast(Any, context))
        self.tasks = Tasks()
        again = partial(self.queued.append, KEY)
        background = Background("shop/main", self.clock, self.tasks, again, FAILURES)
        self.session = ClusterSession(background, FirstObservation(self.clock))

    async def _change(self, key: Any, cluster_id: str, run: Any) -> TopicChanges:
        assert key == KEY
        self.attempts.append(cluster_id)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def keep(self, seen: ClusterObservation | None, recorded: str | None = "cluster-a", **spec: Any) -> None:
        identity = ClusterIdentity(cluster_id=recorded)
        cluster = kafka_cluster(identity=identity, offsetsTopic=PROVISION | spec)
        self.reconciler.keep_offsets_topic(self.session, BODY, cluster, seen)


def test_topic_is_created_once_the_cluster_is_on_record() -> None:
    async def main() -> None:
        here = Scene(TopicChanges(made=["__consumer_offsets"]))
        here.keep(absent(), recorded=None)
        for seen in (None, unreachable(), absent(current=False), absent(identified=False), observation()):
            here.keep(seen)
        here.keep(absent(), recorded="cluster-b")
        here.keep(absent(), manage="Observe")
        assert here.attempts == []
        here.keep(absent())
        here.keep(absent())
        await asyncio.sleep(0.1)
        assert here.attempts == ["cluster-a"]
        assert (here.events, here.queued) == (["OffsetsTopicCreated"], [KEY])
        assert here.polls == [(KEY, ("__consumer_offsets",))]
        await here.tasks.close()

    run_virtual(main())


def test_refusal_is_reported_with_the_right_to_grant_and_tried_again_ever_less_often() -> None:
    async def main() -> None:
        refusal = Refusal(subject="__consumer_offsets", reason="AuthorizationFailed", message="denied")
        here = Scene(TopicChanges(refusals=[refusal]))
        for _ in range(int(PAUSE_SECONDS_MAX) * 4):
            here.keep(absent())
            await asyncio.sleep(1.0)
        assert 7 <= len(here.attempts) <= 10
        problem = here.session.refusal
        assert problem is not None
        assert problem.reason == "AuthorizationFailed"
        assert "Create and AlterConfigs on the topic __consumer_offsets" in problem.message
        here.keep(observation())
        assert here.session.refusal is None, "the topic is as wanted by now"
        await here.tasks.close()

    run_virtual(main())


def test_brokers_that_do_not_answer_are_asked_again() -> None:
    async def main() -> None:
        here = Scene(Disconnected("gone"))
        here.keep(absent())
        await asyncio.sleep(0.1)
        assert here.session.refusal is None
        assert here.queued == [KEY]
        here.keep(absent())
        await asyncio.sleep(PAUSE_SECONDS * 2)
        assert here.queued == [KEY, KEY], "at the end of the pause"
        here.keep(absent())
        await asyncio.sleep(0.1)
        assert len(here.attempts) == 2
        await here.tasks.close()

    run_virtual(main())
