"""Backfills of samples, and dry runs."""

from __future__ import annotations

from fleet_operator.clients.kinds import BACKFILL, OPERATOR_STATE
from tests.unit.reconcilers.backfill.world import World, covered, run, topic_offsets


def test_dry_run_counts_without_spark() -> None:
    async def life(world: World) -> None:
        world.spark_installed = False
        world.backfill(dryRun=True)
        await world.live()
        assert (world.status()["phase"], world.reason(), world.status()["offsetsTotal"]) == (
            "Succeeded",
            "AllCounted",
            20,
        )
        assert {kind for _, kind, _ in world.kube.writes} == {BACKFILL.kind, OPERATOR_STATE.kind}

    run(life)


def test_dry_run_with_a_sample_runs_on_spark_and_estimates_the_whole() -> None:
    async def life(world: World) -> None:
        world.spark_installed = False
        wanted = {"last": {"seconds": 60}, "sample": "50%"}
        world.backfill(dryRun=True, range=wanted, sink={"topic": {"name": "missing"}}, onError="FailedTopic")
        await world.live(5)
        assert (world.status()["phase"], world.reason("SparkAvailable")) == ("Pending", "SparkNotInstalled")
        world.spark_installed = True
        await world.live()
        assert world.sight.questions[0].others == (), "topics that nothing is written to"
        assert (world.config().dry_run, world.config().sink.topic, world.config().on_error) == (True, None, "Skip")
        status = world.status()
        assert (status["phase"], status["sampledFrom"], status["offsetsTotal"]) == ("Succeeded", 20, 10)
        assert status["estimate"] == {"records": 20, "failed": 0, "bytes": 0}
        found = world.get(BACKFILL, "again")
        assert found is not None
        found["status"] = {}
        world.start()
        await world.reconcile()
        assert (world.status()["estimate"], world.status()["sampledFrom"]) == (status["estimate"], 20)

    run(life)


def test_sample_of_a_status_that_was_lost_is_not_taken_again() -> None:
    async def life(world: World) -> None:
        world.backfill(range={"last": {"seconds": 60}, "sample": "16"})
        await world.live(until=lambda: bool(world.played))
        ranges = world.status()["resolvedRange"]
        world.lose_memory()
        world.sight.answer = lambda question: topic_offsets(ends={0: 90, 1: 90}, end={0: 90, 1: 90})
        await world.live()
        status = world.status()
        assert (status["phase"], status["resolvedRange"], status["sampledFrom"]) == ("Succeeded", ranges, 20)
        assert covered(world.played) == [*[1] * 8, 0, 0] * 2

    run(life)
