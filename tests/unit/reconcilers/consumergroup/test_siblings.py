"""A part's Service and disruption budget, which no watch shows: its StatefulSet proves that they were applied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, cast

import pytest

from fleet_operator.clients import kinds
from fleet_operator.clients.kube import KubeConflictError, KubeUnavailableError
from fleet_operator.planning.labels import APPLIED_ANNOTATION, SIBLINGS_ANNOTATION
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.consumergroup.children import Children
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.store import Store
from tests.unit.reconcilers.consumergroup.test_refused_children import _Context, scaled_with_another_template
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

UNWATCHED = ("Service", "PodDisruptionBudget")


class Fleet:
    """One ConsumerGroup's children in an API server in memory, and the processes that carry out its plan."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.found, self.plan = scaled_with_another_template()
        self.store = self.process()
        self.owner: kinds.JsonObject = {}

    def process(self) -> Store:
        """A new process, which has seen what the watches select."""
        clock = VirtualClock(asyncio.get_running_loop())
        self.clock = clock
        store = Store(self.kube, clock, WATCHED, applied_annotation=APPLIED_ANNOTATION)
        for body in self.kube.objects.values():
            store.learn(kinds.kind_of(body), body)
        self.store = store
        self.kube.writes.clear()
        return store

    async def begin(self) -> None:
        head = {"apiVersion": kinds.CONSUMER_GROUP.api_version, "kind": kinds.CONSUMER_GROUP.kind}
        self.owner = await self.kube.create({**head, **self.found.body})
        # MemoryKube gives uids of its own, and the children refer to their owner by its uid.
        self.owner["metadata"]["uid"] = self.found.group.metadata.uid
        self.kube.objects[self._address(self.owner)] = self.owner
        self.store.learn(kinds.CONSUMER_GROUP, self.owner)

    async def carry_out(self, *, remove: bool = False, replicas: int | None = None) -> Problem | None:
        main = self.plan.parts[0]
        key = (self.found.group.metadata.namespace, main.part.child(self.found.group.metadata.name))
        part = replace(self.found.parts[main.part], body=self.store.get(kinds.STATEFUL_SET, key))
        found: Gathered = replace(self.found, body=self.owner, parts={**self.found.parts, main.part: part})
        wanted = replace(main, remove=remove, replicas=main.replicas if replicas is None else replicas)
        plan: Plan = replace(self.plan, parts=(wanted,))
        return await Children(cast("Context", _Context(self.store, self.clock)), found, plan).carry_out()

    async def die_while_it_shrinks(self, number: int) -> None:
        """Go to one worker, be killed after so many calls, and begin again."""
        calls = count()

        def die(verb: str, kind: str, name: str) -> None:
            if next(calls) >= number:
                raise KubeUnavailableError("killed")

        self.kube.before = die
        with suppress(KubeUnavailableError):
            await self.carry_out(replicas=1)
        self.kube.before = lambda *_: None
        self.process()

    def fleet(self) -> kinds.JsonObject:
        (body,) = [body for body in self.kube.objects.values() if body["kind"] == "StatefulSet"]
        return body

    def kinds_there(self) -> set[str]:
        return {kind for kind, _, _ in self.kube.objects}

    def calls_for_siblings(self) -> list[tuple[str, str]]:
        return [(verb, kind) for verb, kind, _ in self.kube.writes if kind in UNWATCHED]

    def _address(self, body: kinds.JsonObject) -> tuple[str, str, str]:
        return body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]


def run(life: Callable[[Fleet], Any]) -> None:
    async def main() -> None:
        fleet = Fleet()
        await fleet.begin()
        assert await fleet.carry_out() is None
        await life(fleet)

    run_virtual(main())


def test_new_process_neither_reads_nor_applies_the_siblings_of_a_proving_fleet() -> None:
    async def life(fleet: Fleet) -> None:
        assert fleet.fleet()["metadata"]["annotations"][SIBLINGS_ANNOTATION]
        fleet.process()
        reads: list[str] = []
        fleet.kube.before = lambda verb, kind, name: reads.append(kind)
        assert await fleet.carry_out() is None
        assert [kind for kind in reads if kind in UNWATCHED] == []
        assert not any(kind == "StatefulSet" for _, kind, _ in fleet.kube.writes)

    run(life)


@pytest.mark.parametrize("proof", ["of-another-intent", None])
def test_siblings_are_applied_where_the_proof_differs_or_is_missing(proof: str | None) -> None:
    """The fleet is one of the version before, or somebody has edited the annotation."""

    async def life(fleet: Fleet) -> None:
        annotations = fleet.fleet()["metadata"]["annotations"]
        annotations.pop(SIBLINGS_ANNOTATION)
        if proof is not None:
            annotations[SIBLINGS_ANNOTATION] = proof
        fleet.process()
        for kind in UNWATCHED:
            fleet.kube.objects = {key: body for key, body in fleet.kube.objects.items() if key[0] != kind}
        assert await fleet.carry_out() is None
        assert set(UNWATCHED) <= fleet.kinds_there()

    run(life)


def test_part_that_is_wanted_again_before_it_was_gone_gets_its_service_back() -> None:
    """The process ended between the deletions of the Service and of the StatefulSet, and retries are wanted again."""

    async def life(fleet: Fleet) -> None:
        def die(verb: str, kind: str, name: str) -> None:
            if (verb, kind) == ("delete", "StatefulSet"):
                raise KubeUnavailableError("killed")

        fleet.kube.before = die
        with pytest.raises(KubeUnavailableError):
            await fleet.carry_out(remove=True)
        assert fleet.kinds_there().isdisjoint(UNWATCHED)
        fleet.kube.before = lambda *_: None
        fleet.process()
        assert await fleet.carry_out() is None
        assert set(UNWATCHED) <= fleet.kinds_there()

    run(life)


def test_fleet_has_a_budget_from_two_workers_on() -> None:
    async def life(fleet: Fleet) -> None:
        for replicas, there in ((1, False), (2, True), (3, True), (0, False)):
            assert await fleet.carry_out(replicas=replicas) is None
            assert ("PodDisruptionBudget" in fleet.kinds_there()) is there
            assert fleet.fleet()["spec"]["replicas"] == replicas
            fleet.process()
            assert await fleet.carry_out(replicas=replicas) is None
            assert fleet.calls_for_siblings() == []

    run(life)


@pytest.mark.parametrize("number", range(5))
def test_fleet_that_grows_again_after_a_kill_on_its_way_to_one_worker_has_its_budget(number: int) -> None:
    """It proves no longer that its budget is there before that is deleted."""

    async def life(fleet: Fleet) -> None:
        await fleet.die_while_it_shrinks(number)
        assert await fleet.carry_out(replicas=2) is None
        assert set(UNWATCHED) <= fleet.kinds_there()

    run(life)


@pytest.mark.parametrize("number", range(5))
def test_no_budget_is_left_of_a_fleet_whose_operator_was_killed_on_the_way_to_one_worker(number: int) -> None:
    async def life(fleet: Fleet) -> None:
        await fleet.die_while_it_shrinks(number)
        assert await fleet.carry_out(replicas=1) is None
        assert "PodDisruptionBudget" not in fleet.kinds_there()

    run(life)


def test_children_of_a_new_fleet_are_made_by_one_call_each() -> None:
    async def main() -> None:
        fleet, calls = Fleet(), list[tuple[str, str]]()
        await fleet.begin()
        fleet.store.saw_living(fleet.owner)
        fleet.kube.before = lambda verb, kind, name: calls.append((verb, kind))
        assert await fleet.carry_out() is None
        made = (*UNWATCHED, "StatefulSet")
        assert [call for call in calls if call[1] in made] == [("create", kind) for kind in made]

    run_virtual(main())


def test_part_that_is_wanted_again_while_the_watch_is_late_gets_its_service_back() -> None:
    async def life(fleet: Fleet) -> None:
        stale = fleet.fleet()
        assert await fleet.carry_out(remove=True) is None
        assert fleet.store.get(kinds.STATEFUL_SET, (stale["metadata"]["namespace"], stale["metadata"]["name"]))
        for _ in range(3):  # the first meets the missed deletion
            try:
                assert await fleet.carry_out() is None
                break
            except KubeConflictError as error:
                last = error
        else:
            raise AssertionError("not carried out") from last
        assert {*UNWATCHED, "StatefulSet"} <= fleet.kinds_there()

    run(life)
