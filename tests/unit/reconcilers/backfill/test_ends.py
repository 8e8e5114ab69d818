"""Ends of a Backfill: lost settings, its time after the end, and the last word of its driver."""

from __future__ import annotations

import asyncio

import pytest

from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP
from tests.unit.planning import builders
from tests.unit.reconcilers.backfill.world import KEY, World, covered, run, topic_offsets


def test_lost_settings_end_a_backfill() -> None:
    async def life(world: World) -> None:
        world.ends = {1: ("after", 143, {})}
        world.backfill()
        await world.live(until=lambda: "lastEnded" in world.status())
        del world.kube.objects[CONFIG_MAP.kind, "shop", "again-backfill"]
        await world.live(100)
        assert (world.status()["phase"], world.reason()) == ("Failed", "SettingsLost")

    run(life)


@pytest.mark.parametrize("attempts", [1, 2])
def test_lost_status_is_no_end_at_the_old_ledger_with_another_range(attempts: int) -> None:
    """By then `last` means other offsets, and the ledger of the old ones is complete."""

    async def life(world: World) -> None:
        world.ends = {1: ("after", 143, {})} if attempts == 2 else {}
        world.backfill()
        await world.live(until=lambda: len(world.played) == 2)
        world.sight.answer = lambda question: topic_offsets(ends={0: 700, 1: 695}, cluster_id="cluster-a")
        world.lose_memory()
        await world.live(200)
        status = world.status()
        assert (status["phase"], world.reason()) == ("Succeeded", "AllHandled")
        assert status["resolvedRange"] == [{"partition": number, "from": 0, "to": 10} for number in (0, 1)]
        assert (status["offsetsCovered"], status["records"]["in"], status["attempts"]) == (20, 20, attempts)
        assert (covered(world.played), world.at_work_most) == ([1] * 20, 1)

    run(life)


def test_status_of_an_end_has_nothing_of_the_time_before_it() -> None:
    """The operator died when the end was remembered and not shown yet."""

    async def life(world: World) -> None:
        world.backfill()
        await world.live()
        ended = world.status()
        world.kube.objects[BACKFILL.kind, "shop", "again"]["status"] = {"phase": "Running", "throttledBy": "Rate"}
        world.start()
        await world.reconcile()
        assert world.status() == ended

    run(life)


def test_lost_status_after_the_end_is_the_same_end_again() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live()
        world.sight.answer = lambda question: topic_offsets(ends={0: 700, 1: 695})
        world.lose_memory()
        await world.live()
        status = world.status()
        assert (world.reason(), status["offsetsTotal"], world.launched) == ("AllHandled", 20, ["again-1"])

    run(life)


@pytest.mark.parametrize(("gone", "reason"), [("again-backfill", "SettingsLost"), ("again-ledger", "LedgerUnreadable")])
def test_lost_memory_and_half_of_what_an_attempt_left_is_no_beginning(gone: str, reason: str) -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        del world.kube.objects[CONFIG_MAP.kind, "shop", gone]
        world.lose_memory()
        for _ in range(4):
            await world.reconcile()
        assert (world.status()["phase"], world.reason(), world.launched) == ("Failed", reason, ["again-1"])
        assert world.applications() == {}, "its driver must not go on"

    run(life)


def test_paused_backfill_reads_no_records_of_another_cluster() -> None:
    """Its KafkaCluster was made again for the other one, and so has no other id in its status."""

    async def life(world: World) -> None:
        world.sight.answer = lambda question: topic_offsets(cluster_id="cluster-a", topic_id="t-1")
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        assert (world.config().cluster_id, world.config().topic_id) == ("cluster-a", "t-1")
        assert world.status()["clusterId"] == "cluster-a"
        world.backfill(suspend=True)
        await world.live(until=lambda: world.status()["phase"] == "Paused")
        world.sight.seen = builders.observation(cluster_id="cluster-b")
        world.backfill(suspend=False)
        await world.live()
        assert (world.status()["phase"], world.reason(), world.launched) == ("Failed", "RangeLost", ["again-1"])

    run(life)


def test_backfill_that_was_resolved_without_a_cluster_id_goes_on() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        assert "clusterId" not in world.status()
        world.backfill(suspend=True)
        await world.live(until=lambda: world.status()["phase"] == "Paused")
        world.sight.seen = builders.observation(cluster_id="cluster-b")
        world.backfill(suspend=False)
        await world.live()
        assert (world.status()["phase"], covered(world.played)) == ("Succeeded", [1] * 20)

    run(life)


def test_finished_backfill_is_deleted_after_its_time() -> None:
    async def life(world: World) -> None:
        world.backfill(ttlSecondsAfterFinished=30)
        await world.live()
        await world.reconcile()
        assert world.get(BACKFILL, "again") is not None
        await asyncio.sleep(31)
        await world.reconcile()
        assert world.get(BACKFILL, "again") is None

    run(life)


def test_last_word_of_a_driver_is_read_although_no_watch_has_brought_it() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        world.deliver()
        world.finish(1, 21, reason="BrokerUnreachable", message="nobody there")
        await world.reconciler.reconcile(KEY)  # the caches still have a pod that runs
        assert world.status()["lastEnded"]["reason"] == "BrokerUnreachable"

    run(life)
