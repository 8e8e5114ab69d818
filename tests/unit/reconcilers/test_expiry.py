"""Redrives with spec.ttlSecondsAfterFinished are deleted when their time is over, and not one too many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, OPERATOR_STATE, REDRIVE
from fleet_operator.planning import times
from fleet_operator.planning.observation import TopicObservation
from fleet_operator.planning.state.group import Redriven
from fleet_operator.planning.status.retry import is_recorded
from fleet_operator.reconcilers.redrive import UNRECORDED_SECONDS_MAX
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import KEY, TOPICS, DeathError, Moment, World, run

FOUND = '{"ok":true,"selected":5,"moved":5,"guarded":0,"redrivenTo":48}'
WITH_ID = {**TOPICS, "_fleet.orders.failed": TopicObservation(partitions=6, topic_id="t1")}


async def ended(world: World, *, word: str = FOUND, code: int = 0, **spec: Any) -> None:
    """A Redrive that this operator saw come to its end."""
    world.redrive(**spec)
    await world.reconcile()
    world.controller()
    world.finish(word=word, code=code)
    await world.reconcile()
    assert world.status()["phase"] == ("Failed" if code else "Succeeded")


def record_redriven(world: World, to: int) -> None:
    """The ConsumerGroup's state has what Redrives found."""
    world.keep(CONSUMER_GROUP, "orders", {"retries": {"redriven": {"topic_id": "t1", "to": to}}})


def is_there(world: World) -> bool:
    return world.get(REDRIVE, "fixed") is not None


def test_redrive_is_deleted_when_its_time_is_over() -> None:
    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=60)
        await asyncio.sleep(50)
        result = await world.reconcile()
        assert is_there(world)
        assert result is not None
        assert 9 < result <= 10
        await asyncio.sleep(result)
        await world.reconcile()
        assert not is_there(world)
        await world.reconcile()

    run(life)


@pytest.mark.parametrize(("ttl", "pause"), [(0, 1), (1, 1), (20, 20)])
def test_visit_that_sees_the_end_comes_back_when_the_time_is_over(ttl: int, pause: float) -> None:
    """Not at the next resync, which is a minute away."""

    async def life(world: World) -> None:
        world.redrive(ttlSecondsAfterFinished=ttl)
        await world.reconcile()
        world.controller()
        world.finish(word=FOUND)
        result, waited = await world.reconcile(), 0.0
        assert world.status()["phase"] == "Succeeded"
        while is_there(world):
            assert result is not None
            waited += result
            await asyncio.sleep(result)
            result = await world.reconcile()
        assert pause - 1 < waited <= pause

    run(life)


def test_redrive_without_a_time_is_kept() -> None:
    async def life(world: World) -> None:
        await ended(world)
        await asyncio.sleep(10_000_000)
        await world.reconcile()
        assert is_there(world)

    run(life)


@pytest.mark.parametrize("code", [0, 20])
def test_zero_deletes_at_once_whatever_the_end_was(code: int) -> None:
    async def life(world: World) -> None:
        await ended(world, code=code, ttlSecondsAfterFinished=0)
        await world.reconcile()
        assert not is_there(world)

    run(life)


def test_redrive_that_has_not_ended_is_kept() -> None:
    async def life(world: World) -> None:
        world.redrive(ttlSecondsAfterFinished=0)
        for _ in range(3):
            await world.reconcile()
            world.controller()
            await asyncio.sleep(100)
        assert world.status()["phase"] == "Running"
        world.redrive(ttlSecondsAfterFinished=0, suspend=True)
        await world.reconcile()
        assert world.status()["phase"] == "Paused"

    run(life)


def test_findings_are_recorded_by_the_group_before_the_redrive_goes() -> None:
    """FAILED of the group would rise again by all that was put back."""

    async def life(world: World) -> None:
        world.sight.seen = builders.observation(topics=WITH_ID)
        await ended(world, ttlSecondsAfterFinished=0)
        for seen in (builders.observation(topics=WITH_ID), builders.observation(topics={}), None):
            world.sight.seen = seen
            result = await world.reconcile()
            assert is_there(world)
            assert result is not None
            assert result <= 30
        record_redriven(world, 47)
        await world.reconcile()
        assert is_there(world)
        record_redriven(world, 48)
        await world.reconcile()
        assert not is_there(world)

    run(life)


def test_findings_need_no_group_that_is_gone() -> None:
    async def life(world: World) -> None:
        world.sight.seen = builders.observation(topics=WITH_ID)
        await ended(world, ttlSecondsAfterFinished=0)
        del world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        await world.reconcile()
        assert not is_there(world)

    run(life)


SUCCEEDED = {"phase": "Succeeded", "failedTopicId": "t1", "redrivenTo": 48}


@pytest.mark.parametrize(
    ("status", "redriven", "topic_id", "recorded"),
    [
        (SUCCEEDED, Redriven("t1", 50), None, True),
        (SUCCEEDED, Redriven("t1", 47), "t1", False),
        (SUCCEEDED, Redriven("t0", 50), "t1", False),
        (SUCCEEDED, None, None, False),
        (SUCCEEDED, None, "t2", True),  # the topic was recreated
        (SUCCEEDED | {"phase": "Failed"}, None, "t1", True),
        ({"phase": "Succeeded", "redrivenTo": 48}, None, "t1", True),  # a broker without topic ids
    ],
)
def test_findings_are_recorded(
    status: dict[str, Any], redriven: Redriven | None, topic_id: str | None, recorded: bool
) -> None:
    assert is_recorded(status, redriven, topic_id) is recorded
    assert is_recorded(status, None, topic_id) is (recorded and redriven is None)


def test_redrive_that_was_edited_meanwhile_is_reconciled_again() -> None:
    """Its owner may just have taken the time out: the very version that was judged is deleted, or none."""

    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=0)
        world.deliver()
        world.redrive()
        await world.reconciler.reconcile(KEY)
        assert is_there(world)
        await world.reconcile()
        assert is_there(world)

    run(life)


def test_another_operator_goes_by_what_is_remembered() -> None:
    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=600)
        await asyncio.sleep(590)
        world.start()
        result = await world.reconcile()
        assert is_there(world)
        assert result is not None
        assert 8 < result <= 10
        await asyncio.sleep(result)
        await world.reconcile()
        assert not is_there(world)

    run(life)


def test_clock_that_jumps_ahead_deletes_nothing_that_was_seen_to_end() -> None:
    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=600)
        world.clock.skew = 86_400.0
        await world.reconcile()
        assert is_there(world)
        await asyncio.sleep(600)
        await world.reconcile()
        assert not is_there(world)

    run(life)


def test_clock_that_jumps_back_delays_by_the_time_at_most() -> None:
    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=600)
        world.clock.skew = -86_400.0 * 365
        world.start()
        finished = times.from_text(world.status()["finishedAt"])
        assert finished is not None
        assert finished > world.clock.wall()
        result = await world.reconcile()
        assert result is not None
        assert result <= 600
        await asyncio.sleep(601)
        await world.reconcile()
        assert not is_there(world)

    run(life)


def test_thousands_are_deleted_once_each() -> None:
    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=600)
        status, names = world.status(), [f"old-{number}" for number in range(5000)]
        state = world.get(OPERATOR_STATE, "fixed.redrive")
        assert state is not None
        for name in names:
            world.redrive(name, ttlSecondsAfterFinished=600)
            world.kube.objects[REDRIVE.kind, "shop", name]["status"] = dict(status)
            world.keep(REDRIVE, name, state["data"])
        await asyncio.sleep(600)
        world.deliver()
        for name in names:
            await world.reconciler.reconcile(("shop", name))
        assert [write for write in world.kube.writes if write[0] == "delete"] == [
            ("delete", "Redrive", name) for name in names
        ]

    run(life)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_operator_killed_at_any_call_leaves_the_next_one_to_finish(moment: Moment) -> None:
    async def life(world: World) -> None:
        await ended(world, ttlSecondsAfterFinished=0)
        for fatal in range(1, 4):
            world.start(fatal, moment)
            try:
                await world.reconcile()
            except DeathError:
                continue
        world.start()
        await world.reconcile()
        assert not is_there(world)
        assert [write[1] for write in world.kube.writes if write[0] == "delete"] == ["Redrive"]

    run(life)


@pytest.mark.parametrize("restarted", [False, True])
def test_redrive_whose_findings_nobody_can_record_is_deleted_after_a_while(restarted: bool) -> None:
    """Its failed topic is gone for good. A new process waits as long, for it may be the first that could note them."""

    async def life(world: World) -> None:
        world.sight.seen = builders.observation(topics=WITH_ID)
        await ended(world, ttlSecondsAfterFinished=60)
        world.sight.seen = builders.observation(topics={})
        if restarted:
            await asyncio.sleep(2 * UNRECORDED_SECONDS_MAX)
            world.start()
        await world.reconcile()
        await asyncio.sleep(UNRECORDED_SECONDS_MAX - 10)
        result = await world.reconcile()
        assert is_there(world)
        assert result is not None
        await asyncio.sleep(result)
        await world.reconcile()
        assert not is_there(world)

    run(life)
