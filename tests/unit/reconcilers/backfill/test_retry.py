"""A Failed Backfill goes on when `spec.retry` is raised: with what is left, and with the handler of now."""

from __future__ import annotations

import pytest

from fleet_consumer.contract.backfill_ledger import RunProblem
from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP
from tests.unit.reconcilers.backfill.world import World, covered, run

BROKEN = RunProblem(reason="HandlerFailed", message="partition 1 offset 4: KeyError", final=True)


async def failed(world: World) -> None:
    """A Backfill whose driver has come to a record that fails, after its second slice."""
    world.backfill()
    await world.live(until=lambda: len(world.played) == 2)
    world.fail_with(1, BROKEN)
    await world.live(until=lambda: world.status()["phase"] == "Failed")
    await world.reconcile()


def test_rest_is_handled_by_the_fixed_handler() -> None:
    async def life(world: World) -> None:
        await failed(world)
        status = world.status()
        assert status["remaining"] == [{"partition": 0, "from": 8, "to": 10}, {"partition": 1, "from": 0, "to": 10}]
        assert "raise spec.retry" in status["conditions"][0]["message"] + str(status["conditions"])
        world.config_map("source", {"shop.py": "def handle(record): return None"})
        world.backfill(retry=1)
        await world.live()
        status = world.status()
        assert (status["phase"], world.reason()) == ("Succeeded", "AllHandled")
        assert (covered(world.played), world.launched) == ([1] * 20, ["again-1", "again-2"])
        assert (status["attempts"], status["retries"], status["handlerAttempt"]) == (2, 1, 2)
        assert "remaining" not in status
        copy = world.get(CONFIG_MAP, "again-backfill-handler")
        assert copy is not None
        assert copy["data"] == {"shop.py": "def handle(record): return None"}
        await world.reconcile()
        assert world.status() == status

    run(life)


@pytest.mark.parametrize("restarted", [False, True])
def test_ledger_that_was_emptied_after_the_failure_is_no_beginning(restarted: bool) -> None:
    async def life(world: World) -> None:
        await failed(world)
        ledger = world.get(CONFIG_MAP, "again-ledger")
        assert ledger is not None
        del ledger["data"]["ledger.json"]
        world.backfill(retry=1)
        if restarted:
            world.start()
        await world.live(until=lambda: world.status()["retries"] == 1)
        await world.live(until=lambda: world.status()["phase"] in ("Failed", "Succeeded"))
        assert (world.status()["phase"], world.reason()) == ("Failed", "LedgerUnreadable")
        assert (world.launched, max(covered(world.played))) == (["again-1"], 1)

    run(life)


def test_operator_that_is_another_one_goes_on_as_well() -> None:
    async def life(world: World) -> None:
        await failed(world)
        world.backfill(retry=1)
        world.start()
        await world.live(until=lambda: len(world.played) == 3)
        world.start()
        await world.live()
        assert (world.status()["phase"], covered(world.played)) == ("Succeeded", [1] * 20)

    run(life)


def test_retry_that_fails_again_is_another_end_and_can_be_retried() -> None:
    async def life(world: World) -> None:
        await failed(world)
        ended = world.status()["finishedAt"]
        world.backfill(retry=1)
        await world.live(until=lambda: len(world.played) == 3)
        world.fail_with(2, BROKEN)
        await world.live(until=lambda: world.status()["phase"] == "Failed")
        await world.reconcile()
        status = world.status()
        assert (status["retries"], status["attempts"]) == (1, 2)
        assert status["finishedAt"] > ended
        await world.live(20)
        assert world.launched == ["again-1", "again-2"], "it was followed once"
        world.backfill(retry=5)
        await world.live()
        assert (world.status()["phase"], world.status()["retries"]) == ("Succeeded", 5)
        assert covered(world.played) == [1] * 20

    run(life)


def test_failures_are_counted_from_the_beginning() -> None:
    """Four in a row ended it; a retry has four of its own."""

    async def life(world: World) -> None:
        world.ends = {number: ("before", 21, {"reason": "SliceFailed"}) for number in range(1, 8)}
        world.backfill()
        await world.live(400, until=lambda: world.status().get("phase") == "Failed")
        assert world.status()["attempts"] == 4
        world.backfill(retry=1)
        await world.live(600)
        assert (world.status()["phase"], world.status()["attempts"]) == ("Succeeded", 8)

    run(life)


@pytest.mark.parametrize("retry", [0, 1])
def test_object_that_is_made_again_is_at_its_end(retry: int) -> None:
    """Nobody knows how far it was, and what was done must not be done twice."""

    async def life(world: World) -> None:
        await failed(world)
        found = world.get(BACKFILL, "again")
        assert found is not None
        uid = found["metadata"]["uid"]
        for address, body in list(world.kube.objects.items()):
            owners = body["metadata"].get("ownerReferences", ())
            if address == (BACKFILL.kind, "shop", "again") or any(each["uid"] == uid for each in owners):
                del world.kube.objects[address]
        await world.reconcile()
        world.launched.clear()
        world.backfill(retry=retry)
        await world.live(100)
        assert (world.status()["phase"], world.launched) == ("Failed", [])

    run(life)
