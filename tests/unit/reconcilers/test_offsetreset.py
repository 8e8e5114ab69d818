"""OffsetResets and a Kafka group in memory: each is done once, whatever is lost, restored or made again."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, OPERATOR_STATE, STATEFUL_SET
from fleet_operator.observe.kafka_admin import OffsetsSet
from fleet_operator.planning import times
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.offsets.records import Committed, ResetRecord, is_outdated
from fleet_operator.planning.offsets.targets import GroupOffsets
from fleet_operator.reconcilers.offsetreset import OffsetResets, describe_moves, find_hold
from fleet_operator.reconcilers.run import RunReconciler
from fleet_operator.runtime.events import NOTE_CHARACTERS_MAX, Event
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import DeathError, Moment, Mortal, Sight, run
from tests.unit.reconcilers.redrive.world import World as Base

NAME = "again"
KEY = ("shop", NAME)
PLACES = [("orders", 0), ("orders", 1)]
CREATED = times.from_text("2026-01-01T00:00:00Z")
LONG_AGO = times.from_text("2001-01-01T00:00:00Z")


class Kafka(Sight):
    """The group's commits, and what was done to them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = builders.observation()
        self.commits = dict.fromkeys(PLACES, Committed(50, "fleet-replay-epoch=1"))
        self.sets = 0

    async def change(self, cluster: Any, cluster_id: Any, act: Callable[[Any], Any]) -> Any:
        return act(self)

    def poll_soon(self, cluster: Any) -> None:
        pass

    def read_offsets(self, group_id: str, topics: tuple[str, ...], at: int | None, *, read_committed: bool) -> Any:
        return GroupOffsets(
            state="Empty",
            counts={"orders": 2},
            committed={place: each.offset for place, each in self.commits.items()},
            starts=dict.fromkeys(PLACES, 10),
            ends=dict.fromkeys(PLACES, 90),
            markers=frozenset(each.metadata for each in self.commits.values()),
        )

    def set_offsets(
        self, group_id: str, wanted: Any, previous: Any = None, *, marker: str, topic_ids: Any
    ) -> OffsetsSet:
        before = {place: each.offset for place, each in self.commits.items()}
        if is_outdated(self.commits, wanted=wanted, previous=previous, marker=marker):
            return OffsetsSet({}, before, before, outdated=True)
        self.sets += 1
        self.commits |= {place: Committed(offset, marker) for place, offset in wanted.items()}
        return OffsetsSet({}, before, {place: each.offset for place, each in self.commits.items()})


class World(Base):
    """A group whose memory began long ago, and its OffsetResets."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        super().__init__()
        self.kafka = Kafka()
        self.sight = self.kafka
        self.remember_group()
        self.start()

    def remember_group(self, began: float | None = LONG_AGO, *, inherited: bool = True) -> None:
        self.keep(CONSUMER_GROUP, "orders", {"offsets": {"began": began, "inherited": inherited}})

    def start(self, fatal: int = 0, moment: Moment = "before") -> Mortal:
        client = super().start(fatal, moment)
        client._writes_only = True  # reads during the reconciles end a question, and not the process
        self.context = replace(self.context, events=cast("Any", SimpleNamespace(record=self.told.append)))
        self.reconciler = cast(
            "Any",
            RunReconciler(self.context, OffsetResets(self.context)),
        )
        return client

    def reset(self, name: str = NAME, *, uid: str = "", **spec: Any) -> None:
        self.put(OFFSET_RESET, name, {"groupRef": {"name": "orders"}, "to": "Earliest"} | spec)
        body = self.kube.objects[OFFSET_RESET.kind, "shop", name]
        body["metadata"]["uid"] = uid or body["metadata"]["uid"]

    def phase(self, name: str = NAME) -> str:
        found = self.get(OFFSET_RESET, name)
        assert found is not None
        return str(found["status"].get("phase"))

    async def live(self, name: str = NAME, *, times: int = 12) -> str:
        """The operator goes on for a while; returns the phase."""
        for _ in range(times):
            await self.reconcile(name)
            await asyncio.sleep(5.0)
        return self.phase(name)

    def holds(self) -> bool:
        return find_hold(self.context, ("shop", "orders"), begun=True) is not None

    def wipe(self, *, states: tuple[str, ...] = ()) -> None:
        """The status is gone, and these states; the operator is another one."""
        found = self.get(OFFSET_RESET, NAME)
        if found is not None:
            found["status"] = {}
        for name in states:
            del self.kube.objects[OPERATOR_STATE.kind, "shop", name]
        self.start()

    def replace(self, **spec: Any) -> None:
        """Deleted, with its own state, and made again."""
        del self.kube.objects[OFFSET_RESET.kind, "shop", NAME]
        del self.kube.objects[OPERATOR_STATE.kind, "shop", f"{NAME}.offsetreset"]
        self.start()
        self.reset(uid="another", **spec)


def life(history: Callable[[World], Awaitable[None]]) -> None:
    async def main(base: Base) -> None:
        await history(World())

    run(main)


def test_reset_stops_the_fleet_commits_once_and_lets_it_go() -> None:
    async def history(world: World) -> None:
        world.reset()
        seen: list[tuple[str, bool]] = []
        for _ in range(12):
            await world.reconcile(NAME)
            if (world.phase(), world.holds()) not in seen:
                seen.append((world.phase(), world.holds()))
            await asyncio.sleep(5.0)
        assert seen == [("Pending", False), ("StoppingWorkers", True), ("Committing", True), ("Succeeded", False)]
        assert ({each.offset for each in world.kafka.commits.values()}, world.kafka.sets) == ({10}, 1)
        status = world.get(OFFSET_RESET, NAME)["status"]  # type: ignore[index]
        assert status["previous"] == [{"topic": "orders", "partition": n, "offset": 50} for n in (0, 1)]
        assert status["resolved"] == [{"topic": "orders", "partition": n, "offset": 10} for n in (0, 1)]
        assert CONSUMER_GROUP.kind not in {kind for _, kind, _ in world.kube.writes}

    life(history)


@pytest.mark.parametrize("lost", [False, True], ids=["status kept", "status lost"])
def test_event_tells_once_which_offsets_were_set(lost: bool) -> None:
    async def history(world: World) -> None:
        world.reset()
        await world.live()
        if lost:
            world.wipe()
            await world.live()
        (told,) = (event for event in world.told if event.reason == "OffsetsReset")
        assert (told.type, told.regarding["metadata"]["name"]) == ("Normal", NAME)
        assert told.note == "partitions whose offset was set: 2 (orders-0: 50 -> 10, orders-1: 50 -> 10)"

    life(history)


def test_dry_run_is_no_event_of_offsets_that_were_set() -> None:
    async def history(world: World) -> None:
        world.reset(dryRun=True)
        await world.live()
        assert [event for event in world.told if event.reason == "OffsetsReset"] == []

    life(history)


@pytest.mark.parametrize("topic", ["orders", "o" * 249], ids=["short name", "long name"])
def test_offsets_of_many_partitions_are_told_as_far_as_an_event_goes(topic: str) -> None:
    numbers = range(5000)
    before, after = ({(topic, n): n + first for n in numbers[skipped:]} for first, skipped in ((50, 1), (10, 0)))
    note = describe_moves(ResetRecord(previous=before, offsets=after))
    shown = note.count("->")
    assert len(note) <= NOTE_CHARACTERS_MAX
    assert 2 < shown <= 20
    assert note.startswith(f"partitions whose offset was set: 5000 ({topic}-0: none -> 10, {topic}-1: 51 -> 11, ")
    assert note.endswith(f" -> {shown + 9}, and {5000 - shown} more)")


def test_nothing_is_committed_before_the_workers_are_gone() -> None:
    async def history(world: World) -> None:
        world.put(STATEFUL_SET, MAIN.child("orders"), {"replicas": 2})
        fleet = world.kube.objects[STATEFUL_SET.kind, "shop", MAIN.child("orders")]
        fleet["metadata"]["ownerReferences"] = [{"uid": "uid-of-orders"}]
        fleet["metadata"]["labels"] = {"consumerfleet.io/group": "orders"}
        world.reset()
        assert (await world.live(), world.holds()) == ("StoppingWorkers", True)
        fleet["spec"]["replicas"] = 0
        fleet["metadata"]["resourceVersion"] = str(world.kube.version + 1)
        world.kube.version += 1
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 1)

    life(history)


def test_dry_run_shows_both_and_holds_nothing() -> None:
    async def history(world: World) -> None:
        world.reset(dryRun=True)
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 0)
        assert world.get(OFFSET_RESET, NAME)["status"]["partitions"] == 2  # type: ignore[index]

    life(history)


LOSSES: dict[str, Callable[[World], None]] = {
    "the status": lambda world: world.wipe(),
    "the status and its own state": lambda world: world.wipe(states=(f"{NAME}.offsetreset",)),
    "the object, made again": lambda world: world.replace(),
    "the object, made again without limit": lambda world: world.replace(ttlSecondsAfterFinished=3600),
}


@pytest.mark.parametrize("how", LOSSES)
def test_reset_that_was_done_is_not_done_again_after_the_loss_of(how: str) -> None:
    async def history(world: World) -> None:
        world.reset()
        await world.live()
        world.kafka.commits = dict.fromkeys(PLACES, Committed(77, "fleet-replay-epoch=2"))
        LOSSES[how](world)
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 1)
        assert {each.offset for each in world.kafka.commits.values()} == {77}
        assert not world.holds()

    life(history)


def test_other_spec_under_the_same_name_is_another_reset() -> None:
    async def history(world: World) -> None:
        world.reset()
        await world.live()
        world.replace(to="Latest")
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 2)
        world.replace()
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 2), "the first one is remembered still"

    life(history)


def test_reset_without_any_memory_is_known_by_its_marker_in_the_commits() -> None:
    async def history(world: World) -> None:
        world.reset()
        await world.live()
        world.kafka.commits["orders", 0] = Committed(77, "fleet-replay-epoch=2")
        world.wipe(states=(f"{NAME}.offsetreset", "orders.consumergroup"))
        world.remember_group()
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 1)

    life(history)


def test_reset_older_than_the_memory_of_its_group_waits_for_a_word() -> None:
    """The marker is gone as well: workers have committed since."""

    async def history(world: World) -> None:
        world.reset()
        await world.live()
        world.kafka.commits = dict.fromkeys(PLACES, Committed(77, "fleet-replay-epoch=2"))
        world.wipe(states=(f"{NAME}.offsetreset", "orders.consumergroup"))
        world.remember_group(CREATED)
        assert (await world.live(), world.kafka.sets, world.holds()) == ("Pending", 1, False)
        status = world.get(OFFSET_RESET, NAME)["status"]  # type: ignore[index]
        (complete,) = (each for each in status["conditions"] if each["type"] == "Complete")
        assert complete["reason"] == "MemoryLost"
        world.reset(notAfter=times.to_text(world.clock.wall() + 3600))
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 2)

    life(history)


def test_older_state_of_the_reset_is_no_beginning() -> None:
    async def history(world: World) -> None:
        world.reset()
        while world.phase() != "StoppingWorkers":
            await world.reconcile(NAME)
            await asyncio.sleep(5.0)
        old = copy.deepcopy(world.kube.objects[OPERATOR_STATE.kind, "shop", f"{NAME}.offsetreset"]["data"])
        await world.live()
        world.kafka.commits = dict.fromkeys(PLACES, Committed(77, "fleet-replay-epoch=2"))
        world.keep(OFFSET_RESET, NAME, old)
        world.wipe()
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 1)

    life(history)


def test_reset_is_not_begun_after_its_time() -> None:
    async def history(world: World) -> None:
        world.reset(notAfter=times.to_text(world.clock.wall() - 1))
        assert (await world.live(), world.kafka.sets, world.holds()) == ("Failed", 0, False)

    life(history)


def test_resets_of_one_group_take_turns() -> None:
    async def history(world: World) -> None:
        world.reset("a-first")
        world.reset("b-second", to="Latest")
        await world.reconcile("a-first")
        assert await world.live("b-second", times=3) == "Pending"
        assert await world.live("a-first") == "Succeeded"
        assert await world.live("b-second") == "Succeeded"
        assert world.kafka.sets == 2

    life(history)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_operator_killed_at_any_call_with_its_status_wiped_brings_it_to_its_end(moment: Moment) -> None:
    for fatal in range(1, 25):

        async def history(world: World, fatal: int = fatal) -> None:
            world.reset()
            world.start(fatal, moment)
            for _ in range(16):
                try:
                    await world.reconcile(NAME)
                except DeathError:
                    world.wipe()
                await asyncio.sleep(5.0)
            assert (world.phase(), world.holds()) == ("Succeeded", False), fatal
            assert world.kafka.sets <= 2, "a commit is repeated only until its end is remembered"
            assert {each.offset for each in world.kafka.commits.values()} == {10}
            previous = world.get(OFFSET_RESET, NAME)["status"]["previous"]  # type: ignore[index]
            assert {each["offset"] for each in previous} == {50}, fatal

        life(history)
